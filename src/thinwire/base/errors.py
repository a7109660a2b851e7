"""Every error that thinwire raises on purpose, as one tree.

::

    ThinwireError
      BadInput                 what the caller gave is wrong; nothing was started (exit code 2)
        BadParameter             a parameter of a compressor, stream or job
        BadTensor                a tensor: dtype, shape, emptiness, range
          NotFinite                NaN or infinity in a tensor
        BadFile                  a file of data: not there, empty, damaged, or not of a kind we read
        BadTable                 a table as a whole: its first line, delimiter, encoding, lines or rows
        BadColumn                a column: not there, or holding what it must not
        BadIds                   row ids: missing, there twice, or of another table
        BadLabels                labels: of one class only, or of a class that no training row has
        BadJob                   a job file: a key, a type, a missing field
        IncompatibleRecipe       parts that cannot work together
        BadState                 a saved state that does not fit
      WireError                bytes that are not what engine/wire/FORMAT.md says
        Truncated                they end too early
        TrailingBytes            they go on after their end
        UnknownTag               a kind, coding or version this build does not know
        TooLarge                 over the receiver's cap
        Malformed                anything else: a count, range, order or checksum that cannot be
      SurrogatesDiffer         the two ends of an error-feedback stream no longer agree
      Diverged                 the loss is NaN or infinite
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

__all__ = ["BadColumn", "BadFile", "BadIds", "BadInput", "BadJob", "BadLabels", "BadParameter", "BadState"]
__all__ += ["BadTable", "BadTensor", "Diverged", "IncompatibleRecipe", "Malformed", "NotFinite"]
__all__ += ["SurrogatesDiffer", "ThinwireError", "TooLarge", "TrailingBytes", "Truncated", "UnknownTag"]
__all__ += ["WireError"]


class ThinwireError(Exception):
    """The base class of every error of thinwire.

    Examples:
        >>> tw.errors.BadParameter.code()
        'bad-parameter'
        >>> try:
        ...     tw.compress.TopK(2.0)
        ... except tw.errors.ThinwireError as error:
        ...     error.code()
        'bad-parameter'
    """

    @classmethod
    def code(cls) -> str:
        """What `thinwire explain` knows this kind of error by: its name, as bad-column."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


class BadInput(ThinwireError, ValueError):
    """The caller's input is wrong; the message names the field and says what to do."""

    field: tuple[str, ...] = ()  # of the field, from the outermost table on
    places: tuple[str, ...] = ()  # files and options, the outermost first
    _joint = " "

    @classmethod
    def of(cls, path: str, says: str) -> Self:
        """About the field with this dotted path, which begins the sentence."""
        found = cls(says)
        found.field = tuple(path.split("."))
        return found

    def at(self, path: str) -> Self:
        """The same error in the table, or field, with this dotted path."""
        found = self._copy()
        found.field = (*path.split("."), *self.field)
        found._joint = self._joint if self.field else ": "
        return found

    def within(self, place: str) -> Self:
        found = self._copy()
        found.places = (place, *self.places)
        return found

    def _copy(self) -> Self:
        found = type(self).__new__(type(self), *self.args)
        found.__dict__.update(self.__dict__)
        return found

    def __str__(self) -> str:
        says = super().__str__()
        return ": ".join([*self.places, f"{'.'.join(self.field)}{self._joint}{says}" if self.field else says])


class BadParameter(BadInput):
    """A parameter is out of range or of the wrong type."""

    argument = ""  # of the class or function, where it is about one

    @classmethod
    def about(cls, owner: object, argument: str, says: str) -> Self:
        """About one argument of `owner`, an object or a name; of several values in it, argument[place]."""
        found = cls(f"{owner if isinstance(owner, str) else type(owner).__name__}: {argument} {says}")
        found.argument = argument.partition("[")[0]
        return found


class BadTensor(BadInput):
    """A tensor has the wrong dtype, shape, size or range."""


class NotFinite(BadTensor):
    """A tensor holds NaN or infinity.

    Args:
        value: the one that was found.
        index: where it stands.
        where: names the tensor in the message.
    """

    def __init__(self, value: float, index: Sequence[int], where: str = "the tensor") -> None:
        self.value = value
        self.index = tuple(index)
        place = ", ".join(str(i) for i in self.index)
        name = "NaN" if value != value else "infinity" if value > 0 else "-infinity"  # noqa: PLR0124
        super().__init__(
            f"{where} holds {name} at [{place}]; lower the learning rate, or check the features for missing values"
        )


class BadFile(BadInput):
    """A data file is missing, empty, damaged, or of a format that is not supported."""


class BadTable(BadInput):
    """A table cannot be parsed: its header, delimiter, encoding, lines or rows."""


class BadColumn(BadInput):
    """A column is missing, or holds values that it must not."""


class BadIds(BadInput):
    """Row ids are missing, repeated, or belong to another table."""


class BadLabels(BadInput):
    """All labels are of one class, or a class has no training rows."""


class BadJob(BadInput):
    """A job file has an unknown key, a value of the wrong type, or lacks a field."""


class IncompatibleRecipe(BadInput):
    """Parts of a recipe that cannot work together; the message says what to use instead."""


class BadState(BadInput):
    """A saved state does not fit the stream or surrogate that loads it."""


class WireError(ThinwireError):
    """Bytes that violate the wire format (engine/wire/FORMAT.md)."""


class Truncated(WireError):
    """The bytes end before what they announce."""


class TrailingBytes(WireError):
    """Bytes follow after the end of the message."""


class UnknownTag(WireError):
    """A kind of symbols, coding or version that this build does not know."""


class TooLarge(WireError):
    """The bytes announce more than the receiver's limit."""


class Malformed(WireError):
    """A count, order, range or checksum that is impossible."""


class Diverged(ThinwireError):
    """Training diverged: the loss is NaN or infinite."""


class SurrogatesDiffer(ThinwireError):
    """The two ends of an error-feedback stream hold different surrogates.

    Args:
        stream: its name.
        round: in which the ends were compared.
        ours: digest at this end.
        theirs: digest at the other end; None if it has none.
    """

    def __init__(self, stream: str, round: int, ours: int, theirs: int | None) -> None:
        self.stream = stream
        self.round = round
        other = "none" if theirs is None else f"{theirs:016x}"
        super().__init__(
            f"stream {stream!r}, round {round}: our surrogate has digest {ours:016x}, the other end's {other}; the "
            "two ends no longer agree, so training cannot continue. Resume both parties from their last common "
            "checkpoint"
        )
