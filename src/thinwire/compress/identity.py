"""Nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thinwire.compress.compressor import Compressor, ErrorBound, Hint, Promise
from thinwire.compress.message import require_finite, require_message
from thinwire.compress.randomness import Randomness
from thinwire.compress.symbols import Dense

__all__ = ["Identity", "dense"]


@dataclass(frozen=True, slots=True)
class Identity(Compressor):
    """Every value exactly, in its own dtype.

    The symbols share the tensor's memory: encode them before the tensor changes.
    """

    @property
    def promise(self) -> Promise:
        return Promise.CONTRACTION

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Dense:
        x = require_message(x)
        require_finite(x)
        return dense(x)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        return ErrorBound(0.0, 0.0)

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        return 1.0


def dense(x: Tensor) -> Dense:
    """The tensor's own bits; shares its memory, so encode it before that changes."""
    bits = x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()
    values = bits.reshape(-1)
    values.flags.writeable = False  # they are the tensor's
    return Dense(tuple(x.shape), x.dtype, values)
