"""Parameters that change with the round: frozen values, so that they enter a recipe's digest.

`Diminishing` and `DiminishingError` are the rules of C-VFL (Castiglia et al., 2022, Theorem 4.4 and
Table 1) under which compression without error feedback still converges: the message's squared error
falls as E_t = c / sqrt(t + 1). A compressor with an error rule turns E_t into its own parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from numbers import Real
from typing import TypeAlias

from thinwire.base.errors import BadParameter


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """How a parameter and the squared error of a message belong together."""

    error_of: Callable[[float], float]
    value_for: Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Milestones:
    """A value from each given round on: ``Milestones((0, 2), (100, 4))``."""

    steps: tuple[tuple[int, float], ...]

    def __init__(self, *steps: tuple[int, float]) -> None:
        for step in steps:
            if not (isinstance(step, tuple) and len(step) == 2 and all(isinstance(part, Real) for part in step)):
                raise BadParameter(f"Milestones: {step!r} is not a pair (round, value); write (0, 2)")
        rounds = [first for first, _ in steps]
        if not steps or rounds[0] != 0 or rounds != sorted(set(rounds)):
            raise BadParameter(
                f"Milestones: the rounds must rise from 0, got {rounds}; write Milestones((0, 2), (100, 4))"
            )
        object.__setattr__(self, "steps", tuple(steps))

    def at(self, round: int) -> float:
        return next(value for first, value in reversed(self.steps) if round >= first)


@dataclass(frozen=True, slots=True)
class Diminishing:
    """E_t = E_0 / sqrt(t + 1), where E_0 is the error that `start`, the parameter of round 0, makes."""

    start: float

    def error_at(self, round: int, rule: ErrorRule) -> float:
        return rule.error_of(self.start) / sqrt(round + 1)


@dataclass(frozen=True, slots=True)
class DiminishingError:
    """E_t = initial / sqrt(t + 1), in the squared units of the message."""

    initial: float

    def __post_init__(self) -> None:
        if not (isinstance(self.initial, Real) and isfinite(self.initial) and self.initial > 0):
            raise BadParameter.about(
                "DiminishingError", "initial", f"must be a positive number, got {self.initial!r}"
            )

    def error_at(self, round: int, rule: ErrorRule) -> float:
        return self.initial / sqrt(round + 1)


Schedule: TypeAlias = Milestones | Diminishing | DiminishingError


def reaches(parameter: float | Schedule) -> tuple[float, float]:
    """The least and the most the parameter can be in any round, as far as it says so by itself."""
    match parameter:
        case Milestones(steps):
            values = [value for _, value in steps]
            return min(values), max(values)
        case Diminishing(start):
            return start, inf  # every rule gives a finer value for a smaller error
        case DiminishingError():
            return -inf, inf
    return parameter, parameter


def at_round(parameter: float | Schedule, round: int, rule: Callable[[], ErrorRule] | None = None) -> float:
    """The parameter's value in this round. `rule` is asked for only where a schedule needs it."""
    if isinstance(parameter, Milestones):
        return parameter.at(round)
    if isinstance(parameter, (Diminishing, DiminishingError)):
        if rule is None:
            raise BadParameter(f"{type(parameter).__name__} needs a compressor with an error rule")
        if isinstance(parameter, Diminishing) and round == 0:
            return parameter.start  # exactly, not through a logarithm and back
        here = rule()
        return here.value_for(parameter.error_at(round, here))
    return parameter
