"""Pairs of values on the hexagonal lattice, the best of the plane (Zamir & Feder, 1996)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt

import numpy as np
from torch import Tensor

from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, check_flag, check_number
from thinwire.engine.compress.message import Array, MessageValues, blocks, message_values
from thinwire.engine.compress.randomness import Keystream, Randomness, draw_seed
from thinwire.engine.compress.schedules import ErrorRule, Schedule, at_round, reaches
from thinwire.engine.compress.symbols import Lattice, lattice_dither, lattice_spacing

_MEAN = 5 / (36 * sqrt(3))  # mean squared error a value, in cell areas: 0.0802
_COVERING = 2 / (3 * sqrt(3))  # squared covering radius, in cell areas: 0.385
_MOST_BITS = 12


@dataclass(frozen=True, slots=True)
class HexLattice(Compressor):
    """Neighbouring values as pairs, scaled by the message's range, moved to the nearest lattice point.

    The pairs are those of the flat message, so that at most one value of it has no partner.
    A cell has the area V = 4^-bits of the square that the range spans; `bits` need not be whole. Every
    point reached is allowed, and the codec charges for it. With dither the mean squared error is
    0.0802 V range^2 a value, 4 % below Uniform's at the same area; the worst is 0.385 V range^2 a pair.
    """

    bits: float | Schedule
    dither: bool = True

    @property
    def promise(self) -> Promise:
        return Promise.BOUNDED

    @property
    def suits_error_feedback(self) -> bool:
        # As for Uniform: one bit of a wide range loses more than there is.
        return reaches(self.bits)[0] >= 2

    def __post_init__(self) -> None:
        check_number(self, "bits", above=0, up_to=_MOST_BITS, error_rule=True)
        check_flag(self, "dither")

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Lattice:
        message = message_values(x)
        bits = self._bits(message, hint)
        low, high = message.lowest, message.highest
        seed = draw_seed(rng) if self.dither else None
        dither = Keystream.from_seed(seed or 0)
        values = message.working(precise=bits > 8 or message.width < 1e-25)
        centre = low + message.width / 2
        distance, height = lattice_spacing(low, high, bits)
        rows = np.empty((message.size + 1) // 2, np.int16)
        columns = np.empty_like(rows)
        for pairs in blocks(rows.size):
            across, up = _pairs(values, pairs, centre)
            across *= 1 / distance if distance else 0.0
            up *= 1 / height if distance else 0.0
            if self.dither:
                shift_across, shift_up = lattice_dither(dither, across.size)
                across += shift_across
                up += shift_up
            rows[pairs], columns[pairs] = _nearest(across, up)
        return Lattice(message.shape, rows, columns, low, high, bits, seed)

    def _bits(self, message: MessageValues, hint: Hint) -> float:
        def rule() -> ErrorRule:
            # V_t = E_t / (0.0802 B P), here in units of the squared range
            most = _MEAN * message.size * message.width**2
            return ErrorRule(
                lambda bits: most / 4**bits, lambda error: 0.5 * (log2(most) - log2(error)) if most > 0 else 1
            )

        bits = at_round(self.bits, hint.round, rule)
        return min(float(_MOST_BITS), max(0.0, bits))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        cell = 4.0 ** -self._bits(message, hint) * message.width**2
        worst = (message.size + 1) // 2 * _COVERING * cell
        return ErrorBound.of(message, message.size * _MEAN * cell if self.dither else worst, worst)


def _pairs(values: Array, pairs: slice, centre: float) -> tuple[Array, Array]:
    """First and second values of these pairs, from the centre; an odd last value is paired with it."""
    across = values[2 * pairs.start : 2 * pairs.stop : 2] - centre
    up = values[2 * pairs.start + 1 : 2 * pairs.stop : 2] - centre
    return across, up if up.size == across.size else np.append(up, up.dtype.type(0))


def _nearest(across: Array, up: Array) -> tuple[Array, Array]:
    """The nearest lattice point as (row, column), both as floats.

    The lattice is two rectangular ones, of the even and of the odd rows; the nearer of their two
    nearest points is it.
    """
    even_rows = up * 0.5
    odd_rows = even_rows - 0.5
    np.rint(even_rows, out=even_rows)
    even_rows *= 2
    np.rint(odd_rows, out=odd_rows)
    odd_rows *= 2
    odd_rows += 1
    even_columns = np.rint(across)
    odd_columns = across - 0.5
    np.rint(odd_columns, out=odd_columns)
    from_even = _squared_distance(across - even_columns, up - even_rows)
    across -= 0.5
    across -= odd_columns
    from_odd = _squared_distance(across, up - odd_rows)
    odd_is_nearer = (from_odd < from_even).astype(across.dtype)
    return _blend(even_rows, odd_rows, odd_is_nearer), _blend(even_columns, odd_columns, odd_is_nearer)


def _blend(zero: Array, one: Array, which: Array) -> Array:
    """`zero` where `which` is 0 and `one` where it is 1; exact for integers. A masked copy would mispredict
    every other branch and take ten times as long."""
    one -= zero
    one *= which
    one += zero
    return one


def _squared_distance(across: Array, up: Array) -> Array:
    """A row is sqrt(3)/2 of a neighbour distance high."""
    across *= across
    up *= up
    up *= 0.75
    across += up
    return across
