"""A probe: the real job under one recipe for a few rounds on the link's clock, and what it says of a whole run.

A probe that does not reach the target is stretched by svfl's own run: where svfl took s rounds to what the probe
reached in r, and S rounds to the target, the probe's recipe is taken to need r * S / s. What a round costs then is
what the second half of the probe's rounds cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, inf
from pathlib import Path
from typing import Any, Literal

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.engine.channel.link import Link
from thinwire.job.job import Job
from thinwire.job.job_file import inline
from thinwire.job.job_loader import load_job
from thinwire.lab.runner import train_to_end
from thinwire.training.result import better
from thinwire.training.train import train

_FEW = 3  # evaluations, the start's included, before anything is extrapolated


@dataclass(frozen=True)
class Aim:
    """A metric and the value to reach."""

    metric: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Aim:
        metric, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not (equals and metric.strip()):
            raise BadInput(f"--target: write METRIC=VALUE, as in --target accuracy=0.92; got {text!r}")
        return cls(metric.strip(), number)

    def is_met(self, value: float) -> bool:
        return better(self.metric) * value >= better(self.metric) * self.value


@dataclass(frozen=True)
class ProbePoint:
    """An evaluation: after so many rounds, the metric, the bytes sent and the seconds on the link."""

    round: int
    value: float
    up: float
    down: float
    seconds: float

    @classmethod
    def of(cls, event: Mapping[str, Any], metric: str, handling_seconds: float) -> ProbePoint:
        """`handling_seconds` a round come on top of the link's clock; test rows where there are any."""
        scores = event.get("validation") or event["test"] or event["train"]
        seconds = event["link_seconds"] + event["round"] * handling_seconds
        return cls(event["round"], scores[metric], event["bytes"]["up"], event["bytes"]["down"], seconds)


@dataclass(frozen=True)
class Prediction:
    """What it takes to reach the target."""

    rounds: int
    up: float  # bytes
    down: float
    seconds: float
    extrapolated: bool  # or the probe reached it

    @property
    def total(self) -> float:
        return self.up + self.down


def best_value(points: Sequence[ProbePoint], metric: str) -> float:
    """The best that was seen."""
    return better(metric) * max(better(metric) * point.value for point in points)


