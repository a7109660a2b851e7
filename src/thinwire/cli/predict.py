"""`thinwire predict`: scores of many rows into a file; in this process, or this party's half over the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.base.format import format_seconds
from thinwire.cli.options import TABLES, AsJson, OwnRun, Settings, complete, complete_parties, read_ids
from thinwire.cli.output import print_result, require_approval, say
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from thinwire.job.row_selection import IdTable
    from thinwire.predict.run_source import RunSource

TableName = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="test|training|all",
        help="Rows of the job to score: test (the default), training or all.",
        autocompletion=complete(*TABLES),
    ),
]
ApproveAll = Annotated[bool, typer.Option("--yes", help="Approve what leaves this party, without asking.")]


def predict(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or with --name the job file of the run.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="PARTY",
            help="Run only this party's half, over the network (default: all parties in this process).",
            autocompletion=complete_parties,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="File for the scores, .csv or .parquet; a feature party writes none."
        ),
    ] = None,
    *,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="3,10-19,90-",
            help="Row numbers and ranges to score, counted from 0 (default: all rows).",
        ),
    ] = None,
    only: Annotated[
        Path | None,
        typer.Option(
            "--only", metavar="FILE", help="Score only the rows whose ids are in this text file, one per line."
        ),
    ] = None,
    table: TableName = None,
    features: Annotated[
        list[str],
        typer.Option(
            "--features",
            metavar="PARTY=FILE",
            help="Score other rows: a file with the same columns for each party (repeatable).",
        ),
    ] = [],  # noqa: B006
    ids: Annotated[
        list[str],
        typer.Option(
            "--ids", metavar="PARTY=FILE", help="File with the ids of those other rows for each party (repeatable)."
        ),
    ] = [],  # noqa: B006
    run: OwnRun = None,
    settings: Settings = [],  # noqa: B006
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after the last complete block of --out.")
    ] = False,
    yes: ApproveAll = False,
    as_json: AsJson = False,
) -> None:
    """Score rows together with a run's models; over the network no party shows its features."""
    which = parse_table(table, features)
    began = monotonic()
    if name is None:
        if settings:
            raise BadInput("--set is for --name: a run in one process is asked as it was trained")
        files_here = _parse_files("--features", features), _parse_files("--ids", ids)
        found = _score_here(source, _require_out(out, resume), RowChoice(rows, only), which, *files_here, resume)
    else:
        from thinwire.predict.run_source import find_run

        files = parse_own_file("--features", features, name), parse_own_file("--ids", ids, name)
        party = find_run(source, name, run, settings)
        # What is wrong with --out is said before anybody is asked, or met for an alignment.
        if party.own.is_label_party:
            place = _require_out(out, resume)
            found = PartyHalf(party, which, files, yes).ask(place, RowChoice(rows, only), resume)
        else:
            if (out, rows, only) != (None, None, None):
                whose = party.own.label_party
                raise BadInput(f"--out, --rows and --only are for the label party, {whose!r}: scores come out there")
            found = PartyHalf(party, which, files, yes).answer()
    found["seconds"] = monotonic() - began
    took = format_seconds(found["seconds"])
    if "out" in found:
        line = f"{found['rows']} rows in {took}: {found['out']}"
    else:
        line = f"{found['party']}: {found['questions']} questions answered in {took}"
    print_result(found, as_json, [line])


def _score_here(
    source: Path,
    out: Path,
    rows: RowChoice,
    which: Any,
    features: dict[str, Path],
    ids: dict[str, Path],
    resume: bool,
) -> dict[str, Any]:
    from thinwire.predict.run import load_run, read_new_rows, read_own_rows
    from thinwire.predict.run_source import add_import_paths
    from thinwire.predict.score_file import ScoreTask, write_scores

    if source.is_file():
        raise BadInput(f"{source} is a file; give a run's folder, or --name PARTY with a job file")
    add_import_paths(source)
    run = load_run(source)
    held = read_new_rows(run, features, ids) if features else read_own_rows(run, which)
    asked = ScoreTask(rows.select(held.count, held.ids), run.version, run.outputs, held.ids)
    with ProgressLine("rows", 0) as progress:
        return write_scores(
            out, asked, lambda rest: run.score_rows(held.tables, rest, held.counted), progress.count, resume
        )


def _require_out(out: Path | None, resume: bool) -> Path:
    """Where scores can go."""
    from thinwire.predict.score_file import check_output_path

    if out is None:
        raise BadInput("--out is missing: where the scores go, such as --out scores.csv")
    check_output_path(out, resume)
    return out


