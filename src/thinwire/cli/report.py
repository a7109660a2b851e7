"""`thinwire report`: one self-contained HTML file about one run, or about several beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes
from thinwire.cli.options import AsJson, Open
from thinwire.cli.output import open_browser, print_result


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, or folders that contain runs, such as those written by compare."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="HTML file to write (default: RUN/report.html for one run, ./report.html for several).",
        ),
    ] = None,
    show: Open = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file about runs: what was trained, curves, bytes, time, answers, privacy, how to repeat it."""
    from thinwire.report.keeping import write_report
    from thinwire.report.reading import read_run, runs_in
    from thinwire.storage import layout
    from thinwire.storage.encryption_key import open_folder

    folders = list(dict.fromkeys(folder for given in runs for folder in runs_in(given)))
    closed = [folder for folder in folders if open_folder(folder).is_encrypted]
    if closed and out is None:
        raise BadInput(f"{closed[0]} is encrypted, and a report of it is not; say where it may lie: --out FILE")
    records = [read_run(folder) for folder in folders]
    path = write_report(records, out or (folders[0] if len(records) == 1 else Path()) / layout.REPORT)
    size, count = path.stat().st_size, f"{len(records)} run{'s' if len(records) > 1 else ''}"
    facts = {"report": str(path), "bytes": size, "runs": [str(folder) for folder in folders]}
    print_result(facts, as_json, [f"{path}: {count}, {format_bytes(size)}"])
    if show:
        open_browser(path.resolve().as_uri())
