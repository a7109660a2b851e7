"""`thinwire forget`: rows that must not be kept any longer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer

from thinwire.cli.shown import AsJson
from thinwire.errors import BadInput

__all__ = ["forget"]

_MOST_ROWS = 10_000_000


def forget(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder; a party's own, over the network.")],
    ids: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--ids", metavar="FILE", help="Ids to forget, one a line, as the job's id column writes them."),
    ] = None,
    rows: Annotated[
        str, typer.Option("--rows", metavar="N,N-N", help="Training rows of the run, from 0: 3,7,10-19.")
    ] = "",
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Also where the run has not ended: it can never go on then.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what a run's folder keeps by row: checkpoints, surrogates, worksets, logged messages. Models stay."""
    from thinwire.job.erase import erase_rows

    found = erase_rows(run, ids=_ids(ids), rows=_rows(rows), give_up=give_up)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    for line in found.describe():
        typer.echo(line)


def _ids(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        found = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--ids {file}: cannot be read as UTF-8 text: {error}") from None
    if not found:
        raise BadInput(f"--ids {file}: it holds no id; write one a line")
    return found


def _rows(text: str) -> list[int]:
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
