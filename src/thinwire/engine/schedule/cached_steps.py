"""Learn from cached exchanges between two exchanges (CELU-VFL; with capacity 1 and no weights, FedBCD).

The workset is the last W exchanges, each used at most R times; it knows rounds and uses, the party keeps the tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from thinwire.base.errors import BadParameter
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Round
from thinwire.engine.compress.parameters import check_choice, check_number, check_whole
from thinwire.engine.schedule.plan import Action, Await, Local, Plan, Ready, Send
from thinwire.engine.schedule.step_controller import MOST_LEVEL, BatchOutcome, Pace, StepController


@dataclass(slots=True)
class _Entry:
    round: Round
    uses: int = 1  # the exchange's own
    last_draw: int = -1


class Workset:
    """Draws cached exchanges by one of three rules.

    "round_robin": an entry is not drawn again within the next W - 1 draws; of those that may be, the one
    drawn longest ago, of these the oldest. "consecutive": the newest. "random": any, by the seed.

    Args:
        capacity: exchanges that are kept.
        reuse: draws per exchange, the one of its own round included.
        sampling: "round_robin", "consecutive" or "random".
        seed: of "random".

    Examples:
        >>> workset = tw.schedule.Workset(capacity=2, reuse=3, sampling="consecutive", seed=0)
        >>> workset.insert(0)
        >>> workset.draw()
        0
    """

    def __init__(self, capacity: int, reuse: int, sampling: str, seed: int) -> None:
        self._capacity = capacity
        self._reuse = reuse
        self._sampling = sampling
        self._seed = seed
        self._entries: list[_Entry] = []
        self._draws = 0
        self._bubbles = 0
        self._left_with: Counter[int] = Counter()

    def insert(self, round: Round) -> None:
        """Takes in the exchange of this round; drops those inserted before round - W + 1."""
        self._drop([entry for entry in self._entries if entry.round < round - self._capacity + 1])
        if self._reuse > 1:
            self._entries.append(_Entry(round))

    def draw(self) -> Round | None:
        """The exchange to use now; None (a bubble) where none may be."""
        free = [entry for entry in self._entries if self._may_be_drawn(entry)]
        if not free:
            self._bubbles += 1
            return None
        entry = self._chosen(free)
        entry.last_draw = self._draws
        entry.uses += 1
        self._draws += 1
        if entry.uses >= self._reuse:
            self._drop([entry])
        return entry.round

    def _may_be_drawn(self, entry: _Entry) -> bool:
        if self._sampling != "round_robin" or entry.last_draw < 0:
            return True
        return self._draws - entry.last_draw > self._capacity - 1

    def _chosen(self, free: list[_Entry]) -> _Entry:
        if self._sampling == "consecutive":
            return free[-1]
        if self._sampling == "random":
            return free[derive_seed(self._seed, "workset", self._draws) % len(free)]
        return min(free, key=lambda entry: (entry.last_draw, entry.round))

    def _drop(self, entries: list[_Entry]) -> None:
        for entry in entries:
            self._left_with[entry.uses] += 1
            self._entries.remove(entry)

    def rounds(self) -> set[Round]:
        return {entry.round for entry in self._entries}

    def diagnostics(self) -> dict[str, Any]:
        return {
            "draws": self._draws,
            "bubbles": self._bubbles,
            "uses": {str(uses): count for uses, count in sorted(self._left_with.items())},
        }

    def state(self) -> dict[str, Any]:
        return {
            "entries": [asdict(entry) for entry in self._entries],
            "draws": self._draws,
            "bubbles": self._bubbles,
            "left_with": {str(uses): count for uses, count in self._left_with.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        self._entries = [_Entry(**entry) for entry in state["entries"]]
        self._draws = state["draws"]
        self._bubbles = state["bubbles"]
        self._left_with = Counter({int(uses): count for uses, count in state["left_with"].items()})


class Overlap(Enum):
    """What a feature party does while its embedding travels.

    Examples:
        >>> tw.schedule.Overlap("none").name
        'NONE'
    """

    NONE = "none"  # waits
    DETERMINISTIC = "deterministic"  # takes this round's local steps, then waits; repeatable
    FILLING = "filling"  # takes local steps until the answer comes; faster, not repeatable
    AHEAD = "ahead"  # sends the next one too, takes this round's local steps, then waits; repeatable


@dataclass(frozen=True, slots=True)
class CachedSteps:
    """Local steps on cached exchanges (CELU-VFL): each of the last `capacity` exchanges serves `reuse` updates.

    Args:
        capacity: exchanges in the workset.
        reuse: updates per exchange, the one of its own round included.
        xi_degrees: rows whose cached values point further away than this get weight 0, the others the cosine; None:
            no weights.
        sampling: "round_robin", "consecutive" or "random".
        overlap: what a feature party does while its embedding travels.
        local_steps: per round; reuse - 1 unless given, fewer where nothing may be drawn.
        rise_limit: halve the steps where the training loss stays above this multiple of its lowest for two
            evaluations.
        worth_bits: take no local steps where a sent value costs fewer bits than this, nor before the first
            evaluation.
        rows_a_use: at most one update per exchange for so many rows, because a model soon overfits few rows.
        levels: how often messages get finer and steps are halved, each time the training loss stalls.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> tw.schedule.CachedSteps(capacity=5, reuse=4).steps
        3
    """

    capacity: int
    reuse: int
    xi_degrees: float | None = 60.0
    sampling: str = "round_robin"
    overlap: Overlap = Overlap.NONE
    local_steps: int | None = None
    rise_limit: float | None = None
    worth_bits: float | None = None
    rows_a_use: int | None = None
    levels: int = field(default=0, metadata={"newer": True})

    def __post_init__(self) -> None:
        check_whole(self, "capacity", 1, 10_000)
        check_whole(self, "reuse", 1, 10_000)
        check_choice(self, "sampling", ("round_robin", "consecutive", "random"))
        check_number(self, "xi_degrees", above=-1e-9, up_to=180, optional=True)
        check_whole(self, "local_steps", 0, 10_000, optional=True)
        check_number(self, "rise_limit", above=1, up_to=1e6, optional=True)
        check_number(self, "worth_bits", above=0, up_to=64, optional=True)
        check_whole(self, "rows_a_use", 1, 2**31, optional=True)
        check_whole(self, "levels", 0, MOST_LEVEL)
        if not isinstance(self.overlap, Overlap):
            raise BadParameter.about("CachedSteps", "overlap", f"must be an Overlap, got {self.overlap!r}")

    @property
    def steps(self) -> int:
        return self.reuse - 1 if self.local_steps is None else self.local_steps

    def among(self, rows: int) -> CachedSteps:
        """The same for a job of so many rows."""
        if self.rows_a_use is None:
            return self
        return replace(self, reuse=min(self.reuse, max(1, rows // self.rows_a_use)))

    def open(self, seed: int, rows: int) -> Plan:
        return _CachedPlan(self.among(rows), seed)


class _CachedPlan(Plan):
    def __init__(self, schedule: CachedSteps, seed: int) -> None:
        self._schedule = schedule
        self._controller = StepController(schedule.steps, schedule.rise_limit, schedule.worth_bits, schedule.levels)
        self._workset = Workset(schedule.capacity, schedule.reuse, schedule.sampling, seed)

    def feature_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Send(round)
        if self._schedule.overlap is Overlap.AHEAD:
            yield Send(round + 1)
        if self._schedule.overlap in (Overlap.DETERMINISTIC, Overlap.AHEAD):
            yield from self._steps()
        elif self._schedule.overlap is Overlap.FILLING:
            yield from self._steps_until(ready)
        yield from self._steps_while(away)
        yield Await(round)
        self._workset.insert(round)
        if self._schedule.overlap is Overlap.NONE:
            yield from self._steps()

    def label_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield from self._steps_while(away)
        yield Await(round)
        self._workset.insert(round)
        yield from self._steps_until(ready) if self._schedule.overlap is Overlap.FILLING else self._steps()

    def _steps(self) -> Iterator[Action]:
        left = iter(range(self.pace.steps))
        return self._steps_while(lambda: next(left, None) is not None)

    def _steps_until(self, ready: Ready) -> Iterator[Action]:
        return self._steps_while(lambda: not ready())

    def _steps_while(self, idle: Ready) -> Iterator[Action]:
        while idle():
            drawn = self._workset.draw()
            if drawn is None:
                return
            yield Local(drawn)

    def usable_rounds(self) -> set[Round]:
        return self._workset.rounds()

    def observe_batch(self, fresh: BatchOutcome) -> None:
        self._controller.observe_batch(fresh)

    @property
    def pace(self) -> Pace:
        return self._controller.pace

    @pace.setter
    def pace(self, pace: Pace) -> None:
        self._controller.pace = pace

    def decide_pace(self, done: Round, is_best: bool | None = None, share: float = 0.0) -> Pace:
        return self._controller.decide_pace(done, is_best, share)

    def diagnostics(self) -> dict[str, Any]:
        return {**self._workset.diagnostics(), **self._controller.diagnostics()}

    def state(self) -> dict[str, Any]:
        return {**self._workset.state(), "pace": self._controller.state()}

    def load(self, state: dict[str, Any]) -> None:
        self._workset.load(state)
        self._controller.load(state["pace"])
