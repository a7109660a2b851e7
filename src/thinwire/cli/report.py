"""`thinwire report`: one self-contained HTML file about one run, or about several beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer

from thinwire.cli.shown import AsJson, bytes_shown
from thinwire.errors import BadInput

__all__ = ["Open", "opened", "report"]

Open = Annotated[bool, typer.Option("--open", help="Show it in the browser.")]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders of runs, such as those that compare leaves."),
    ],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="FILE", help="RUN/report.html for one run, else ./report.html, unless given."),
    ] = None,
    show: Open = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file about runs: what was trained, curves, bytes, time, answers, privacy, how to repeat it."""
    from thinwire.at_rest import files_of, layout
    from thinwire.report.finding import runs_in
    from thinwire.report.keeping import write_report
    from thinwire.report.reading import read_run

    folders = list(dict.fromkeys(folder for given in runs for folder in runs_in(given)))
    closed = [folder for folder in folders if files_of(folder).encrypted]
    if closed and out is None:
        raise BadInput(f"{closed[0]} is encrypted, and a report of it is not; say where it may lie: --out FILE")
    records = [read_run(folder) for folder in folders]
    path = write_report(records, out or (folders[0] if len(records) == 1 else Path()) / layout.REPORT)
    if as_json:
        said = {"report": str(path), "bytes": path.stat().st_size, "runs": [str(folder) for folder in folders]}
        typer.echo(json.dumps(said))
    else:
        count = f"{len(records)} run{'s' if len(records) > 1 else ''}"
        typer.echo(f"{path}: {count}, {bytes_shown(path.stat().st_size)}")
    if show:
        opened(path.resolve().as_uri())


def opened(address: str) -> None:
    """Where there is a browser; else its address is all that can be given."""
    import webbrowser

    if not webbrowser.open(address):
        typer.echo(f"thinwire: no browser found; open {address} in yours", err=True)
