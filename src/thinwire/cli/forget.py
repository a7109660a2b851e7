"""`thinwire forget`: rows that must not be kept any longer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.options import AsJson, read_ids
from thinwire.cli.output import print_result

_MOST_ROWS = 10_000_000


def forget(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder; over the network, this party's own.")],
    ids: Annotated[
        Path | None,
        typer.Option(
            "--ids",
            metavar="FILE",
            help="Text file with the ids to erase, one per line, written as in the job's id column.",
        ),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            "--rows", metavar="N,N-N", help="Training rows of the run to erase, counted from 0, such as 3,7,10-19."
        ),
    ] = "",
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="Erase even if the run has not finished; it can never be resumed afterwards."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what a run's folder keeps by row: checkpoints, surrogates, worksets, logged messages. Models stay."""
    from thinwire.training.erase import erase_rows

    found = erase_rows(
        run,
        ids=[] if ids is None else [one.strip() for one in read_ids("--ids", ids)],
        rows=_parse_rows(rows),
        give_up=give_up,
    )
    print_result(asdict(found), as_json, found.describe())


def _parse_rows(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(",") if text.strip() else []:
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise BadInput(f"--rows {text}: row numbers from 0 and ranges, as in 3,7,10-19; got {part!r}")
        some = range(int(first), int(last or first) + 1)
        if some.stop - some.start > _MOST_ROWS:
            raise BadInput(f"--rows {part.strip()}: at most {_MOST_ROWS} rows in one range")
        found += some
    return found
