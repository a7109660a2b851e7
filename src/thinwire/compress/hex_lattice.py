"""Pairs of values on the hexagonal lattice, the best of the plane (Zamir & Feder, 1996)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt

import numpy as np
from torch import Tensor

from thinwire.compress.compressor import Compressor, ErrorBound, Hint, Promise
from thinwire.compress.message import Array, MessageValues, message_values
from thinwire.compress.parameters import check_flag, check_number
from thinwire.compress.randomness import Randomness, draw_seed
from thinwire.compress.schedules import ErrorRule, Schedule, at_round
from thinwire.compress.symbols import Lattice, codes_dtype, lattice_dither, lattice_spacing

__all__ = ["HexLattice"]

_MEAN = 5 / (36 * sqrt(3))  # mean squared error a value, in cell areas: 0.0802
_COVERING = 2 / (3 * sqrt(3))  # squared covering radius, in cell areas: 0.385
_MOST_BITS = 12


@dataclass(frozen=True, slots=True)
class HexLattice(Compressor):
    """Neighbouring values as pairs, scaled by the message's range, moved to the nearest lattice point.

    A cell has the area V = 4^-bits of the square that the range spans; `bits` need not be whole. Every
    point reached is allowed, and the codec charges for it. With dither the mean squared error is
    0.0802 V range^2 a value, 4 % below Uniform's at the same area; the worst is 0.385 V range^2 a pair.
    """

    bits: float | Schedule
    dither: bool = True

    @property
    def promise(self) -> Promise:
        return Promise.BOUNDED

    def __post_init__(self) -> None:
        check_number(self, "bits", above=0, up_to=_MOST_BITS, error_rule=True)
        check_flag(self, "dither")

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Lattice:
        message = message_values(x)
        bits = self._bits(message, hint)
        low, high = message.lowest, message.highest
        across, up = self._in_lattice_units(message, bits)
        seed = draw_seed(rng) if self.dither else None
        if seed is not None:
            shift_across, shift_up = lattice_dither(seed, across.size)
            across += shift_across
            up += shift_up
        rows, columns = _nearest(across, up)
        return Lattice(message.shape, _narrow(rows), _narrow(columns), low, high, bits, seed)

    def _in_lattice_units(self, message: MessageValues, bits: float) -> tuple[Array, Array]:
        """Each pair's first value in neighbour distances, its second in row distances, from the middle."""
        centre = message.lowest + message.width / 2
        pairs = message.working(precise=bits > 8 or message.width < 1e-25) - centre
        if pairs.size % 2:
            pairs = np.append(pairs, pairs.dtype.type(0))
        distance, height = lattice_spacing(message.lowest, message.highest, bits)
        if distance == 0:
            return np.zeros(pairs.size // 2), np.zeros(pairs.size // 2)
        return pairs[0::2] * (1 / distance), pairs[1::2] * (1 / height)

    def _bits(self, message: MessageValues, hint: Hint) -> float:
        def rule() -> ErrorRule:
            # V_t = E_t / (0.0802 B P), here in units of the squared range
            most = _MEAN * message.size * message.width**2
            return ErrorRule(lambda bits: most / 4**bits, lambda error: 0.5 * log2(most / error) if most > 0 else 1)

        bits = at_round(self.bits, hint.round, rule)
        return min(float(_MOST_BITS), max(0.0, bits))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        cell = 4.0 ** -self._bits(message, hint) * message.width**2
        worst = (message.size + 1) // 2 * _COVERING * cell
        return ErrorBound.of(message, message.size * _MEAN * cell if self.dither else worst, worst)


def _nearest(across: Array, up: Array) -> tuple[Array, Array]:
    """The nearest lattice point as (row, column), both as floats.

    The lattice is two rectangular ones, of the even and of the odd rows; the nearer of their two
    nearest points is it.
    """
    even_rows = up * 0.5
    odd_rows = even_rows - 0.5
    np.rint(even_rows, out=even_rows)
    np.rint(odd_rows, out=odd_rows)
    even_rows *= 2
    odd_rows *= 2
    odd_rows += 1
    even_columns = np.rint(across)
    shifted = across - 0.5
    odd_columns = np.rint(shifted)
    shifted -= odd_columns
    odd_is_nearer = _squared(shifted, up - odd_rows) < _squared(across - even_columns, up - even_rows)
    np.copyto(even_rows, odd_rows, where=odd_is_nearer)
    np.copyto(even_columns, odd_columns, where=odd_is_nearer)
    return even_rows, even_columns


def _squared(across: Array, up: Array) -> Array:
    """The squared length; a row is sqrt(3)/2 of a neighbour distance high."""
    across *= across
    up *= up
    up *= 0.75
    across += up
    return across


def _narrow(coordinates: Array) -> Array:
    return coordinates.astype(codes_dtype(min(-1, int(coordinates.min())), int(coordinates.max())))
