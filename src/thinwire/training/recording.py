"""What a run writes down for those who look on, and for its report: heartbeats, evaluations, the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from thinwire.base.types import PartyName, Round
from thinwire.engine.channel.base import ACTIVITIES, Activity, Stopwatch, Stretch
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.recipe import Recipe
from thinwire.report.folder import keep_about, keep_heartbeat, keep_result
from thinwire.report.record import (
    Evaluation,
    Heartbeat,
    LedgerEntry,
    PartyTime,
    Quality,
    RunInfo,
    RunRecord,
    append_heartbeat,
)

_SECONDS = 0.25  # between two, at first
_SELDOM_SECONDS = 2.0  # at most
_SHARE = 0.02  # of the time so far, up to that
_COST = 100  # times what a look costs: it takes a hundredth of the time
_MOST_STRETCHES = 60  # of a party's round
_LEAST = 0.004  # of a round, to be seen


class RunRecorder:
    """Of the parties of one process; on disk too where the run has a folder.

    It looks at the watches and the ledger now and then. Heartbeats that last grow further apart: their number grows
    with the logarithm of the run's length.
    """

    def __init__(
        self,
        folder: Path | None,
        info: RunInfo,
        watches: Mapping[PartyName, Stopwatch],
        ledger: Ledger,
        spending: Callable[[], list[dict[str, Any]]],
        clock: Literal["link", "real"] = "real",
    ) -> None:
        self._folder = folder
        self._info = info
        self._watches = watches
        self._ledger = ledger
        self._spending = spending
        self._clock: Literal["link", "real"] = clock
        self._lasting: list[Heartbeat] = []
        self._before = {name: dict(watch.seconds) for name, watch in watches.items()}

    def begin(self, round: Round) -> None:
        """Before the first round that is still to be made; not 0 where a run goes on."""
        if self._folder is not None:
            keep_about(self._folder, self._info)
        self._since = round
        self._began = monotonic()
        self._due = self._lasting_due = self._began + _SECONDS

    def round(self, done: Round) -> None:
        """After every round; looks seldom. The last one is looked at when the run ends."""
        now = monotonic()
        if now >= self._due and done < self._info.rounds:
            self.look(done, lasting=now >= self._lasting_due)

    def look(self, done: Round, lasting: bool = True) -> None:
        """Where the time and the bytes go, for those who look on; once more at the end of a run."""
        began = monotonic()
        spent = {name: dict(watch.seconds) for name, watch in self._watches.items()}
        heartbeat = Heartbeat(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            since=self._since,
            round=done,
            rounds=self._info.rounds,
            seconds=_rounded(began - self._began),
            clock=self._clock,
            parties=self._parties(done - 1, spent),
            traffic=tuple(tuple(entry.values()) for entry in self._ledger.entries()),
            privacy=tuple(self._spending()),
        )
        if self._folder is not None:
            keep_heartbeat(self._folder, heartbeat, lasting)
        now = monotonic()
        some = max(_SECONDS, _SHARE * (now - self._began))
        self._due = now + max(min(some, _SELDOM_SECONDS), _COST * (now - began))
        if lasting:
            append_heartbeat(self._lasting, heartbeat)
            self._since, self._before, self._lasting_due = done, spent, now + some

    def _parties(self, round: Round, spent: Mapping[PartyName, dict[Activity, float]]) -> dict[str, PartyTime]:
        stretches = {name: watch.stretches() for name, watch in self._watches.items()}
        window = _window(stretches, round)
        found = {}
        for name, now in spent.items():
            before = self._before[name]
            since: dict[str, float] = {
                what: _rounded(now[what] - before[what]) for what in ACTIVITIES if now[what] > before[what]
            }
            found[name] = PartyTime(spent=since, stretches=_within(stretches[name], *window))
        return found

    def keep(self, summary: Mapping[str, Any] | None, quality: Quality | None) -> None:
        """At the end; `summary` is None where the run has written its result itself."""
        if self._folder is not None:
            keep_result(self._folder, summary, quality)

    def record(
        self,
        evaluations: Sequence[Evaluation],
        quality: Quality | None,
        privacy: Sequence[dict[str, Any]],
        interrupted: bool,
    ) -> RunRecord:
        return RunRecord(
            name=self._info.method if self._folder is None else self._folder.resolve().name,
            about=self._info,
            events=tuple(evaluations),
            ledger=tuple(LedgerEntry(**entry) for entry in self._ledger.entries()),
            heartbeats=tuple(self._lasting),
            quality=quality,
            privacy=tuple(privacy),
            state="stopped" if interrupted else "finished",
        )


def list_spending(recipe: Recipe, spent: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of the privacy ledgers what changes from round to round; nothing does where nothing is proven."""
    if not recipe.is_noisy:
        return []
    return [{key: one[key] for key in ("party", "delta", "observers", "budget")} for one in spent()]


def _window(stretches: Mapping[PartyName, list[Stretch]], round: Round) -> tuple[float, float]:
    """From when to when this round was, for whoever was in it."""
    mine = [one for lane in stretches.values() for one in lane if one[3] == round]
    return (min(one[1] for one in mine), max(one[2] for one in mine)) if mine else (0.0, 0.0)


def _within(lane: list[Stretch], first: float, last: float) -> tuple[tuple[str, float, float], ...]:
    """What of it lies there, the moment at which the round began as 0; what is too short to be seen joins or goes."""
    least = _LEAST * (last - first)
    kept: list[tuple[str, float, float]] = []
    places: dict[str, int] = {}  # where each activity's last stretch is
    for what, began, ended, _ in lane:
        start, end = max(began, first) - first, min(ended, last) - first
        before = places.get(what)
        if before is not None and start - kept[before][2] <= least:
            kept[before] = (what, kept[before][1], _rounded(end))
        elif end - start > least:
            places[what] = len(kept)
            kept.append((what, _rounded(start), _rounded(end)))
    return tuple(kept[-_MOST_STRETCHES:])


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
