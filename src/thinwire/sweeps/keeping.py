"""What a sweep leaves beside its runs: its figures as one JSON file, and a page about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire.at_rest import layout
from thinwire.at_rest.json_file import indented_json
from thinwire.report.keeping import write_page
from thinwire.runs import RunDirectory
from thinwire.sweeps.page import sweep_html
from thinwire.sweeps.ranking import ranked

__all__ = ["keep_sweep"]

TABLE = "sweep.json"


def keep_sweep(
    folder: Path, job: Path, points: Sequence[dict[str, Any]], metric: str, target: dict[str, Any] | None
) -> dict[str, Any]:
    """Writes both, and returns what the JSON file holds: settings best first."""
    found = {
        "job": str(job),
        "out": str(folder),
        "metric": metric,
        "target": target,
        "report": str(folder / layout.REPORT),
        "points": ranked(points, metric, target is not None),
    }
    write_page(sweep_html(found), folder / layout.REPORT)
    RunDirectory(folder).write(TABLE, indented_json(found))
    return found
