"""What a sweep leaves beside its runs: its figures as one JSON file, and a page about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire.lab.sweep.page import sweep_html
from thinwire.lab.sweep.ranking import ranked
from thinwire.report.keeping import write_page
from thinwire.storage import layout
from thinwire.storage.json_file import indented_json
from thinwire.storage.run_directory import RunDirectory

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
