"""Values as they are, or rounded to a narrower float."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadTensor
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, check_choice
from thinwire.engine.compress.message import MessageValues, message_values, require_message
from thinwire.engine.compress.randomness import Randomness
from thinwire.engine.compress.symbols import Dense, Narrow


@dataclass(frozen=True, slots=True)
class Identity(Compressor):
    """Every value exactly, in its own dtype.

    The symbols share the tensor's memory: encode them before the tensor changes.
    """

    @property
    def promise(self) -> Promise:
        return Promise.CONTRACTION

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Dense:
        return dense(require_message(x, finite=True))

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


# dtype, half a unit in the last place of a normal number, and of a denormal one
_FORMATS = {
    "float16": (torch.float16, 2.0**-11, 2.0**-25),
    "bfloat16": (torch.bfloat16, 2.0**-8, 2.0**-134),
}

_FLOAT16_MOST = 65520.0  # from here on, the nearest float16 is infinity


@dataclass(frozen=True, slots=True)
class Cast(Compressor):
    """Each value rounded to `dtype`, "float16" or "bfloat16"; it comes back as float32.

    float16 keeps 11 bits up to 65504 and loses values below 3e-8; bfloat16 keeps 8 bits over the whole
    range of float32. Not a contraction: what is too small for the format is lost.
    """

    dtype: str = "float16"

    @property
    def promise(self) -> Promise:
        return Promise.BOUNDED

    def __post_init__(self) -> None:
        if isinstance(self.dtype, torch.dtype):
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        check_choice(self, "dtype", tuple(_FORMATS))

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Narrow:
        message = message_values(x)
        self._require_range(message)
        target, _, _ = _FORMATS[self.dtype]
        most = torch.finfo(target).max  # rounding up from there would be infinity
        values = torch.from_numpy(message.values).clamp(-most, most).to(target)
        return Narrow(dense(values.reshape(message.shape)))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        self._require_range(message)
        _, relative, absolute = _FORMATS[self.dtype]
        error = np.maximum(np.abs(message.values.astype(np.float64)) * relative, absolute)
        return ErrorBound.of(message, float(np.sum(np.square(error))))

    def _require_range(self, message: MessageValues) -> None:
        if self.dtype == "float16" and message.largest > _FLOAT16_MOST:
            raise BadTensor(
                f"Cast: the value {message.largest:g} does not fit float16; "
                "use Cast('bfloat16'), which has the range of float32, or Identity()"
            )
