"""`thinwire predict`: scores of many rows into a file; in this process, or this party's half over the network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Optional

import typer

from thinwire.cli.predicting import Half, OwnRun, Rows, ShownProgress, Table, Yes, own_file, parsed_table
from thinwire.cli.shown import AsJson, Settings, seconds_shown
from thinwire.errors import BadInput

__all__ = ["predict"]


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
    only: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--only", metavar="FILE", help="Only rows with these ids: a text file, one id a line."),
    ] = None,
    table: Table = None,
    features: Annotated[
        list[str],
        typer.Option("--features", metavar="PARTY=FILE", help="Other rows: a file with the same columns, by party."),
    ] = [],  # noqa: B006
    ids: Annotated[
        list[str], typer.Option("--ids", metavar="PARTY=FILE", help="Where the ids of other rows are, by party.")
    ] = [],  # noqa: B006
    run: OwnRun = None,
    settings: Settings = [],  # noqa: B006
    resume: Annotated[bool, typer.Option("--resume", help="Go on behind the last whole block of --out.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Score rows together with a run's models; over the network no party shows its features."""
    which = parsed_table(table, features)
    began = monotonic()
    if name is None:
        if settings:
            raise BadInput("--set is for --name: a run in one process is asked as it was trained")
        files_here = _files("--features", features), _files("--ids", ids)
        found = _here(source, _place(out, resume), Rows(rows, only), which, *files_here, resume)
    else:
        from thinwire.predict.run_source import find_run

        files = own_file("--features", features, name), own_file("--ids", ids, name)
        party = find_run(source, name, run, settings)
        # What is wrong with --out is said before anybody is asked, or met for an alignment.
        if party.own.is_label_party:
            place = _place(out, resume)
            found = Half(party, which, files, yes).ask(place, Rows(rows, only), resume)
        else:
            if (out, rows, only) != (None, None, None):
                whose = party.own.label_party
                raise BadInput(f"--out, --rows and --only are for the label party, {whose!r}: scores come out there")
            found = Half(party, which, files, yes).answer()
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
    rows: Rows,
    which: Any,
    features: dict[str, Path],
    ids: dict[str, Path],
    resume: bool,
) -> dict[str, Any]:
    from thinwire.predict import load_run
    from thinwire.predict.run import read_new_rows, read_own_rows
    from thinwire.predict.run_source import add_import_paths
    from thinwire.predict.score_file import ScoreTask, write_scores

    if source.is_file():
        raise BadInput(f"{source} is a file; give a run's folder, or --name PARTY with a job file")
    add_import_paths(source)
    run = load_run(source)
    held = read_new_rows(run, features, ids) if features else read_own_rows(run, which)
    asked = ScoreTask(rows.chosen(held.count, held.ids), run.version, run.outputs, held.ids)
    return write_scores(out, asked, lambda rest: run.scored(held.tables, rest, held.counted), ShownProgress(), resume)


def _place(out: Path | None, resume: bool) -> Path:
    """Where scores can go."""
    from thinwire.predict.score_file import check_output_path

    if out is None:
        raise BadInput("--out is missing: where the scores go, such as --out scores.csv")
    check_output_path(out, resume)
    return out


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
