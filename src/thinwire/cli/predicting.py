"""What the commands that predict have in common: which rows, what leaves, and one party's half over the network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from thinwire.cli.approval import require_approval
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from thinwire.job.row_selection import IdTable
    from thinwire.predict.run_source import RunSource

__all__ = [
    "Half",
    "OwnRun",
    "Rows",
    "ShownProgress",
    "Table",
    "Yes",
    "own_file",
    "parsed_table",
    "say",
]

OwnRun = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--run", metavar="DIR", help="This party's run of a job file; runs/<job>/<name> unless given."),
]
Table = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--table", metavar="test|training|all", help="Which of the job's rows; test unless given."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Approve what leaves this party unasked.")]


@dataclass(frozen=True)
class Rows:
    """Which rows of the table: all, by number, or by id."""

    numbers: str | None
    only: Path | None

    def chosen(self, count: int, ids: IdTable | None) -> Any:
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
        try:
            lines = self.only.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--only {self.only} cannot be read as text: {error}") from None
        wanted = [line for line in lines if line.strip()]
        if not wanted:
            raise BadInput(f"--only {self.only} is empty; write one id a line")
        found = ids.rows(wanted)
        if len(np.unique(found)) != len(found):
            raise BadInput(f"--only {self.only} names an id twice; write each once")
        return found


class Half:
    """One party's half over the network."""

    def __init__(self, found: RunSource, which: Any, files: tuple[Path | None, Path | None], yes: bool) -> None:
        from thinwire.predict.run_source import align_new_rows
        from thinwire.transport.certificates import load_credentials

        self._own, self._folder, self._which = found.own, found.folder(), which
        load_credentials(self._own.certificate_files, self._own.certificate_names[self._own.me])
        consent = self._own.consent
        require_approval(consent.describe_scoring(), consent.me, yes, consent)
        features, ids = files
        self._new = None if features is None and ids is None else align_new_rows(found, features, ids, say)

    def ask(self, out: Path, rows: Rows, resume: bool) -> dict[str, Any]:
        from thinwire.errors import ThinwireError
        from thinwire.predict.embedding_client import EmbeddingClient
        from thinwire.predict.party_models import LabelModel
        from thinwire.predict.score_file import ScoreTask, score_over_network, write_scores

        own = self._own
        model = LabelModel(own.me, self._folder, self._which, self._new)
        chosen = rows.chosen(model.rows.count, model.rows.ids)
        party = EmbeddingClient(own, model, say)
        asked = ScoreTask(chosen, model.hash, model.outputs, model.rows.ids)
        party.start()
        news: dict[str, Any] = {"stopped": f"{own.me!r} has stopped"}
        try:
            found = write_scores(
                out,
                asked,
                lambda rest: score_over_network(party, rest, own.network.wait_seconds, lambda: None),
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

    def answer(self) -> dict[str, Any]:
        from thinwire.predict.embedding_server import EmbeddingServer, ServingTerms
        from thinwire.predict.party_models import FeatureModel
        from thinwire.predict.run_source import load_identity

        own = self._own
        model = FeatureModel(own.me, self._folder, self._which, self._new, load_identity(own))
        party = EmbeddingServer(own, model, ServingTerms(), say)
        party.start()
        try:
            party.wait(own.network.wait_seconds)
        finally:
            party.close()
        traffic = party.ledger.total()
        return {"party": own.me, "questions": party.questions, "bytes": traffic.bytes, "messages": traffic.messages}


def say(sentence: str) -> None:
    typer.echo(f"thinwire: {sentence}", err=True)


def parsed_table(table: str | None, features: Sequence[str]) -> Any:
    """Which of the job's rows; None where it was not said."""
    from thinwire.job.row_selection import RowSet

    if table is not None and table not in [one.value for one in RowSet]:
        raise BadInput(f"--table must be test, training or all, got {table!r}")
    if features and table is not None:
        raise BadInput("--features are other rows than the job's: leave --table out")
    return None if table is None else RowSet(table)


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
