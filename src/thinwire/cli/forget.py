"""`thinwire forget`: rows that must not be kept any longer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from thinwire.base.errors import BadInput
from thinwire.cli.options import read_ids
from thinwire.cli.output import print_result

_MOST_ROWS = 10_000_000


def forget(run: Path, ids: Path | None = None, rows: str = "", give_up: bool = False, as_json: bool = False) -> None:
    """Erase per-row data from a run folder: checkpoints, surrogates, worksets and logged messages. Models stay."""
    from thinwire.training.erase import erase_rows

    found = erase_rows(
        run,
        ids=[] if ids is None else [one.strip() for one in read_ids("--ids", ids)],
        rows=_parse_rows(rows),
        give_up=give_up,
    )
    print_result(asdict(found), as_json, found.describe())


def _parse_rows(text: str) -> list[int]:
    from thinwire.predict.rows import read_row_ranges

    ranges = read_row_ranges(text, None) if text.strip() else []
    for some in ranges:
        if some.stop - some.start > _MOST_ROWS:
            raise BadInput(f"--rows {some.start}-{some.stop - 1}: at most {_MOST_ROWS} rows in one range")
    return [row for some in ranges for row in some]
