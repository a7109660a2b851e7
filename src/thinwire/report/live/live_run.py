"""Runs' folders, read again and again as they grow; and all runs of one page."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from thinwire.base.errors import BadInput
from thinwire.report.folder import Stop, find_runs, going_on, last_stop
from thinwire.report.record import Evaluation, Heartbeat, RunInfo, RunRecord, append_heartbeat
from thinwire.report.summary import collect_seeds
from thinwire.storage import layout
from thinwire.storage.json_file import LineFollower, read_object

LiveState = Literal["waiting", "running", "silent", "finished", "stopped"]
T = TypeVar("T", bound=BaseModel)
_LOG_LINES = 200
_MOST_EVENTS = 20_000
_SILENT_SECONDS = 30.0


class LiveRun:
    """What is known so far; `look` reads what is new."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.log: deque[dict[str, Any]] = deque(maxlen=_LOG_LINES)
        self._about: RunInfo | None = None
        self._events: list[Evaluation] = []
        self._heartbeats: list[Heartbeat] = []
        self._heartbeat: Heartbeat | None = None
        self._result: dict[str, Any] | None = None
        self._stop: Stop | None = None
        self._followers = {part: LineFollower(folder / part) for part in (layout.EVENTS, layout.TIMELINE, layout.LOG)}

    def look(self) -> None:
        self._about = _model(RunInfo, read_object(self.folder / layout.ABOUT))
        self._heartbeat = _model(Heartbeat, read_object(self.folder / layout.HEARTBEAT))
        self._result = read_object(self.folder / layout.RESULT)
        for part, take in (
            (layout.EVENTS, self._take_events),
            (layout.TIMELINE, self._take_heartbeats),
            (layout.LOG, self._take_log),
        ):
            anew, lines = self._followers[part].look()
            if anew or lines:
                take(anew, lines)

    @property
    def about(self) -> RunInfo | None:
        """For the list of all runs, of which few are looked at."""
        if self._about is None:
            self._about = _model(RunInfo, read_object(self.folder / layout.ABOUT))
        return self._about

    def is_live(self, now: datetime | None = None) -> bool:
        """Whether a process is at it, as far as its signs of life tell."""
        silent = self.silent_seconds(now)
        return self.state(now) in ("waiting", "running") and (silent is None or silent <= _SILENT_SECONDS)

    def state(self, now: datetime | None = None) -> LiveState:
        """By its result, else by its log, else by its last sign of life."""
        if self._result is not None:
            return "stopped" if self._result.get("interrupted") else "finished"
        if self._stop is not None:
            return "stopped"
        if self._about is None:
            return "waiting"
        silent = self.silent_seconds(now)
        return "silent" if silent is not None and silent > _SILENT_SECONDS else "running"

    def going_on(self) -> str:
        """How a run that was stopped goes on; empty for any other, and where nobody can tell."""
        if self.state() != "stopped":
            return ""
        me = next((str(line["party"]) for line in self.log if "party" in line), None)
        return going_on(self.folder, me) or ""

    def silent_seconds(self, now: datetime | None = None) -> float | None:
        """Since the last sign of life."""
        times = [self._heartbeat.time] if self._heartbeat is not None else []
        times += [str(self.log[-1].get("time"))] if self.log else []
        times += [self._about.started] if self._about is not None and not times else []
        seen = [moment for text in times if (moment := _moment(text)) is not None]
        return None if not seen else max(0.0, ((now or datetime.now(UTC)) - max(seen)).total_seconds())

    def record(self, name: str) -> RunRecord | None:
        """As for a report; None before all parties are there."""
        if self._about is None:
            return None
        heartbeats = list(self._heartbeats)
        if self._heartbeat is not None:
            append_heartbeat(heartbeats, self._heartbeat)
        last = heartbeats[-1] if heartbeats else None
        privacy = (self._result or {}).get("privacy") or (() if last is None else last.privacy)
        return RunRecord(
            name=name,
            about=self._about,
            events=tuple(self._events),
            ledger=() if last is None else last.entries(),
            heartbeats=tuple(heartbeats),
            privacy=tuple(one for one in privacy if isinstance(one, dict)),
            state="stopped" if self.state() == "stopped" else "running" if self._result is None else "finished",
        )

    def _take_events(self, anew: bool, lines: list[dict[str, Any]]) -> None:
        if anew:
            self._events.clear()
        self._events += [event for line in lines if (event := _model(Evaluation, line)) is not None]
        del self._events[:-_MOST_EVENTS]

    def _take_heartbeats(self, anew: bool, lines: list[dict[str, Any]]) -> None:
        if anew:
            self._heartbeats.clear()
        for line in lines:
            if (heartbeat := _model(Heartbeat, line)) is not None:
                append_heartbeat(self._heartbeats, heartbeat)

    def _take_log(self, anew: bool, lines: list[dict[str, Any]]) -> None:
        if anew:
            self.log.clear()
            self._stop = None
        self.log.extend(lines)
        self._stop = last_stop(lines, self._stop)


