"""Parameters: those that change with the round, as frozen values that enter a recipe's digest, and checks of all.

`Diminishing` and `DiminishingError` are the rules of C-VFL (Castiglia et al., 2022, Theorem 4.4 and
Table 1) under which compression without error feedback still converges: the message's squared error
falls as E_t = c / sqrt(t + 1). A compressor with an error rule turns E_t into its own parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log2, sqrt
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np

from thinwire.base.errors import BadParameter


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """How a parameter and the squared error of a message belong together."""

    error_of: Callable[[float], float]
    value_for: Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Milestones:
    """A schedule with a new value from each given round on.

    Args:
        steps: pairs (round, value); the rounds increase from 0.

    Raises:
        BadParameter: not pairs, or rounds that do not increase from 0.

    Examples:
        >>> tw.compress.Milestones((0, 2), (100, 4)).at(150)
        4
    """

    steps: tuple[tuple[int, float], ...]

    def __init__(self, *steps: tuple[int, float]) -> None:
        for step in steps:
            if not (isinstance(step, tuple) and len(step) == 2 and all(isinstance(part, Real) for part in step)):
                raise BadParameter(f"Milestones: {step!r} is not a pair (round, value); write (0, 2)")
        rounds = [first for first, _ in steps]
        if not steps or rounds[0] != 0 or rounds != sorted(set(rounds)):
            raise BadParameter(
                f"Milestones: the rounds must increase from 0, got {rounds}; write Milestones((0, 2), (100, 4))"
            )
        object.__setattr__(self, "steps", tuple(steps))

    def at(self, round: int) -> float:
        return next(value for first, value in reversed(self.steps) if round >= first)


@dataclass(frozen=True, slots=True)
class Diminishing:
    """A schedule whose squared error falls as E_0 / sqrt(t + 1); E_0 is the error that `start` makes in round 0.

    Args:
        start: the compressor's parameter in round 0.

    Examples:
        >>> tw.compress.TopK(tw.compress.Diminishing(0.1)).fraction.start
        0.1
    """

    start: float

    def error_at(self, round: int, rule: ErrorRule) -> float:
        return rule.error_of(self.start) / sqrt(round + 1)


@dataclass(frozen=True, slots=True)
class DiminishingError:
    """A schedule whose squared error falls as initial / sqrt(t + 1), in squared units of the message.

    Args:
        initial: squared error allowed in round 0.

    Raises:
        BadParameter: `initial` is not a positive number.

    Examples:
        >>> tw.compress.DiminishingError(2.0).initial
        2.0
    """

    initial: float

    def __post_init__(self) -> None:
        if not (isinstance(self.initial, Real) and isfinite(self.initial) and self.initial > 0):
            raise BadParameter.about(
                "DiminishingError", "initial", f"must be a positive number, got {self.initial!r}"
            )

    def error_at(self, round: int, rule: ErrorRule) -> float:
        return self.initial / sqrt(round + 1)


@dataclass(frozen=True, slots=True)
class Refining:
    """Starts at `coarsest` and halves at every level of precision, never below `finest`.

    The label party decides when a run reaches the next level.

    Args:
        coarsest: value at level 0.
        finest: smallest value.

    Raises:
        BadParameter: a value is not a positive number.

    Examples:
        >>> [tw.compress.Refining(2.0, 0.5).at(level) for level in range(4)]
        [2.0, 1.0, 0.5, 0.5]
    """

    coarsest: float
    finest: float

    def __post_init__(self) -> None:
        for field in ("coarsest", "finest"):
            object.__setattr__(self, field, require_number(self, field, getattr(self, field), above=0, at_most=1e30))

    def __str__(self) -> str:
        return f"{self.coarsest:g}" if self.coarsest <= self.finest else f"{self.coarsest:g} to {self.finest:g}"

    def at(self, level: int) -> float:
        return max(self.coarsest / 2.0**level, min(self.finest, self.coarsest))


Schedule: TypeAlias = Milestones | Diminishing | DiminishingError | Refining


def follows_error(parameter: object) -> bool:
    """Does its value depend on the message?"""
    return isinstance(parameter, Diminishing | DiminishingError)


def halving_rule(most: float) -> ErrorRule:
    """For bits: one more halves the step, and quarters the error, which is `most` without any."""
    return ErrorRule(lambda bits: most / 4**bits, lambda error: 0.5 * (log2(most) - log2(error)) if most > 0 else 1)


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
        case Refining(coarsest, finest):
            return min(coarsest, finest), coarsest
    return parameter, parameter


def at_round(
    parameter: float | Schedule, round: int, rule: Callable[[], ErrorRule] | None = None, level: int = 0
) -> float:
    """The parameter's value in this round, at this level. `rule` is asked for only where a schedule needs it."""
    if isinstance(parameter, Milestones):
        return parameter.at(round)
    if isinstance(parameter, Refining):
        return parameter.at(level)
    if isinstance(parameter, Diminishing | DiminishingError):
        if rule is None:
            raise BadParameter(f"{type(parameter).__name__} needs a compressor with an error rule")
        if isinstance(parameter, Diminishing) and round == 0:
            return parameter.start  # exactly, not through a logarithm and back
        here = rule()
        return here.value_for(parameter.error_at(round, here))
    return parameter


