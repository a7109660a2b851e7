"""Bodies close to the entropy: the limits that everything else stands on."""

from __future__ import annotations

from math import ceil, lgamma, log, log2

import numpy as np
import pytest
import torch

from every import generator
from thinwire.engine import wire
from thinwire.engine.compress import QSGD, Compressor, PoissonBinomial, Sign, StdGrid, TopK, Uniform
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import Counts, Levels
from thinwire.engine.wire.bits import write_indices
from thinwire.engine.wire.buffers import BodyWriter


def entropy_bytes(codes: Array) -> float:
    _, counts = np.unique(codes, return_counts=True)
    return float(-np.sum(counts * np.log2(counts / codes.size))) / 8


def log2_choose(n: int, k: int) -> float:
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)


def chances(alphabet: int) -> dict[str, Array]:
    places = np.arange(alphabet)
    shapes = {
        "even": np.ones(alphabet),
        "normal": np.exp(-0.5 * ((places - alphabet / 2) / (alphabet / 6)) ** 2),
        "geometric": 0.5**places,
        "steep": 0.01**places,
        "one in a thousand": np.where(places == 0, 999.0, 1 / (alphabet - 1)),
    }
    return {name: weights / weights.sum() for name, weights in shapes.items()}


@pytest.mark.parametrize("count", [16_384, 100_000])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", chances(2))
def test_low_bit_levels_cost_their_entropy(bits: int, shape: str, count: int) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.choice(2**bits, count, p=chances(2**bits)[shape]).astype(np.uint8)
    body = wire.encode(Levels((count,), codes, 0.0, 1.0, bits))
    assert len(body) <= 1.03 * entropy_bytes(codes) + 64


@pytest.mark.parametrize("shape", [(1024, 16), (4096, 64)])
@pytest.mark.parametrize(
    "compressor",
    [
        *(Uniform(bits, dither) for bits in (1, 2, 3, 4) for dither in (True, False)),
        *(QSGD(bits=bits) for bits in (1, 2, 3, 4)),
        *(StdGrid(step, stochastic) for step in (0.5, 1, 2, 4, 8) for stochastic in (True, False)),
        Sign(),
    ],
    ids=str,
)
@pytest.mark.parametrize("tail", [1, 3])
def test_low_bit_compressors_cost_their_entropy(compressor: Compressor, shape: tuple[int, int], tail: int) -> None:
    x = torch.randn(shape, generator=generator()) ** tail
    symbols = compressor.compress(x, generator())
    codes = symbols.bits if isinstance(compressor, Sign) else symbols.codes  # type: ignore[attr-defined]
    assert len(wire.encode(symbols)) <= 1.03 * entropy_bytes(codes) + 64


@pytest.mark.parametrize("fraction", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("size", [10_000, 40_000, 1_000_000])
@pytest.mark.parametrize("spread", ["random", "clustered"])
def test_sparse_indices_cost_little_more_than_the_choice(fraction: float, size: int, spread: str) -> None:
    rng = np.random.default_rng(size)
    weights = np.ones(size) if spread == "random" else np.repeat(rng.exponential(size=size // 100), 100)
    count = int(fraction * size)
    indices = np.sort(rng.choice(size, count, replace=False, p=weights / weights.sum()))
    out = BodyWriter()
    write_indices(out, indices, size)
    described = BodyWriter()  # how many there are, and which coding
    described.whole(count)
    described.byte(0)
    assert 8 * (out.size() - described.size()) <= 1.05 * log2_choose(size, count)


@pytest.mark.parametrize("fraction", [0.1, 0.01, 0.001])
def test_a_top_k_body_is_its_values_its_places_and_little_else(fraction: float) -> None:
    x = torch.randn(4096, 256, generator=generator())
    count = int(fraction * x.numel())
    body = wire.encode(TopK(fraction).compress(x, generator()))
    assert len(body) <= 4 * count + 1.05 * log2_choose(x.numel(), count) / 8 + 32


@pytest.mark.parametrize("parties", [2, 4, 12])
@pytest.mark.parametrize("trials", [4, 16, 64, 256])
def test_masked_counts_cost_the_bits_of_their_modulus(parties: int, trials: int) -> None:
    bits = ceil(log2(parties * trials + 1))
    masked = np.random.default_rng(0).integers(0, 2**bits, 20_000)
    body = wire.encode(Counts((20_000,), masked, 2**bits, trials, 0.1, 1.0, parties))
    assert len(body) <= 1.02 * 20_000 * bits / 8 + 64


def test_unmasked_counts_cost_less() -> None:
    x = torch.tanh(torch.randn(500, 40, generator=generator()))
    symbols = PoissonBinomial(16, 0.1).compress(x, generator())
    body = wire.encode(symbols)
    assert len(body) <= 1.03 * entropy_bytes(symbols.counts) + 64
    assert len(body) < 0.8 * 20_000 * 5 / 8


@pytest.mark.parametrize("step", [1, 2, 4])
def test_fast_is_nearly_as_small(step: float) -> None:
    symbols = StdGrid(step).compress(torch.randn(4096, 64, generator=generator()), generator())
    assert len(wire.encode(symbols, "fast")) <= 1.1 * len(wire.encode(symbols, "small"))


@pytest.mark.parametrize("value", [0.0, 2.5])
@pytest.mark.parametrize("compressor", [Uniform(4), StdGrid(1), Sign()], ids=str)
def test_a_constant_or_zero_message_costs_next_to_nothing(compressor: Compressor, value: float) -> None:
    assert len(wire.encode(compressor.compress(torch.full((4096, 256), value), generator()))) <= 48
