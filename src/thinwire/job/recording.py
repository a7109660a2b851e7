"""What a simulated run writes down for those who look on, and for its report."""

from __future__ import annotations

from functools import partial
from typing import Any

from thinwire.job.job import Job
from thinwire.job.privacy_plan import is_noisy
from thinwire.job.pulses import Pulses
from thinwire.job.quality import quality_of
from thinwire.job.result import Result
from thinwire.job.run_info import describe_job
from thinwire.job.simulator import SimulatedParties
from thinwire.party import Evaluated
from thinwire.report.keeping import keep_about, keep_pulse, keep_result
from thinwire.report.record import Entry, Event, Quality, RunRecord
from thinwire.runs import RunDirectory

__all__ = ["Recording"]


class Recording:
    """Of all parties of one process; on disk too where the run has a folder."""

    def __init__(self, job: Job, parties: SimulatedParties, directory: RunDirectory | None) -> None:
        self._job = job
        self._parties = parties
        self._folder = None if directory is None else directory.folder
        self._about = describe_job(job, parties.widths, parties.batches)
        self._tested: Evaluated | None = None  # the last evaluation
        self._pulses = Pulses(
            {program.seat.me: program.seat.stopwatch for program in parties.programs},
            parties.simulation.ledger,
            parties.batches.rounds,
            None if self._folder is None else partial(keep_pulse, self._folder),
            self._spent_so_far,
            "real" if parties.simulation.clock is None else "link",
        )

    def begin(self) -> None:
        """Before the first round, or the first after a resumption."""
        if self._folder is not None:
            keep_about(self._folder, self._about)
        self._pulses.begin(self._parties.label.start)

    def round(self, done: int) -> None:
        self._pulses.round(done)

    def evaluated(self, evaluated: Evaluated) -> None:
        self._tested = evaluated

    def privacy(self) -> list[dict[str, Any]]:
        return [spending.ledger.spent() for spending in self._parties.spending.values()]

    def _spent_so_far(self) -> list[dict[str, Any]]:
        """What changes from round to round; nothing does where nothing is proven."""
        if not is_noisy(self._job.recipe):
            return []
        return [{key: one[key] for key in ("party", "delta", "observers", "budget")} for one in self.privacy()]

    def ended(self, history: list[dict[str, Any]], interrupted: bool) -> RunRecord:
        self._pulses.look(self._parties.label.start)
        return RunRecord(
            name=self._about.method if self._folder is None else self._folder.resolve().name,
            about=self._about,
            events=tuple(Event.model_validate(event) for event in history),
            ledger=tuple(Entry(**entry) for entry in self._parties.simulation.ledger.entries()),
            pulses=tuple(self._pulses.lasting),
            quality=self._quality(),
            privacy=tuple(self.privacy()),
            state="stopped" if interrupted else "finished",
        )

    def keep(self, result: Result) -> None:
        """The summary, the quality and the report, where the run has a folder."""
        if self._folder is not None and result.record is not None:
            keep_result(self._folder, result.summary(), result.record.quality)

    def _quality(self) -> Quality | None:
        if self._tested is None or self._tested.outputs is None:
            return None
        return quality_of(self._tested.outputs, self._job.label_party, self._tested.round)
