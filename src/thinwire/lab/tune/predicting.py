"""What a probe says of a whole run: rounds, bytes and seconds to the target, seen or extrapolated.

A probe that does not reach the target is stretched by svfl's own run: where svfl took s rounds to what the probe
reached in r, and S rounds to the target, the probe's recipe is taken to need r * S / s. What a round costs then is
what the second half of the probe's rounds cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.training.result import better

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

    def met(self, value: float) -> bool:
        return better(self.metric) * value >= better(self.metric) * self.value


@dataclass(frozen=True)
class Point:
    """An evaluation: after so many rounds, the metric, the bytes sent and the seconds on the link."""

    round: int
    value: float
    up: float
    down: float
    seconds: float

    @classmethod
    def of(cls, event: Mapping[str, Any], metric: str, handling_seconds: float) -> Point:
        """`handling_seconds` a round come on top of the link's clock; test rows where there are any."""
        scores = event["test"] or event["train"]
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


def best_value(points: Sequence[Point], metric: str) -> float:
    """The best that was seen."""
    return better(metric) * max(better(metric) * point.value for point in points)


def predicted(points: Sequence[Point], aim: Aim, pace: Sequence[Point]) -> Prediction | None:
    """From a probe's evaluations, with svfl's as the pace; None where nothing can be said."""
    reached = next((point for point in points if aim.met(point.value)), None)
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


def _stretch(points: Sequence[Point], aim: Aim, pace: Sequence[Point]) -> float | None:
    """How many times its own rounds a probe would need, by svfl's pace."""
    if len(points) < _FEW:
        return None
    here = _round_at(Aim(aim.metric, best_value(points, aim.metric)), pace)
    there = _round_at(aim, pace)
    return there / here if here and there else None


def _round_at(aim: Aim, points: Sequence[Point]) -> float | None:
    """When these points first had the value, between two of them by a straight line."""
    best: Point | None = None
    for point in points:
        if aim.met(point.value):
            if best is None:
                return float(point.round)
            share = (aim.value - best.value) / (point.value - best.value)
            return best.round + share * (point.round - best.round)
        if best is None or Aim(aim.metric, best.value).met(point.value):
            best = point
    return None