def _parse_files(option: str, given: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in given:
        party, equals, file = text.partition("=")
        if not equals or not party or not file:
            raise BadInput(f"{option} {text!r}: write PARTY=FILE, such as bank=new.csv")
        if party in found:
            raise BadInput(f"{option}: {party!r} is given twice")
        found[party] = Path(file)
    return found


@dataclass(frozen=True)
class RowChoice:
    """Which rows of the table: all, by number, or by id."""

    numbers: str | None
    only: Path | None

    def select(self, count: int, ids: IdTable | None) -> Any:
        import numpy as np

        from thinwire.predict.rows import parse_row_numbers

        if self.numbers is not None and self.only is not None:
            raise BadInput("--rows and --only both say which rows; give one of them")
        if self.numbers is not None:
            return parse_row_numbers(self.numbers, count)
        if self.only is None:
            return np.arange(count)
        if ids is None:
            raise BadInput(f"--only {self.only}: these rows have no ids; give --rows")
        found = ids.rows(read_ids("--only", self.only))
        if len(np.unique(found)) != len(found):
            raise BadInput(f"--only {self.only} names an id twice; write each once")
        return found


class PartyHalf:
    """One party's half over the network."""

    def __init__(self, found: RunSource, which: Any, files: tuple[Path | None, Path | None], yes: bool) -> None:
        from thinwire.net.pki.certificates import load_credentials
        from thinwire.predict.run_source import align_new_rows

        self._own, self._folder, self._which = found.own, found.folder(), which
        load_credentials(self._own.certificate_files, self._own.certificate_names[self._own.me])
        consent = self._own.consent
        require_approval(consent.describe_scoring(), consent.me, yes, consent)
        features, ids = files
        self._new = None if features is None and ids is None else align_new_rows(found, features, ids, say)

    def ask(self, out: Path, rows: RowChoice, resume: bool) -> dict[str, Any]:
        from thinwire.base.errors import ThinwireError
        from thinwire.predict.embedding_client import EmbeddingClient
        from thinwire.predict.party_models import LabelModel
        from thinwire.predict.score_file import ScoreTask, score_over_network, write_scores

        own = self._own
        model = LabelModel(own.me, self._folder, self._which, self._new)
        chosen = rows.select(model.rows.count, model.rows.ids)
        party = EmbeddingClient(own, model, say)
        asked = ScoreTask(chosen, model.hash, model.outputs, model.rows.ids)
        party.start()
        news: dict[str, Any] = {"stopped": f"{own.me!r} has stopped"}
        try:
            with ProgressLine("rows", 0) as progress:
                found = write_scores(
                    out,
                    asked,
                    lambda rest: score_over_network(party, rest, own.network.wait_seconds, lambda: None),
                    progress.count,
                    resume,
                )
            party.wait_for_parties(own.network.wait_seconds)  # even where nothing was left: all hear of the end
            news = {"done": True}
        except ThinwireError as error:
            news = {"stopped": f"{own.me!r}: {error}"}
            raise
        finally:
            party.close(news)
        traffic = party.ledger.total()
        return {"party": own.me, **found, "bytes": traffic.bytes, "messages": traffic.messages}

    def answer(self) -> dict[str, Any]:
        from thinwire.predict.embedding_server import EmbeddingServer, ServingTerms
        from thinwire.predict.party_models import FeatureModel

        own = self._own
        model = FeatureModel(own.me, self._folder, self._which, self._new, own.network_party.identity())
        party = EmbeddingServer(own, model, ServingTerms(), say)
        party.start()
        try:
            party.wait(own.network.wait_seconds)
        finally:
            party.close()
        traffic = party.ledger.total()
        return {"party": own.me, "questions": party.questions, "bytes": traffic.bytes, "messages": traffic.messages}


def parse_table(table: str | None, features: Sequence[str]) -> Any:
    """Which of the job's rows; None where it was not said."""
    from thinwire.job.row_selection import RowSet

    if table is not None and table not in TABLES:
        raise BadInput(f"--table must be test, training or all, got {table!r}")
    if features and table is not None:
        raise BadInput("--features are other rows than the job's: leave --table out")
    return None if table is None else RowSet(table)


def parse_own_file(option: str, given: Sequence[str], name: str) -> Path | None:
    """A party names its own file only; its name may be left out."""
    if not given:
        return None
    if len(given) > 1:
        raise BadInput(f"{option}: with --name a party names its own file only")
    party, equals, file = given[0].partition("=")
    if equals and party != name:
        raise BadInput(f"{option}: this is {name!r}; the file of {party!r} is named at {party!r}")
    return Path(file if equals else party)
