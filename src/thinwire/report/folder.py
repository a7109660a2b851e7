"""What a run leaves in its folder for its report: read back, written, and which runs a folder holds."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from thinwire.base.errors import BadInput
from thinwire.report.record import (
    CoefficientTable,
    Evaluation,
    Heartbeat,
    LedgerEntry,
    Quality,
    RunInfo,
    RunRecord,
    RunState,
    _Summary,
    append_heartbeat,
)
from thinwire.storage import layout
from thinwire.storage.atomic_file import replace_file
from thinwire.storage.encrypted_files import PLAIN, Files
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.json_file import dump_indented_json, parse_object

_STARTS = ("listening", "dialling")  # a party's first words; nothing of the kind comes after its stop


@dataclass(frozen=True)
class Stop:
    """In which round, and when."""

    round: int
    time: str  # UTC


def last_stop(lines: Iterable[Mapping[str, Any]], before: Stop | None = None) -> Stop | None:
    """Of a party's log: its last process was stopped, and none has been started since. `before`: of earlier lines."""
    for line in lines:
        event, round = line.get("event"), line.get("at_round")
        if event in _STARTS:
            before = None
        elif event == "stopped" and isinstance(round, int):
            before = Stop(round, str(line.get("time", "")))
    return before


def going_on(folder: Path, me: str | None, anew: str | None = None) -> str | None:
    """The command that goes on with a folder's run, or repeats it `anew`; None where it was begun from Python."""
    if not (folder / layout.JOB).is_file():
        return None
    job, out = shlex.quote(str(folder / layout.JOB)), anew or shlex.quote(str(folder))
    if me is not None:
        return f"thinwire party {job} --name {me} --out {out}"
    return f"thinwire train {job} --out {out}" + ("" if anew else " --resume")


T = TypeVar("T", bound=BaseModel)
_Digests = RootModel[dict[str, str]]
_Ledger = RootModel[tuple[LedgerEntry, ...]]
_LARGEST = 1 << 30  # bytes of a file that is read


def is_run(folder: Path) -> bool:
    return (folder / layout.ABOUT).is_file()


def read_openly(folder: Path) -> RunRecord:
    """The same without what is encrypted there: for a page that lies open beside it."""
    record = read_run(folder)
    return replace(record, quality=None, digests={}, coefficients=()) if open_folder(folder).is_encrypted else record


def read_run(folder: Path) -> RunRecord:
    """Refuses what is not a run folder, with the file and what is wrong with it."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: the folder does not exist; use the one that `thinwire train` or `party` printed")
    if not is_run(folder):
        raise BadInput(
            f"{folder} holds no {layout.ABOUT}: it is not a run folder, or its run has not started. Use the folder "
            "that `thinwire train` or `thinwire party` printed"
        )
    about = _model(folder / layout.ABOUT, RunInfo)
    heartbeats: list[Heartbeat] = []
    newest = _optional(folder / layout.HEARTBEAT, Heartbeat)
    for heartbeat in (*_lines(folder / layout.TIMELINE, Heartbeat), *(() if newest is None else (newest,))):
        append_heartbeat(heartbeats, heartbeat)
    files = open_folder(folder)
    summary, ledger = _optional(folder / layout.RESULT, _Summary), _optional(folder / layout.LEDGER, _Ledger)
    digests = _optional(folder / layout.DATA, _Digests, files)
    repeat = going_on(folder, about.me, anew="NEW_FOLDER")
    coefficients = sorted((folder / layout.MODELS).glob("*.coefficients.json"))
    return RunRecord(
        name=folder.resolve().name,
        about=about,
        events=tuple(_lines(folder / layout.EVENTS, Evaluation)),
        ledger=(ledger and ledger.root) or (heartbeats[-1].entries() if heartbeats else ()),
        heartbeats=tuple(heartbeats),
        quality=_optional(folder / layout.QUALITY, Quality, files),
        baselines=() if summary is None else summary.baselines,
        importance=None if summary is None else summary.importance,
        coefficients=tuple(_model(file, CoefficientTable, files) for file in coefficients),
        privacy=summary.privacy if summary is not None else heartbeats[-1].privacy if heartbeats else (),
        state=_state(summary, last_stop(_plain_lines(folder / layout.LOG))),
        repeat=() if repeat is None else (repeat,),
        digests={} if digests is None else digests.root,
        job_text=_text(folder / layout.JOB) if (folder / layout.JOB).is_file() else None,
    )


def _state(summary: _Summary | None, stop: Stop | None) -> RunState:
    if summary is None:
        return "running" if stop is None else "stopped"
    return "stopped" if summary.interrupted else "finished"


def _model(path: Path, kind: type[T], files: Files = PLAIN) -> T:
    try:
        return kind.model_validate(json.loads(_text(path, files)))
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: {_why(error)}") from None


def _optional(path: Path, kind: type[T], files: Files = PLAIN) -> T | None:
    return _model(path, kind, files) if path.is_file() else None


def _lines(path: Path, kind: type[T]) -> Iterator[T]:
    """A last line may be half written."""
    if not path.is_file():
        return
    lines = _text(path).split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield kind.model_validate(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path}, line {number}: {_why(error)}") from None


def _plain_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Of a log: what cannot be read is no matter of a report."""
    for line in _text(path).splitlines() if path.is_file() else ():
        if (found := parse_object(line.encode())) is not None:
            yield found


def _text(path: Path, files: Files = PLAIN) -> str:
    try:
        size = path.stat().st_size
        if path.is_symlink():
            raise BadInput(
                f"{path} is a link; a run writes no links, and the report would show what the link points to"
            )
        if size > _LARGEST:
            raise BadInput(f"{path} has {size} bytes; a run writes no such file")
        return files.read(path).decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not UTF-8; this is not what a run writes") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None


def _why(error: Any) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}; this is not what a run writes"
    return f"not what a run writes ({error})"


_DEPTH = 3
_MOST = 200


def runs_in(given: Path) -> list[Path]:
    """The folder itself where it holds a run, or those that lie in it; refuses a folder without any."""
    if not given.exists():
        raise BadInput(f"{given}: the folder does not exist; use the one that `thinwire train` or `party` printed")
    found = find_runs(given)
    if not found:
        raise BadInput(
            f"{given} holds no run: neither it nor a folder in it has an {layout.ABOUT}, which a run writes when it "
            "starts"
        )
    return found


def find_runs(given: Path, begun: bool = True) -> list[Path]:
    """By name, at most three folders deep and 200 of them; links are not followed."""
    wanted = is_run if begun else _may_be_run
    if wanted(given):
        return [given]
    return list(islice(_folders(given, wanted), _MOST))


def _may_be_run(folder: Path) -> bool:
    """A party that waits for the others has a log, and nothing else to show."""
    return is_run(folder) or (folder / layout.LOG).is_file()


def _folders(folder: Path, wanted: Callable[[Path], bool], depth: int = _DEPTH) -> Iterator[Path]:
    try:
        inside = sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
    except OSError:  # not ours to read
        return
    for one in inside:
        if wanted(one):
            yield one
        elif depth > 1 and not one.name.startswith("."):
            yield from _folders(one, wanted, depth - 1)


# What a run leaves in its folder for its report, and the report itself --------------------------------------------


GENERATOR = '<meta name="generator" content="thinwire">'  # in the head of every page of ours
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
            raise BadInput(f"{path} already exists and is not a report; use a different --out")
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
