"""Uniform bits, as an argument: the same at both ends, on every platform, for ever.

torch's and numpy's own generators may change their streams between versions; AES in counter mode
cannot, and is faster than either. A `torch.Generator` gives the seed, a `Keystream` the bits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock
from typing import TypeAlias

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.message import Array

_ZEROS = bytes(1 << 18)
_READING = Lock()


@contextmanager
def keep_generator() -> Iterator[None]:
    """Leaves torch's own generator as it was.

    torch reads its state under a lock. Collecting garbage there lets other threads run, which may want that lock.
    """
    with _READING:
        collects = gc.isenabled()
        gc.disable()
        state = torch.get_rng_state()
        if collects:
            gc.enable()
    try:
        yield
    finally:
        torch.set_rng_state(state)


class Keystream:
    """The key stream of AES-256-CTR from counter 0. Privacy noise needs one with a secret key.

    Args:
        key: 32 bytes.

    Raises:
        BadParameter: the key does not have 32 bytes.

    Examples:
        >>> stream = tw.compress.Keystream(bytes(32))
        >>> stream.uniform(4).shape
        (4,)
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise BadParameter(f"a key stream's key has 32 bytes, not {len(key)}")
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    @classmethod
    def from_seed(cls, seed: int) -> Keystream:
        """The stream that an 8-byte seed on the wire stands for: the seed, little-endian, then zeros."""
        return cls(seed.to_bytes(8, "little") + bytes(24))

    def words(self, count: int) -> Array:
        """`count` uniform 32-bit words."""
        size = 4 * count
        buffer = bytearray(size + 16)  # the cipher asks for a block of slack
        view = memoryview(buffer)
        for start in range(0, size, len(_ZEROS)):
            step = min(len(_ZEROS), size - start)
            self._encryptor.update_into(_ZEROS[:step], view[start:])
        return np.frombuffer(buffer, dtype="<u4", count=count)

    def uniform(self, count: int) -> Array:
        """`count` float32 values, uniform on the multiples of 2^-24 in [0, 1)."""
        words = self.words(count)
        words >>= 8
        uniform = words.astype(np.float32)
        uniform *= np.float32(2.0**-24)
        return uniform


def digest_tensors(*tensors: Tensor) -> str:
    """SHA-256 over them: what noise is bound to, so that no two messages share it."""
    digest = sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


Randomness: TypeAlias = torch.Generator | Keystream


def draw_seed(rng: Randomness) -> int:
    """An 8-byte seed from `rng`."""
    if isinstance(rng, Keystream):
        low, high = rng.words(2).tolist()
        return int(low) | int(high) << 32
    if not isinstance(rng, torch.Generator):
        raise BadParameter(f"rng is a torch.Generator or a Keystream, not {type(rng).__name__}")
    low, high = torch.randint(0, 1 << 32, (2,), generator=rng, device=rng.device, dtype=torch.int64).tolist()
    return int(low) | int(high) << 32


def keystream(rng: Randomness) -> Keystream:
    """The bits to draw from: `rng` itself where it is a key stream, else one that it seeds."""
    return rng if isinstance(rng, Keystream) else Keystream.from_seed(draw_seed(rng))


def sample_indices(seed: int, size: int, count: int) -> Array:
    """`count` different indices below `size`, in rising order, all sets alike; the seed says which."""
    if count <= size // 2:
        return _different(seed, size, count)
    kept = np.ones(size, dtype=bool)
    kept[_different(seed, size, size - count)] = False
    return np.flatnonzero(kept)


def _different(seed: int, size: int, count: int) -> Array:
    """Draws until `count` different indices have come up; in rising order."""
    stream = Keystream.from_seed(seed)
    found = np.empty(0, dtype=np.int64)
    while found.size < count:
        words = stream.words(2 * (count - found.size)).view("<u8")
        found = np.sort(np.concatenate([found, (words % np.uint64(size)).astype(np.int64)]))
        found = found[np.diff(found, prepend=-1) > 0]
    return found
