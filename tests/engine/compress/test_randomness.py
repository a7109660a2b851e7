"""Randomness that is the same everywhere, and even."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from every import generator
from thinwire.engine.compress import Keystream
from thinwire.engine.compress.randomness import draw_seed, keep_generator, keystream, sample_indices


def test_the_key_stream_is_aes_256_in_counter_mode() -> None:
    # FIPS 197, AES-256 of an all-zero block under an all-zero key
    assert Keystream(bytes(32)).words(4).tobytes().hex() == "dc95c078a2408989ad48a21492842087"
    # NIST SP 800-38A, F.1.5: ECB-AES256 encrypts the counter blocks; block 0 of key 603deb10...
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    assert Keystream(key).words(4).tobytes().hex() == "e568f68194cf76d6174d4cc04310a854"


def test_a_seed_is_the_start_of_the_key() -> None:
    assert np.array_equal(Keystream.from_seed(0x0102).words(8), Keystream(b"\x02\x01" + bytes(30)).words(8))


@pytest.mark.parametrize("cuts", [[100_000, 100_000], [4, 199_996], [199_996, 4]])
def test_the_stream_goes_on_where_it_stopped(cuts: list[int]) -> None:
    stream = Keystream.from_seed(5)
    pieces = np.concatenate([stream.words(count) for count in cuts])
    assert np.array_equal(pieces, Keystream.from_seed(5).words(200_000))


def test_uniforms_are_even() -> None:
    uniform = Keystream.from_seed(1).uniform(1 << 20).astype(np.float64)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=5 * 0.2887 / 1024)
    assert uniform.var() == pytest.approx(1 / 12, rel=0.01)
    counts = np.histogram(uniform, 256, (0, 1))[0]
    assert ((counts - 4096) ** 2 / 4096).sum() < 400  # chi-square, 255 degrees of freedom: beyond 6 deviations


def test_seeds_follow_the_generator() -> None:
    seeds = {draw_seed(generator(seed)) for seed in range(50)}
    assert len(seeds) == 50
    assert max(seeds) > 2**63  # all 64 bits are used
    assert draw_seed(generator(1)) == draw_seed(generator(1))
    stream = Keystream(bytes(32))
    assert keystream(stream) is stream
    assert draw_seed(stream) == int.from_bytes(bytes.fromhex("dc95c078a2408989"), "little")
    first = torch.rand(1, generator=(rng := generator(1)))
    assert first != torch.rand(1, generator=rng)


@pytest.mark.parametrize(
    ("size", "count"), [(1, 1), (2, 1), (2, 2), (10, 7), (1000, 500), (1000, 501), (100_000, 10)]
)
def test_sampled_indices_rise_and_differ(size: int, count: int) -> None:
    for seed in range(20):
        indices = sample_indices(seed, size, count)
        assert indices.size == count
        assert np.all(np.diff(indices) > 0)
        assert indices[0] >= 0
        assert indices[-1] < size


@pytest.mark.parametrize("collects", [False, True])
def test_torchs_generator_is_read_while_no_garbage_is_collected(
    collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection may change threads while torch holds the generator's lock, and another thread may want it."""
    read = torch.get_rng_state
    seen: list[bool] = []

    def watched() -> torch.Tensor:
        seen.append(gc.isenabled())
        return read()

    monkeypatch.setattr(torch, "get_rng_state", watched)
    before = read()
    (gc.enable if collects else gc.disable)()
    try:
        with keep_generator():
            torch.rand(3)
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert seen == [False]
    assert torch.equal(read(), before)
