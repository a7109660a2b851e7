"""Quantised by the message's norm (Alistarh et al., 2017), scaled to a contraction as EF-VFL uses it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from torch import Tensor

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, check_whole
from thinwire.engine.compress.message import blocks, message_values
from thinwire.engine.compress.randomness import Randomness, keystream
from thinwire.engine.compress.schedules import Schedule, at_round
from thinwire.engine.compress.symbols import Symbols, UniformGrid, Zeros, codes_dtype


@dataclass(frozen=True, slots=True)
class QSGD(Compressor):
    """|v| sign(v_i) / (s tau) * floor(s |v_i| / |v| + xi), xi uniform in [0, 1).

    s = 2^bits - 1, or give `levels` = s; tau = 1 + min(d / s^2, sqrt(d) / s) for a message of d values;
    contraction 1/tau on average. One norm a message, so a large message is mostly zeros, which the
    entropy coder makes small.
    """

    bits: int | Schedule | None = None
    levels: int | Schedule | None = None

    @property
    def promise(self) -> Promise:
        return Promise.CONTRACTION

    def __post_init__(self) -> None:
        if (self.bits is None) == (self.levels is None):
            raise BadParameter("QSGD: give either bits or levels: QSGD(bits=4) or QSGD(levels=15)")
        if self.bits is not None:
            check_whole(self, "bits", 1, 16)
        else:
            check_whole(self, "levels", 1, 65536)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        bits = keystream(rng)
        if message.largest == 0:
            return Zeros(message.shape)
        levels = self._levels(hint.round)
        norm = message.norm()
        values = message.working()
        codes = np.empty(message.size, codes_dtype(-levels, levels))
        for block in blocks(message.size):
            place = values[block] * (levels / norm)
            # Away from zero by xi, then cut off: sign(v_i) floor(s |v_i| / |v| + xi).
            place += np.copysign(bits.uniform(place.size), place)
            codes[block] = place.astype(np.int32).clip(-levels, levels)
        return UniformGrid(message.shape, codes, norm / (levels * self._tau(message.size, hint.round)))

    def _levels(self, round: int) -> int:
        if self.levels is not None:
            return int(at_round(self.levels, round))
        return (1 << int(at_round(self.bits or 0, round))) - 1

    def _tau(self, size: int, round: int) -> float:
        levels = self._levels(round)
        return 1 + min(size / levels**2, sqrt(size) / levels)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        tau = self._tau(message.size, hint.round)
        norm = message.norm()
        # Worst case: shrinking by tau, and a whole level up at every value.
        worst = norm * (1 - 1 / tau) + sqrt(message.size) * norm / (self._levels(hint.round) * tau)
        return ErrorBound.of(message, (1 - 1 / tau) * norm**2, worst**2)

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        return 1 / self._tau(prod(shape), round)
