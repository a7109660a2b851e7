"""What every compressor is: lossy, stateless, and pure given the generator; checks of its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from math import isfinite, sqrt
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.adding import Adding
from thinwire.engine.compress.message import MessageValues
from thinwire.engine.compress.randomness import Randomness
from thinwire.engine.compress.schedules import Diminishing, DiminishingError, Milestones
from thinwire.engine.compress.symbols import Symbols


def check_whole(owner: object, field: str, low: int, high: int, error_rule: bool = False) -> None:
    """The field is a whole number from low to high, or a schedule of such numbers."""
    for value in _values(owner, field, error_rule):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise BadParameter.about(owner, field, f"must be a whole number from {low} to {high}, got {value!r}")
        if not low <= int(value) <= high:
            raise BadParameter.about(owner, field, f"must be from {low} to {high}, got {value}")
    _store_plain(owner, field, int)


def check_number(
    owner: object, field: str, above: float, up_to: float = float("inf"), error_rule: bool = False
) -> None:
    """The field is a finite number in (above, up_to], or a schedule of such numbers."""
    wanted = f"above {above:g}" + (f" and at most {up_to:g}" if isfinite(up_to) else "")
    for value in _values(owner, field, error_rule):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise BadParameter.about(owner, field, f"must be a number {wanted}, got {value!r}")
        if not (isfinite(value) and above < float(value) <= up_to):
            raise BadParameter.about(owner, field, f"must be {wanted}, got {value}")
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


def _values(owner: object, field: str, error_rule: bool) -> list[Any]:
    """Every fixed number inside a parameter."""
    parameter = getattr(owner, field)
    if isinstance(parameter, Milestones):
        return [value for _, value in parameter.steps]
    if isinstance(parameter, (Diminishing, DiminishingError)) and not error_rule:
        says = "has no rule that follows a diminishing error; use Milestones((round, value), ...), "
        raise BadParameter.about(owner, field, f"{says}or Uniform, HexLattice or TopK")
    if isinstance(parameter, Diminishing):
        return [parameter.start]
    return [] if isinstance(parameter, DiminishingError) else [parameter]


class Promise(Enum):
    """What a compressor promises about |x - C(x)|^2."""

    CONTRACTION = "E|x - C(x)|^2 <= (1 - contraction) |x|^2"
    BOUNDED = "an error bound that shrinks with the scale of the message"
    UNBIASED = "right on average, with a fixed variance"
    NONE = "nothing"


class Remembers(Enum):
    """Which past derivatives a compressor wants to see in its hint."""

    NOTHING = "nothing"
    ROWS = "each row's derivative at its last visit"
    COLUMNS = "the previous round's derivatives"


@dataclass(frozen=True, slots=True)
class Hint:
    """What a compressor may know besides the message: the round, and a past derivative."""

    round: int = 0
    derivative: Tensor | None = None

    def __post_init__(self) -> None:
        if self.round < 0:
            raise BadParameter.about("Hint", "round", f"must be 0 or more, got {self.round}")


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """Bounds on |x - C(x)|^2 for one message, float rounding included.

    `mean` holds on average over the compressor's own randomness, `worst` for every draw.
    """

    mean: float
    worst: float

    @classmethod
    def of(cls, message: MessageValues, mean: float, worst: float | None = None) -> ErrorBound:
        """Adds what computing and returning float32 may cost: a few units in the last place a value."""
        rounding = sqrt(message.size) * (2.0**-21 * message.largest + 2.0**-147)
        worst = mean if worst is None else worst
        return cls((sqrt(mean) + rounding) ** 2, (sqrt(worst) + rounding) ** 2)


class Compressor(ABC):
    """Turns a tensor into symbols. The same symbols give the same floats at both ends.

    A subclass is a frozen dataclass: its parameters are its identity.
    """

    selects: ClassVar[bool] = False  # keeps some values and drops the others (first part of Then)

    def __str__(self) -> str:
        """As one would write it: TopK(0.01), StdGrid(2, stochastic=True)."""
        said = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is MISSING:
                said.append(f"{value}")
            elif value != field.default:
                said.append(f"{field.name}={value}" if isinstance(value, Compressor) else f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(said)})"

    @property
    @abstractmethod
    def promise(self) -> Promise:
        """What holds of |x - C(x)|^2 for every message."""

    @property
    def remembers(self) -> Remembers:
        return Remembers.NOTHING

    @property
    def suits_error_feedback(self) -> bool:
        """Is what is left after compression smaller than the message, so that sending it later ends?"""
        return self.promise in (Promise.CONTRACTION, Promise.BOUNDED)

    def adding(self, round: int = 0) -> Adding | None:
        """How several parties' integers of this round add up; None where they do not."""
        return None

    def at_once(self) -> Compressor:
        """For what is sent once: one that cuts nothing off which a later message would have made good."""
        return self

    @abstractmethod
    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        """The symbols of `x`, one message of any shape. Refuses empty, NaN and infinite input."""

    @abstractmethod
    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        """What |x - C(x)|^2 stays below on this message."""

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        """The factor a with E|x - C(x)|^2 <= (1 - a) |x|^2; 0 where none is promised."""
        return 0.0
