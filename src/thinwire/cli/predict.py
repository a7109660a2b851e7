"""`thinwire predict`: scores of many rows into a file; in this process, or this party's half over the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from thinwire.base.errors import BadInput
from thinwire.base.format import format_seconds
from thinwire.cli.options import read_ids
from thinwire.cli.output import print_result, require_approval, say
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from thinwire.job.id_table import IdTable, UnmatchedRows
    from thinwire.predict.party_models import RunSource
    from thinwire.predict.run import TrainedRun
    from thinwire.predict.score_file import Shard


def predict(
    source: Path,
    name: str | None = None,
    out: Path | None = None,
    *,
    rows: str | None = None,
    only: Path | None = None,
    shard: str | None = None,
    table: str | None = None,
    features: list[str] = [],
    ids: list[str] = [],
    run: Path | None = None,
    settings: list[str] = [],
    resume: bool = False,
    yes: bool = False,
    code: list[str] = [],
    as_json: bool = False,
) -> None:
    """Score rows with the models of a run; over the network, no party reveals its features."""
    which, choice = parse_table(table, features), RowChoice(rows, only, shard)
    choice.parse_shard()  # what is wrong with it is said before anything is read
    began = monotonic()
    if name is None:
        if settings:
            raise BadInput("--set needs --name: a run in one process is scored with the settings it was trained with")
        files_here = _parse_files("--features", features), _parse_files("--ids", ids)
        place = _require_out(out, resume)
        found = _score_here(_load_whole(source, code), place, choice, which, *files_here, resume)
    else:
        from thinwire.predict.party_models import find_run

        files = parse_own_file("--features", features, name), parse_own_file("--ids", ids, name)
        party = find_run(source, name, run, settings, which, code)
        party.folder()  # what is wrong here or with --out is said before anybody is asked, or met for an alignment
        if party.own.is_label_party:
            place = _require_out(out, resume)
            found = _ask(open_half(party, files, yes), place, choice, resume)
        else:
            if (out, rows, only, shard) != (None, None, None, None):
                whose = party.own.label_party
                options = "--out, --rows, --only and --shard"
                raise BadInput(f"{options} belong to the label party, {whose!r}, which writes the scores")
            found = _answer(open_half(party, files, yes))
    found["seconds"] = monotonic() - began
    took = format_seconds(found["seconds"])
    if "out" in found:
        line = f"{found['rows']} rows in {took}: {found['out']}{_format_shards(found)}"
    else:
        line = f"{found['party']}: {found['questions']} questions answered in {took}"
    print_result(found, as_json, [line])


def _format_shards(found: Mapping[str, Any]) -> str:
    if "shard" not in found:
        return ""
    missing = found["missing_shards"]
    if not missing:
        return f" (shard {found['shard']} was the last one, and all are joined)"
    return f" (shard {found['shard']}; still missing: {', '.join(map(str, missing))})"


def _load_whole(source: Path, code: Sequence[str]) -> TrainedRun:
    from thinwire.job.own_code import CodeSources
    from thinwire.predict.run import load_run

    if source.is_file():
        raise BadInput(f"{source} is a file; give a run folder, or --name PARTY with a job file")
    with ProgressLine("reading the tables", 0) as progress:
        return load_run(source, code=CodeSources.parse(code), on_progress=progress.follower)


def _score_here(
    run: TrainedRun,
    out: Path,
    rows: RowChoice,
    which: Any,
    features: dict[str, Path],
    ids: dict[str, Path],
    resume: bool,
) -> dict[str, Any]:
    from thinwire.predict.run import read_new_rows, read_own_rows
    from thinwire.predict.score_file import ScoreTask, write_scores

    held = read_new_rows(run, features, ids) if features else read_own_rows(run, which)
    asked = ScoreTask(rows.select(held.count, held.ids), run.version, run.outputs, held.ids)
    unmatched = _report_unmatched(held.unmatched)
    with ProgressLine("rows", 0) as progress:
        found = write_scores(
            out,
            asked,
            lambda rest: run.score_rows(held.tables, rest, held.counted, held.owners),
            progress.count,
            resume,
            rows.parse_shard(),
        )
    return {**found, "unmatched": unmatched}


def _report_unmatched(found: Mapping[str, UnmatchedRows | None]) -> dict[str, Any]:
    """Says which party holds rows without a partner, and gives the counts."""
    counts = {name: one for name, one in found.items() if one is not None}
    for name, one in counts.items():
        if one.rows:
            say(one.describe(name))
    return {name: asdict(one) for name, one in counts.items()}


def _require_out(out: Path | None, resume: bool) -> Path:
    """Where scores can go."""
    from thinwire.predict.score_file import check_output_path

    if out is None:
        raise BadInput("--out is missing; name the file for the scores, such as --out scores.csv")
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
    """Which rows of the table: all, by number, or by id; and which shard of them."""

    numbers: str | None
    only: Path | None
    shard: str | None = None

    def parse_shard(self) -> Shard | None:
        from thinwire.predict.score_file import Shard

        return None if self.shard is None else Shard.parse(self.shard)

    def select(self, count: int, ids: IdTable | None) -> Any:
        import numpy as np

        from thinwire.predict.rows import parse_row_numbers

        if self.numbers is not None and self.only is not None:
            raise BadInput("--rows and --only both select rows; use only one of them")
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


def open_half(source: RunSource, files: tuple[Path | None, Path | None], yes: bool) -> RunSource:
    """One party's half over the network, once it has agreed to it; its new rows are aligned, where it names files."""
    from thinwire.predict.party_models import align_new_rows

    own = source.own
    own.network_party.load_credentials()
    require_approval(own.consent.describe_scoring(), own.me, yes, own.consent)
    return source if files == (None, None) else replace(source, new=align_new_rows(source, *files, say))


