"""`thinwire predict`: scores of many rows into a file; in this process, or this party's half over the network."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Optional

import typer

from thinwire.cli.shown import AsJson, seconds_shown
from thinwire.errors import BadInput

__all__ = ["own_file", "parsed_table", "predict", "require_approval", "say"]


def predict(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder; with --name also the job file of the run.")
    ],
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--name", metavar="PARTY", help="This party's half, over the network; without it, all in one."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="FILE", help="Where scores go: .csv or .parquet. At a feature party: nowhere."),
    ] = None,
    *,
    rows: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--rows", metavar="3,10-19,90-", help="Row numbers from 0, and ranges; all unless given."),
    ] = None,
    table: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--table", metavar="test|training|all", help="Which of the job's rows; test unless given."),
    ] = None,
    features: Annotated[
        list[str],
        typer.Option("--features", metavar="PARTY=FILE", help="Other rows: a file with the same columns, by party."),
    ] = [],  # noqa: B006
    ids: Annotated[
        list[str], typer.Option("--ids", metavar="PARTY=FILE", help="Where the ids of other rows are, by party.")
    ] = [],  # noqa: B006
    run: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--run", metavar="DIR", help="This party's run of a job file; runs/<job>/<name> unless given."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on behind the last whole block of --out.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve what leaves this party unasked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Score rows together with a run's models; over the network no party shows its features."""
    which = parsed_table(table, features)
    began = monotonic()
    if name is None:
        if out is None:
            raise BadInput("--out is missing: where the scores go, such as --out scores.csv")
        found = _here(source, out, rows, which, _files("--features", features), _files("--ids", ids), resume)
    else:
        files = own_file("--features", features, name), own_file("--ids", ids, name)
        half = _Half(source, name, run, which, *files, yes)
        found = half.ask(out, rows, resume) if half.is_label_party else half.answer(out, rows)
    found["seconds"] = monotonic() - began
    if as_json:
        typer.echo(json.dumps(found))
    elif "out" in found:
        typer.echo(f"{found['rows']} rows in {seconds_shown(found['seconds'])}: {found['out']}")
    else:
        typer.echo(f"{found['party']}: {found['questions']} questions answered in {seconds_shown(found['seconds'])}")


def _here(
    source: Path,
    out: Path,
    rows: str | None,
    which: Any,
    features: dict[str, Path],
    ids: dict[str, Path],
    resume: bool,
) -> dict[str, Any]:
    import numpy as np

    from thinwire.predict import load_run
    from thinwire.predict.batch import Asked, write_scores
    from thinwire.predict.row_ranges import chosen_rows
    from thinwire.predict.simulated import new_rows, own_rows

    if source.is_file():
        raise BadInput(f"{source} is a file; give a run's folder, or --name PARTY with a job file")
    run = load_run(source)
    held = new_rows(run, features, ids) if features else own_rows(run, which)
    chosen = np.arange(held.count) if rows is None else chosen_rows(rows, held.count)
    asked = Asked(chosen, run.version, run.outputs, held.ids)
    return write_scores(out, asked, lambda rest: run.scored(held.tables, rest, held.counted), ShownProgress(), resume)