def _model(kind: type[T], data: dict[str, Any] | None) -> T | None:
    """What a run writes; None for anything else, which a page must survive."""
    if data is None:
        return None
    try:
        return kind.model_validate(data)
    except ValidationError:
        return None


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


_SHOWN = 4  # kinds of runs, unless some are chosen
MOST_SHOWN = 12
_LOOK_SECONDS = 0.4
_FIND_SECONDS = 2.0


class Board:
    """Looks at the runs at most every so often, whoever asks."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise BadInput(f"{root}: the folder does not exist; use a run folder, or one that contains runs")
        self.root = root
        self.runs: dict[str, LiveRun] = {}  # by key, by name
        self._lock = Lock()
        self._looked: dict[str, float] = {}
        self._found = -_FIND_SECONDS

    def select_runs(self, asked: Sequence[str]) -> list[tuple[str, LiveRun]]:
        """Those that were asked for and exist, or the newest kinds; freshly looked at."""
        with self._lock:
            self._find()
            chosen = [key for key in dict.fromkeys(asked) if key in self.runs][:MOST_SHOWN]
            chosen = chosen or self._find_newest()
            for key in chosen:
                self._look(key)
            return [(key, self.runs[key]) for key in chosen]

    def list_kinds(self) -> list[list[str]]:
        """Keys; runs that differ in their seed alone together."""
        return collect_seeds(self.runs, lambda key: self.runs[key].about)

    def find_baseline(self, key: str) -> str | None:
        """Of the runs on the same rows: the first of svfl, or else the first that began."""
        known = [(name, run.about) for name, run in self.runs.items() if run.about is not None]
        about = dict(known).get(key)
        if about is None:
            return None
        alike = [(name, one) for name, one in known if _on_same_rows(one, about)]
        alike.sort(key=lambda pair: (pair[1].method != "svfl", pair[1].started))
        return alike[0][0]

    def _find_newest(self) -> list[str]:
        """All seeds of the kinds of runs that began last."""
        kinds = sorted(self.list_kinds(), key=lambda keys: max(_began(self.runs[key].folder) for key in keys))
        newest = [key for keys in reversed(kinds[-_SHOWN:]) for key in keys][:MOST_SHOWN]
        return [key for key in self.runs if key in newest]

    def _look(self, key: str) -> None:
        if monotonic() - self._looked.get(key, -_LOOK_SECONDS) >= _LOOK_SECONDS:
            self.runs[key].look()
            self._looked[key] = monotonic()

    def _find(self) -> None:
        if monotonic() - self._found < _FIND_SECONDS:
            return
        folders = {_key(folder, self.root): folder for folder in find_runs(self.root, begun=False)}
        self.runs = {
            key: self.runs.get(key) or LiveRun(folder, _name(folder, self.root)) for key, folder in folders.items()
        }
        self._found = monotonic()


def _on_same_rows(one: RunInfo, other: RunInfo) -> bool:
    names = ("me", "label_party", "rows", "test_rows", "metrics")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _name(folder: Path, root: Path) -> str:
    return folder.resolve().name if folder == root else str(folder.relative_to(root))


def _key(folder: Path, root: Path) -> str:
    return hashlib.sha256(str(folder.relative_to(root)).encode()).hexdigest()[:12]


def _began(folder: Path) -> float:
    """When it was last begun, as far as the disk knows."""
    times = []
    for name in (layout.ABOUT, layout.LOG):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
