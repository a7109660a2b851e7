"""What a run writes down for those who look on, and for its report: of all simulated parties, or of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from thinwire.base.types import PartyName
from thinwire.engine.channel.base import Stopwatch
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.recipe import Recipe
from thinwire.job.privacy_plan import is_noisy
from thinwire.report.keeping import keep_about, keep_heartbeat, keep_result
from thinwire.report.record import Evaluation, LedgerEntry, Quality, RunInfo, RunRecord
from thinwire.training.heartbeat import HeartbeatMonitor


class RunRecorder:
    """Of the parties of one process; on disk too where the run has a folder."""

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
        self._ledger = ledger
        write = None if folder is None else partial(keep_heartbeat, folder)
        self._heartbeats = HeartbeatMonitor(watches, ledger, info.rounds, write, spending, clock)

    def begin(self, round: int) -> None:
        """Before the first round, or the first after a resumption."""
        if self._folder is not None:
            keep_about(self._folder, self._info)
        self._heartbeats.begin(round)

    def round(self, done: int) -> None:
        self._heartbeats.round(done)

    def end(self, done: int) -> None:
        self._heartbeats.look(done)

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
            heartbeats=tuple(self._heartbeats.lasting),
            quality=quality,
            privacy=tuple(privacy),
            state="stopped" if interrupted else "finished",
        )


def list_spending(recipe: Recipe, spent: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of the privacy ledgers what changes from round to round; nothing does where nothing is proven."""
    if not is_noisy(recipe):
        return []
    return [{key: one[key] for key in ("party", "delta", "observers", "budget")} for one in spent()]