def predict_cost(points: Sequence[ProbePoint], aim: Aim, pace: Sequence[ProbePoint]) -> Prediction | None:
    """From a probe's evaluations, with svfl's as the pace; None where nothing can be said."""
    reached = next((point for point in points if aim.is_met(point.value)), None)
    if reached is not None:
        return Prediction(reached.round, reached.up, reached.down, reached.seconds, extrapolated=False)
    stretch = _stretch(points, aim, pace)
    if stretch is None:
        return None
    last, middle = points[-1], points[len(points) // 2]
    rounds = ceil(last.round * stretch)
    more = (rounds - last.round) / (last.round - middle.round)
    return Prediction(
        rounds,
        up=last.up + more * (last.up - middle.up),
        down=last.down + more * (last.down - middle.down),
        seconds=last.seconds + more * (last.seconds - middle.seconds),
        extrapolated=True,
    )


def _stretch(points: Sequence[ProbePoint], aim: Aim, pace: Sequence[ProbePoint]) -> float | None:
    """How many times its own rounds a probe would need, by svfl's pace."""
    if len(points) < _FEW:
        return None
    here = _round_at(Aim(aim.metric, best_value(points, aim.metric)), pace)
    there = _round_at(aim, pace)
    return there / here if here and there else None


def _round_at(aim: Aim, points: Sequence[ProbePoint]) -> float | None:
    """When these points first had the value, between two of them by a straight line."""
    best: ProbePoint | None = None
    for point in points:
        if aim.is_met(point.value):
            if best is None:
                return float(point.round)
            share = (aim.value - best.value) / (point.value - best.value)
            return best.round + share * (point.round - best.round)
        if best is None or Aim(aim.metric, best.value).is_met(point.value):
            best = point
    return None


# A probe: the real job under one recipe, for a few rounds, on the link's clock ------------------------------------


Ended = Literal["reached", "rounds", "pruned", "stopped", "failed"]

_EVALUATIONS = 50  # of a whole probe
_PATIENCE = 8  # evaluations before a probe is given up for what it promises
_HOPELESS = 2.0  # times the best seconds so far


@dataclass(frozen=True)
class ProbeSettings:
    """What all probes of a job share."""

    job: Path
    settings: tuple[str, ...]  # as --set takes them
    seed: int
    rounds: int  # maximum per probe
    link: Link
    metric: str
    aim: Aim | None = None  # None: to the last round
    pace: tuple[ProbePoint, ...] = ()  # svfl's evaluations
    handling_seconds: Mapping[str, float] = field(default_factory=dict)  # a round, by method, beyond the link's clock
    beside: Mapping[str, Any] = field(default_factory=dict)  # of every recipe: what the job asks of any method

    def build_job(self, recipe: Mapping[str, Any]) -> Job:
        """The job under this recipe, without limits of its own."""
        job = load_job(self.job, [*self.settings, f"recipe={inline(recipe)}", f"job.seed={self.seed}"])
        job.link = self.link
        job.target = None if self.aim is None else (self.aim.metric, self.aim.value)
        job.eval_every = max(2, self.rounds // _EVALUATIONS)  # nothing is sent ahead of an evaluation
        job.stop, job.diagnostics = True, False
        job.baselines = job.importance = job.column_importance = False
        job.byte_budget = job.link_seconds_budget = None
        return job


@dataclass(frozen=True)
class Probe:
    """One recipe to try."""

    ground: ProbeSettings
    recipe: Mapping[str, Any]  # as a job file says it
    limit_seconds: float = inf  # the best so far: what cannot be below it is given up

    def verdict(self, points: list[ProbePoint]) -> Ended | None:
        """Why the probe ends here; None: it goes on."""
        last, aim = points[-1], self.ground.aim
        if aim is not None and aim.is_met(last.value):
            return "reached"
        if last.round >= self.ground.rounds:
            return "rounds"
        return "pruned" if self._hopeless(points) else None

    def _hopeless(self, points: list[ProbePoint]) -> bool:
        if points[-1].seconds > self.limit_seconds:
            return True
        if len(points) < _PATIENCE or self.ground.aim is None:
            return False
        promised = predict_cost(points, self.ground.aim, self.ground.pace)
        return promised is not None and promised.seconds > _HOPELESS * self.limit_seconds


@dataclass(frozen=True)
class ProbeResult:
    """What a probe gave."""

    recipe: Mapping[str, Any]
    seed: int
    points: tuple[ProbePoint, ...]
    ended: Ended
    prediction: Prediction | None = None
    error: str | None = None

    @property
    def seconds(self) -> float:
        """To the target; infinite where nothing can be said."""
        return inf if self.prediction is None else self.prediction.seconds


class _Enough(Exception):
    """Ends a run from inside one of its callbacks."""

    def __init__(self, why: Ended) -> None:
        self.why = why


def run_probe(probe: Probe, stopped: Callable[[], bool] = lambda: False) -> ProbeResult:
    """Runs the probe; a recipe that fails says why. `stopped` is asked after every round."""
    ground = probe.ground
    handling = ground.handling_seconds.get(probe.recipe["method"], 0.0)
    points: list[ProbePoint] = []

    def look(event: dict[str, Any]) -> None:
        points.append(ProbePoint.of(event, ground.metric, handling))
        why = probe.verdict(points)
        if why is not None:
            raise _Enough(why)

    def after_round(_: int) -> None:
        if stopped():
            raise _Enough("stopped")

    ended: Ended = "rounds"
    try:
        result = train(ground.build_job(probe.recipe), callbacks=[look], on_round=after_round)
        ended = "stopped" if result.interrupted else ended
    except _Enough as enough:
        ended = enough.why
    except ThinwireError as error:
        return ProbeResult(probe.recipe, ground.seed, tuple(points), "failed", error=str(error))
    said = None if ground.aim is None else predict_cost(points, ground.aim, ground.pace)
    return ProbeResult(probe.recipe, ground.seed, tuple(points), ended, said)


def time_rounds(ground: ProbeSettings, recipe: Mapping[str, Any], rounds: int, every: int) -> list[dict[str, Any]]:
    """Evaluations of a few rounds over a link that costs nothing, with the time that computing really takes."""
    job = replace(ground, link=Link(), aim=None).build_job(recipe)
    job.eval_every = every
    events: list[dict[str, Any]] = []

    def look(event: dict[str, Any]) -> None:
        events.append(event)
        if event["round"] >= rounds:
            raise _Enough("rounds")

    with suppress(_Enough):
        train_to_end(job, [look])
    return events