class _Half:
    """One party's half over the network."""

    def __init__(
        self,
        source: Path,
        name: str,
        run: Path | None,
        which: Any,
        features: Path | None,
        ids: Path | None,
        yes: bool,
    ) -> None:
        from thinwire.predict.starting import aligned_rows, named
        from thinwire.transport.certificates import load_credentials

        found = named(source, name, run)
        self._own, self._folder, self._which = found.own, found.folder(), which
        load_credentials(self._own.certificate_files, self._own.certificate_names[name])
        require_approval(self._own, yes)
        self._new = None
        if features is not None or ids is not None:
            self._new = aligned_rows(self._own, features, ids, say)

    @property
    def is_label_party(self) -> bool:
        return self._own.is_label_party

    def ask(self, out: Path | None, rows: str | None, resume: bool) -> dict[str, Any]:
        import numpy as np

        from thinwire.errors import ThinwireError
        from thinwire.predict.asking import AskingParty
        from thinwire.predict.batch import Asked, write_scores
        from thinwire.predict.over_network import asked_for
        from thinwire.predict.own_models import LabelModel
        from thinwire.predict.pins import Pins
        from thinwire.predict.row_ranges import chosen_rows

        if out is None:
            raise BadInput("--out is missing: where the scores go, such as --out scores.csv")
        own = self._own
        model = LabelModel(own.me, self._folder, self._which, self._new)
        count = model.rows.count
        chosen = np.arange(count) if rows is None else chosen_rows(rows, count)
        party = AskingParty(own, model, Pins(self._folder.path / "serving.json"), say)
        asked = Asked(chosen, model.hash, model.outputs, model.rows.ids)
        party.start()
        news: dict[str, Any] = {"stopped": f"{own.me!r} has stopped"}
        try:
            found = write_scores(
                out,
                asked,
                lambda rest: asked_for(party, rest, own.network.wait_seconds, lambda: None),
                ShownProgress(),
                resume,
            )
            party.gather(own.network.wait_seconds)  # even where nothing was left to ask: all hear of the end
            news = {"done": True}
        except ThinwireError as error:
            news = {"stopped": f"{own.me!r}: {error}"}
            raise
        finally:
            party.close(news)
        traffic = party.ledger.total()
        return {"party": own.me, **found, "bytes": traffic.bytes, "messages": traffic.messages}

    def answer(self, out: Path | None, rows: str | None) -> dict[str, Any]:
        from thinwire.predict.answering import AnsweringParty, Terms
        from thinwire.predict.own_models import FeatureModel
        from thinwire.predict.starting import identity_of

        own = self._own
        if out is not None or rows is not None:
            raise BadInput(f"--out and --rows are for the label party, {own.label_party!r}: scores come out there")
        model = FeatureModel(own.me, self._folder, self._which, self._new, identity_of(own))
        party = AnsweringParty(own, model, Terms(), say)
        party.start()
        try:
            party.wait(own.network.wait_seconds)
        finally:
            party.close()
        traffic = party.ledger.total()
        return {"party": own.me, "questions": party.questions, "bytes": traffic.bytes, "messages": traffic.messages}


def require_approval(own: Any, yes: bool) -> None:
    """Before any data is read: the party sees what leaves it."""
    from thinwire.network.consent import Terms

    summed = type(own.recipe.aggregation).__name__ == "SecureSum"
    what = "the sum of all parties' embeddings" if summed else "each party's embeddings, exactly,"
    typer.echo(f"{own.me!r} is asked to predict with {own.recipe.name!r}", err=True)
    typer.echo(f"  {own.label_party} sees {what} of every row it asks for, and all scores", err=True)
    typer.echo(f"  {own.budget()}", err=True)
    terms = Terms(own)
    if yes or terms.are_approved():
        return
    if not sys.stdin.isatty():
        raise BadInput(
            f'nobody has approved this for {own.me!r}: give --yes, or write approved = "{terms.digest[:16]}" into '
            "its section of the job file"
        )
    if not typer.confirm("Take part?", err=True):
        raise BadInput("not approved; nothing was read or sent")


def say(sentence: str) -> None:
    typer.echo(f"thinwire: {sentence}", err=True)


def parsed_table(table: str | None, features: Sequence[str]) -> Any:
    """Which of the job's rows; None where it was not said."""
    from thinwire.predict.table import Which

    if table is not None and table not in [one.value for one in Which]:
        raise BadInput(f"--table must be test, training or all, got {table!r}")
    if features and table is not None:
        raise BadInput("--features are other rows than the job's: leave --table out")
    return None if table is None else Which(table)


def own_file(option: str, given: Sequence[str], name: str) -> Path | None:
    """A party names its own file only; its name may be left out."""
    if not given:
        return None
    if len(given) > 1:
        raise BadInput(f"{option}: with --name a party names its own file only")
    party, equals, file = given[0].partition("=")
    if equals and party != name:
        raise BadInput(f"{option}: this is {name!r}; the file of {party!r} is named at {party!r}")
    return Path(file if equals else party)


def _files(option: str, given: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in given:
        party, equals, file = text.partition("=")
        if not equals or not party or not file:
            raise BadInput(f"{option} {text!r}: write PARTY=FILE, such as bank=new.csv")
        if party in found:
            raise BadInput(f"{option}: {party!r} is given twice")
        found[party] = Path(file)
    return found


class ShownProgress:
    """A line on stderr for each tenth."""

    def __init__(self) -> None:
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total
        if tenth != self._shown:
            self._shown = tenth
            typer.echo(f"  {done} of {total} rows", err=True)
            sys.stderr.flush()
