"""Bytes against the entropy: the least that a message's symbols cost, given how often each of them occurs."""

from __future__ import annotations

from math import lgamma, log, prod

import numpy as np
import torch

from thinwire import compress, wire
from thinwire.bench.rows import Row
from thinwire.compress.message import Array
from thinwire.compress.symbols import Columns, Dense, Lattice, Narrow, Product, Sampled, Signs, Sparse, Symbols, Zeros
from thinwire.wire.frame import HEADER_SIZE

__all__ = ["embedding", "entropy_bits", "rows"]

_SHAPE = (4096, 256)
_COMPRESSORS: tuple[compress.Compressor, ...] = (
    compress.StdGrid(2),
    compress.StdGrid(4, stochastic=True),
    compress.TopK(0.01),
    compress.QSGD(bits=2),
    compress.Uniform(2),
)


def rows() -> list[Row]:
    """A frame with its header over the entropy of its symbols; a scale or a range counts as entropy."""
    x = embedding(_SHAPE)
    found = []
    for compressor in _COMPRESSORS:
        symbols = compressor.compress(x, torch.Generator().manual_seed(1))
        sent, least = len(wire.encode(symbols)) + HEADER_SIZE, entropy_bits(symbols) / 8
        name = str(compressor).replace("compress.", "")
        help = f"a frame of {_SHAPE[0]} x {_SHAPE[1]} values"
        found.append(Row(name, help, "their symbols' entropy", "bytes", sent, least, sent / least))
    return found


def embedding(shape: tuple[int, int]) -> torch.Tensor:
    """The outputs of a random two-layer network on Gaussian rows."""
    rng = torch.Generator().manual_seed(0)
    rows, width = shape
    hidden = torch.relu(torch.randn(rows, 64, generator=rng) @ torch.randn(64, 64, generator=rng) / 8)
    return torch.tanh(hidden @ torch.randn(64, width, generator=rng) / 8)


def entropy_bits(symbols: Symbols) -> float:
    """The least that these symbols cost: order-0 entropy of their integers, log2 C(n, k) for places."""
    size = prod(symbols.shape)
    match symbols:
        case Zeros():
            return 0.0
        case Dense(dtype=dtype):
            return 8.0 * dtype.itemsize * size
        case Narrow(dense=dense):
            return entropy_bits(dense)
        case Sparse(indices=indices, values=values):
            return places_bits(size, indices.size) + entropy_bits(values)
        case Sampled(values=values) | Columns(values=values):
            return entropy_bits(values)
        case Lattice(rows=rows, columns=columns):
            return counted_bits(rows.astype(np.int64) * 65536 + columns)
        case Signs(bits=bits):
            return counted_bits(bits)
        case Product(levels=levels, basis=basis):
            return counted_bits(levels) + counted_bits(basis)
    extra = 32.0 * symbols.scales.size if hasattr(symbols, "scales") else 0.0
    codes: Array = symbols.codes if hasattr(symbols, "codes") else symbols.counts  # type: ignore[attr-defined]
    return counted_bits(codes) + extra


def counted_bits(codes: Array) -> float:
    _, counts = np.unique(codes, return_counts=True)
    return float(-np.sum(counts * np.log2(counts / codes.size)))


def places_bits(size: int, count: int) -> float:
    return (lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)) / log(2)
