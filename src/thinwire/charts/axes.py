"""Where an axis has its marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

__all__ = ["Axis", "axis_over"]

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """From low to high, linear or logarithmic, with marks at round numbers."""

    low: float
    high: float
    marks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            value = min(max(value, self.low), self.high)
            return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)


def axis_over(values: Sequence[float], wanted: int = 5, log: bool = False) -> Axis:
    """An axis that holds all values; a logarithmic one holds those above 0."""
    shown = [value for value in values if value > 0] if log else list(values)
    if not shown:
        return Axis(1.0, 10.0, (1.0, 10.0), True) if log else Axis(0.0, 1.0, (0.0, 0.5, 1.0))
    low, high = min(shown), max(shown)
    return _log_axis(low, high, wanted) if log else _linear_axis(low, high, wanted)


def _linear_axis(low: float, high: float, wanted: int) -> Axis:
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    rough = (high - low) / wanted
    power = 10.0 ** floor(log10(rough))
    step = next(step * power for step in _STEPS if step * power >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    marks = tuple(round(count * step, 12) for count in range(first, last + 1))
    return Axis(marks[0], marks[-1], marks)


def _log_axis(low: float, high: float, wanted: int) -> Axis:
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    if first == last:
        last += 1
    every = max(1, ceil((last - first) / wanted))
    marks = tuple(10.0**power for power in range(first, last + 1, every))
    return Axis(10.0**first, 10.0**last, marks, log=True)
