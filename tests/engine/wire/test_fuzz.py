"""A million damaged bodies and frames: typed errors or valid symbols, nothing else, in little memory."""

from __future__ import annotations

import random
import resource

import numpy as np
import pytest
import torch

from every import BOUNDED_INPUT, COMPRESSORS, generator
from thinwire.base.errors import WireError
from thinwire.base.types import Kind
from thinwire.engine import wire
from thinwire.engine.compress.symbols import Levels, Masked, UniformGrid
from thinwire.engine.wire import Frame, pack_frame, unpack_frame

BODIES = 850_000
FRAMES = 150_000
SHARES = 16  # so that two cores can share the work
MAX_VALUES = 1 << 14
MAX_GROWTH_KB = 64 * 1024


def corpus() -> list[bytes]:
    """Short bodies of every kind and coding."""
    rng = np.random.default_rng(0)
    x = torch.tanh(torch.randn(12, 5, generator=generator()))
    long = torch.tanh(torch.randn(90, 30, generator=generator()))
    made = [compressor.compress(x, generator()) for compressor in (*COMPRESSORS, *BOUNDED_INPUT)]
    made += [
        c.compress(long, generator()) for c in COMPRESSORS if len(wire.encode(c.compress(long, generator()))) < 600
    ]
    made += [
        Levels((2000,), np.tile(rng.integers(0, 4, 20), 100), 0.0, 1.0, 2),  # zstd
        UniformGrid((500,), rng.geometric(0.4, 500), 1.0),  # range
        UniformGrid(
            (200, 4), np.rint(rng.normal([-3, 0, 4, 7], [0, 0.2, 1, 2], (200, 4))).astype(int).ravel(), 1.0
        ),  # columns
        UniformGrid((2000, 3), np.cumsum(rng.random((2000, 3)) < 0.1, axis=1).ravel(), 1.0),  # parents
        UniformGrid((60,), rng.geometric(0.6, 60), 1.0),  # unary
        UniformGrid((900,), (rng.random(900) < 0.03).astype(np.int64), 1.0),  # sparse
        UniformGrid((40,), rng.integers(-(2**30), 2**30, 40), 1e-3),  # wide
    ]
    return sorted({wire.encode(s, effort) for s in made for effort in ("small", "fast")}, key=lambda b: (len(b), b))


def damaged(rng: random.Random, bodies: list[bytes]) -> bytes:
    body = bytearray(rng.choice(bodies))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(body)) if body else 0
        deed = rng.randrange(7)
        if deed <= 1 and body:
            body[at] ^= 1 << rng.randrange(8)
        elif deed == 2 and body:
            body[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))
        elif deed == 3:
            del body[at:]
        elif deed == 4:
            body[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif deed == 5:
            del body[at : at + rng.randrange(1, 9)]
        else:
            other = rng.choice(bodies)
            body[at:] = other[rng.randrange(len(other)) :]
    return bytes(body)


@pytest.mark.parametrize("share", [0, *(pytest.param(share, marks=pytest.mark.long) for share in range(1, SHARES))])
def test_damaged_bodies_raise_typed_errors_only(share: int) -> None:
    rng = random.Random(share)  # noqa: S311
    bodies = corpus()
    for body in bodies:
        wire.decode(body, max_values=MAX_VALUES).to_tensor()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    survived = 0
    for _ in range(BODIES // SHARES):
        body = damaged(rng, bodies)
        try:
            symbols = wire.decode(body, max_values=MAX_VALUES)
        except WireError:
            continue
        survived += 1
        if survived % 16 == 0 and not isinstance(
            symbols, Masked
        ):  # values are as damaged as the bytes, but they are finite floats
            assert bool(torch.isfinite(symbols.to_tensor()).all())
    assert 0 < survived < BODIES // SHARES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KB


@pytest.mark.parametrize("share", range(SHARES))
def test_damaged_frames_raise_typed_errors_only(share: int) -> None:
    rng = random.Random(100 + share)  # noqa: S311
    whole = [pack_frame(Frame(7, 1, 0, Kind.DERIVATIVE, t, 0, body)) for t, body in enumerate(corpus())]
    originals = set(whole)
    for _ in range(FRAMES // SHARES):
        data = damaged(rng, whole)
        try:
            frame = unpack_frame(data, max_body=1 << 14)
        except WireError:
            continue
        assert data in originals  # whatever was damaged was noticed
        assert pack_frame(frame) == data


def test_every_truncation_of_every_body_is_noticed() -> None:
    for body in corpus():
        for cut in range(len(body)):
            with pytest.raises(WireError):
                wire.decode(body[:cut])