# Checks of parameters: a value is what it should be, or BadParameter names its owner and field --------------------


def require_size(owner: object, field: str, value: object, low: int = 1) -> int:
    """The value as a plain int of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
        raise BadParameter.about(owner, field, f"must be an integer from {low} up, got {value!r}")
    return int(value)


def require_sizes(owner: object, field: str, values: object, low: int = 1) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise BadParameter.about(owner, field, f"must be a list of integers, got {values!r}")
    return tuple(require_size(owner, f"{field}[{i}]", value, low) for i, value in enumerate(values))


def require_number(
    owner: object,
    field: str,
    value: object,
    *,
    above: float = -inf,
    at_least: float = -inf,
    below: float = inf,
    at_most: float = inf,
) -> float:
    """The value as a plain float in the named range; a numpy number would drag its precision along."""
    bounds = {"above": above, "at least": at_least, "below": below, "at most": at_most}
    wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if isfinite(bound))
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadParameter.about(owner, field, f"must be a number {wanted}".rstrip() + f", got {value!r}")
    number = float(value)
    if not (isfinite(number) and number > above and at_least <= number <= at_most and number < below):
        raise BadParameter.about(owner, field, f"must be {wanted or 'finite'}, got {value}")
    return number


# Of a field of a frozen value, which may be a schedule --------------------------------------------------------------


def check_whole(
    owner: object, field: str, low: int, high: int, error_rule: bool = False, optional: bool = False
) -> None:
    """The field is an integer from low to high, or a schedule of such numbers; `optional`: or None."""
    for value in _values(owner, field, error_rule, optional):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise BadParameter.about(owner, field, f"must be an integer from {low} to {high}, got {value!r}")
        if not low <= int(value) <= high:
            raise BadParameter.about(owner, field, f"must be from {low} to {high}, got {value}")
    _store_plain(owner, field, int)


def check_number(
    owner: object, field: str, above: float, up_to: float = inf, error_rule: bool = False, optional: bool = False
) -> None:
    """The field is a finite number in (above, up_to], or a schedule of such numbers; `optional`: or None."""
    for value in _values(owner, field, error_rule, optional):
        require_number(owner, field, value, above=above, at_most=up_to)
    _store_plain(owner, field, float)


def _store_plain(owner: object, field: str, kind: type[int] | type[float]) -> None:
    """A numpy number would drag its precision through the arithmetic, at one end only."""
    value: Any = getattr(owner, field)
    if isinstance(value, np.generic):
        object.__setattr__(owner, field, kind(value))


def check_flag(owner: object, field: str) -> None:
    value = getattr(owner, field)
    if not isinstance(value, bool):
        raise BadParameter.about(owner, field, f"must be True or False, got {value!r}")


def check_choice(owner: object, field: str, choices: tuple[str, ...]) -> None:
    value = getattr(owner, field)
    if value not in choices:
        wanted = ", ".join(repr(choice) for choice in choices)
        raise BadParameter.about(owner, field, f"must be one of {wanted}, got {value!r}")


def _values(owner: object, field: str, error_rule: bool, optional: bool) -> list[Any]:
    """Every fixed number inside a parameter."""
    parameter = getattr(owner, field)
    if optional and parameter is None:
        return []
    if isinstance(parameter, Milestones):
        return [value for _, value in parameter.steps]
    if isinstance(parameter, Refining):
        return [parameter.coarsest, parameter.finest]
    if follows_error(parameter) and not error_rule:
        says = "has no rule that follows a diminishing error; use Milestones((round, value), ...), "
        raise BadParameter.about(owner, field, f"{says}or Uniform, HexLattice or TopK")
    if isinstance(parameter, Diminishing):
        return [parameter.start]
    return [] if isinstance(parameter, DiminishingError) else [parameter]
