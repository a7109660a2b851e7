"""What a run leaves in its folder for its report, and the report itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.report.reading import read_openly
from thinwire.report.record import Heartbeat, Quality, RunInfo, RunRecord
from thinwire.report.svg.page import GENERATOR
from thinwire.storage import layout
from thinwire.storage.atomic_file import replace_file
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.json_file import dump_indented_json

_log = logging.getLogger(__name__)


def keep_about(folder: Path, about: RunInfo) -> None:
    """As a run begins, or goes on: it has no result yet."""
    with _not_stopping(folder):
        (folder / layout.RESULT).unlink(missing_ok=True)
        replace_file(folder / layout.ABOUT, about.model_dump_json(indent=2).encode() + b"\n")


def keep_heartbeat(folder: Path, heartbeat: Heartbeat, lasting: bool) -> None:
    """The last one whole; of those that last the times. A disk that is full costs them, not the run."""
    with suppress(OSError):
        replace_file(folder / layout.HEARTBEAT, heartbeat.model_dump_json().encode() + b"\n", sync=False)
        if lasting:
            with (folder / layout.TIMELINE).open("a", encoding="utf-8") as file:
                file.write(heartbeat.slim().model_dump_json(exclude_defaults=True) + "\n")


def keep_result(folder: Path, summary: Mapping[str, Any] | None, quality: Quality | None) -> None:
    """Once the models are saved; `summary` is None where the run has written result.json itself."""
    with _not_stopping(folder):
        if quality is not None:
            open_folder(folder).replace(folder / layout.QUALITY, quality.model_dump_json().encode() + b"\n")
        if summary is not None:
            replace_file(folder / layout.RESULT, dump_indented_json(summary))
        write_report([read_openly(folder)], folder / layout.REPORT)


def write_report(runs: Sequence[RunRecord], path: Path) -> Path:
    """One HTML file about the runs."""
    from thinwire.report.rendering import report_html

    return write_page(report_html(runs), path)


def write_page(html: str, path: Path) -> Path:
    """Overwrites a report, and nothing else."""
    try:
        if path.exists() and not _is_report(path):
            raise BadInput(f"{path} is there already and is no report; give another --out")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, html.encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    return path


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(1000)


@contextmanager
def _not_stopping(folder: Path) -> Iterator[None]:
    """A report is worth less than its run: whatever keeps it from being written is said, and the run goes on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        _log.warning("%s: no report: %s", folder, error)