def _ask(source: RunSource, out: Path, rows: RowChoice, resume: bool) -> dict[str, Any]:
    from thinwire.base.errors import ThinwireError
    from thinwire.predict.embedding_client import EmbeddingClient
    from thinwire.predict.party_models import LabelModel
    from thinwire.predict.score_file import ScoreTask, score_over_network, write_scores

    own, model = source.own, LabelModel(source, source.folder())
    chosen = rows.select(model.rows.count, model.rows.ids)
    party = EmbeddingClient(own, model, say)
    asked = ScoreTask(chosen, model.hash, model.outputs, model.rows.ids)
    unmatched = _report_unmatched({own.me: model.rows.unmatched})
    party.start()
    news: dict[str, Any] = {"stopped": f"{own.me!r} has stopped"}
    try:
        with ProgressLine("rows", 0) as progress:
            score = partial(score_over_network, party, patience_seconds=own.network.wait_seconds)
            found = write_scores(out, asked, score, progress.count, resume, rows.parse_shard())
        party.wait_for_parties(own.network.wait_seconds)  # even where nothing was left: all hear of the end
        news = {"done": True}
    except ThinwireError as error:
        news = {"stopped": f"{own.me!r}: {error}"}
        raise
    finally:
        party.close(news)
    traffic = party.ledger.total()
    return {"party": own.me, **found, "unmatched": unmatched, "bytes": traffic.bytes, "messages": traffic.messages}


def _answer(source: RunSource) -> dict[str, Any]:
    from thinwire.job.schema import ServeTerms
    from thinwire.predict.embedding_server import EmbeddingServer
    from thinwire.predict.party_models import FeatureModel

    own = source.own
    model = FeatureModel(source, source.folder())
    party = EmbeddingServer(own, model, ServeTerms(), say)
    unmatched = _report_unmatched({own.me: model.rows.unmatched})
    party.start()
    with closing(party):
        party.wait(own.network.wait_seconds)
    traffic = party.ledger.total()
    return {
        "party": own.me,
        "questions": party.questions,
        "unmatched": unmatched,
        "bytes": traffic.bytes,
        "messages": traffic.messages,
    }


def parse_table(table: str | None, features: Sequence[str]) -> Any:
    """Which of the job's rows; None where it was not said."""
    from thinwire.job.row_selection import RowSet

    if table is not None and table not in tuple(RowSet):
        raise BadInput(f"--table must be test, training or all, got {table!r}")
    if features and table is not None:
        raise BadInput("--features gives new rows, so --table does not apply; remove it")
    return None if table is None else RowSet(table)


def parse_own_file(option: str, given: Sequence[str], name: str) -> Path | None:
    """A party names its own file only; its name may be left out."""
    if not given:
        return None
    if len(given) > 1:
        raise BadInput(f"{option}: with --name, give only the file of this party")
    party, equals, file = given[0].partition("=")
    if equals and party != name:
        raise BadInput(f"{option}: this is {name!r}; only {party!r} can give the file of {party!r}")
    return Path(file if equals else party)
