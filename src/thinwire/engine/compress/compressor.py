"""What every compressor is: lossy, stateless, and pure given the generator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from math import sqrt
from typing import ClassVar

from torch import Tensor

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.adding import Adding
from thinwire.engine.compress.message import MessageValues
from thinwire.engine.compress.randomness import Randomness
from thinwire.engine.compress.symbols import Symbols


class Promise(Enum):
    """What a compressor promises about |x - C(x)|^2.

    Examples:
        >>> tw.compress.TopK(0.1).promise.name
        'CONTRACTION'
    """

    CONTRACTION = "E|x - C(x)|^2 <= (1 - contraction) |x|^2"
    BOUNDED = "an error bound that shrinks with the scale of the message"
    UNBIASED = "unbiased, with a fixed variance"
    NONE = "nothing"


class Remembers(Enum):
    """Which past derivatives a compressor wants to see in its hint.

    Examples:
        >>> tw.compress.TopK(0.1, select="columns").remembers.name
        'COLUMNS'
    """

    NOTHING = "nothing"
    ROWS = "each row's derivative at its last visit"
    COLUMNS = "the previous round's derivatives"


@dataclass(frozen=True, slots=True)
class Hint:
    """What a compressor may know besides the message.

    Args:
        round: the current round, from 0.
        derivative: the derivative that `Compressor.remembers` asks for; None before the first.
        level: level of precision; 0 is the coarsest.

    Raises:
        BadParameter: a negative round.

    Examples:
        >>> tw.compress.Hint(round=3).level
        0
    """

    round: int = 0
    derivative: Tensor | None = None
    level: int = 0  # of precision: 0 is the coarsest

    def __post_init__(self) -> None:
        if self.round < 0:
            raise BadParameter.about("Hint", "round", f"must be 0 or more, got {self.round}")


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """Bounds on |x - C(x)|^2 for one message, floating-point rounding included.

    Args:
        mean: holds on average over the compressor's own randomness.
        worst: holds for every draw.

    Examples:
        >>> import torch
        >>> tw.compress.Sign().error_bound(torch.tensor([[1.0, -1.0]])).worst < 1e-6
        True
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
    """Turns a tensor into symbols. The same symbols decode to the same floats at both ends.

    Subclass it as a frozen dataclass, with `promise`, `compress` and `error_bound`: its parameters are its identity.

    Examples:
        >>> isinstance(tw.compress.TopK(0.1), tw.compress.Compressor)
        True
    """

    selects: ClassVar[bool] = False  # keeps some values and drops the others (first part of Then)
    protects_alone: ClassVar[bool] = False  # has noise that a guarantee for single rows follows from, without a sum

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
