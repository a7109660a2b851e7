"""`thinwire report`: one self-contained HTML file about one run, or about several beside each other."""

from __future__ import annotations

from pathlib import Path

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes
from thinwire.cli.output import open_browser, print_result


def report(runs: list[Path], out: Path | None = None, show: bool = False, as_json: bool = False) -> None:
    """Write an HTML report about runs: baselines, curves, model quality, bytes, time, privacy, reproduction."""
    from thinwire.report.folder import read_run, runs_in, write_report
    from thinwire.storage import layout
    from thinwire.storage.encryption_key import open_folder

    folders = list(dict.fromkeys(folder for given in runs for folder in runs_in(given)))
    closed = [folder for folder in folders if open_folder(folder).is_encrypted]
    if closed and out is None:
        raise BadInput(f"{closed[0]} is encrypted, but a report is not; name the file to write it to: --out FILE")
    records = [read_run(folder) for folder in folders]
    path = write_report(records, out or (folders[0] if len(records) == 1 else Path()) / layout.REPORT)
    size, count = path.stat().st_size, f"{len(records)} run{'s' if len(records) > 1 else ''}"
    facts = {"report": str(path), "bytes": size, "runs": [str(folder) for folder in folders]}
    print_result(facts, as_json, [f"{path}: {count}, {format_bytes(size)}"])
    if show:
        open_browser(path.resolve().as_uri())
