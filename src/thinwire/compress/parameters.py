"""Checks of compressors' parameters: one clear message that names compressor, field and range."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import Any

import numpy as np

from thinwire.compress.schedules import Diminishing, DiminishingError, Milestones, Schedule
from thinwire.errors import BadParameter

__all__ = ["check_choice", "check_flag", "check_number", "check_whole"]


def check_whole(owner: object, field: str, low: int, high: int, error_rule: bool = False) -> None:
    """The field is a whole number from low to high, or a schedule of such numbers."""
    name = f"{type(owner).__name__}: {field}"
    for value in _values(getattr(owner, field), name, error_rule):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise BadParameter(f"{name} must be a whole number from {low} to {high}, got {value!r}")
        if not low <= int(value) <= high:
            raise BadParameter(f"{name} must be from {low} to {high}, got {value}")
    _store_plain(owner, field, int)


def check_number(
    owner: object, field: str, above: float, up_to: float = float("inf"), error_rule: bool = False
) -> None:
    """The field is a finite number in (above, up_to], or a schedule of such numbers."""
    name = f"{type(owner).__name__}: {field}"
    wanted = f"above {above:g}" + (f" and at most {up_to:g}" if isfinite(up_to) else "")
    for value in _values(getattr(owner, field), name, error_rule):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise BadParameter(f"{name} must be a number {wanted}, got {value!r}")
        if not (isfinite(value) and above < float(value) <= up_to):
            raise BadParameter(f"{name} must be {wanted}, got {value}")
    _store_plain(owner, field, float)


def _store_plain(owner: object, field: str, kind: type[int] | type[float]) -> None:
    """A numpy number would drag its precision through the arithmetic, at one end only."""
    value: Any = getattr(owner, field)
    if isinstance(value, np.generic):
        object.__setattr__(owner, field, kind(value))


def check_flag(owner: object, field: str) -> None:
    value = getattr(owner, field)
    if not isinstance(value, bool):
        raise BadParameter(f"{type(owner).__name__}: {field} must be True or False, got {value!r}")


def check_choice(owner: object, field: str, choices: tuple[str, ...]) -> None:
    value = getattr(owner, field)
    if value not in choices:
        wanted = ", ".join(repr(choice) for choice in choices)
        raise BadParameter(f"{type(owner).__name__}: {field} must be one of {wanted}, got {value!r}")


def _values(parameter: Any | Schedule, name: str, error_rule: bool) -> list[Any]:
    """Every fixed number inside a parameter."""
    if isinstance(parameter, Milestones):
        return [value for _, value in parameter.steps]
    if isinstance(parameter, (Diminishing, DiminishingError)) and not error_rule:
        raise BadParameter(
            f"{name} has no rule that follows a diminishing error; use Milestones((round, value), ...), "
            "or Uniform, HexLattice or TopK"
        )
    if isinstance(parameter, Diminishing):
        return [parameter.start]
    return [] if isinstance(parameter, DiminishingError) else [parameter]
