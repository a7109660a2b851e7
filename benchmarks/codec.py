"""Bytes against the entropy, and time against a copy: every compressor, and what others send, in one run.

    OMP_NUM_THREADS=1 python benchmarks/codec.py [--json] [--repeats 15]
    THINWIRE_DATA=folder python benchmarks/codec.py --bins credit_card

The tensors are the outputs of a random two-layer network on Gaussian rows. Times are multiples of copying
the tensor in the same run: copy and candidate alternate, and the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import lgamma, log, prod
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
import torch
import zstandard
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

from benchmarks.results import Row
from thinwire import compress, learners, wire
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import (
    Columns,
    Dense,
    Entries,
    Lattice,
    Narrow,
    Product,
    Sampled,
    Signs,
    Sparse,
    Symbols,
    Zeros,
)
from thinwire.engine.wire import entropy
from thinwire.engine.wire.frame import HEADER_SIZE
from thinwire.lab.datasets import load_split

SHAPES = ((4096, 256), (60000, 16))

COMPRESSORS: tuple[compress.Compressor, ...] = (
    compress.Identity(),
    compress.Cast("float16"),
    compress.TopK(0.1),
    compress.TopK(0.01),
    compress.TopK(0.001),
    compress.RandK(0.01),
    compress.QSGD(bits=5),
    compress.QSGD(bits=2),
    compress.Uniform(1),
    compress.Uniform(2, dither=False),
    compress.Uniform(2),
    compress.Uniform(4, dither=False),
    compress.Uniform(4),
    compress.HexLattice(2, dither=False),
    compress.HexLattice(2),
    compress.HexLattice(4),
    compress.StdGrid(0.5),
    compress.StdGrid(2),
    compress.StdGrid(4, stochastic=True),
    compress.RowScale(4),
    compress.RowScale(4, stochastic=True),
    compress.Directions(0.5),
    compress.Shorter(compress.StdGrid(1.5), compress.Directions(0.25)),
    compress.Codebook(),
    compress.Sign(),
    compress.PoissonBinomial(trials=16, beta=0.15),
    compress.RandomizedResponse(epsilon=1000.0, bins=8),
    compress.Then(compress.TopK(0.05), compress.Uniform(4)),
)
IN_THE_SUITE: tuple[compress.Compressor, ...] = (
    compress.StdGrid(2),
    compress.StdGrid(4, stochastic=True),
    compress.TopK(0.01),
    compress.QSGD(bits=2),
    compress.Uniform(2),
)


def rows() -> list[Row]:
    """A frame with its header over the entropy of its symbols; a scale or a range counts as entropy."""
    x = embedding(SHAPES[0])
    found = []
    for compressor in IN_THE_SUITE:
        symbols = compressor.compress(x, torch.Generator().manual_seed(1))
        sent, least = len(wire.encode(symbols)) + HEADER_SIZE, entropy_bits(symbols) / 8
        name = str(compressor).replace("compress.", "")
        help = f"a frame of {SHAPES[0][0]} x {SHAPES[0][1]} values"
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
            return count_bits(rows.astype(np.int64) * 65536 + columns)
        case Signs(bits=bits):
            return count_bits(bits)
        case Product(levels=levels, basis=basis):
            return count_bits(levels) + count_bits(basis)
        case Entries(codes=numbers, values=book):
            return count_bits(numbers) + 32.0 * book.size
    extra = 32.0 * symbols.scales.size if hasattr(symbols, "scales") else 0.0
    codes: Array = symbols.codes if hasattr(symbols, "codes") else symbols.counts  # type: ignore[attr-defined]
    return count_bits(codes) + extra


def count_bits(codes: Array) -> float:
    _, counts = np.unique(codes, return_counts=True)
    return float(-np.sum(counts * np.log2(counts / codes.size)))


def places_bits(size: int, count: int) -> float:
    return (lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)) / log(2)


@dataclass(frozen=True)
class Line:
    """One row of the table; times are multiples of a copy."""

    name: str
    shape: tuple[int, int]
    entropy_bits: float | None
    small_bits: float
    fast_bits: float
    fast_encode: float
    fast_decode: float
    small_encode: float
    small_decode: float


def against_copy(work: Callable[[], Any], x: torch.Tensor, repeats: int) -> float:
    """The median over interleaved pairs of work's time over a copy's."""
    source, target = x.numpy(), np.empty_like(x.numpy())
    ratios = []
    for attempt in range(repeats + 3):
        copy_seconds = min(seconds_of(lambda: np.copyto(target, source)) for _ in range(3))
        ratio = seconds_of(work) / copy_seconds
        if attempt >= 3:
            ratios.append(ratio)
    return statistics.median(ratios)


def seconds_of(work: Callable[[], Any]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def measure(compressor: compress.Compressor, x: torch.Tensor, repeats: int) -> Line:
    rng = torch.Generator().manual_seed(1)
    symbols = compressor.compress(x, rng)
    small, fast = wire.encode(symbols), wire.encode(symbols, effort="fast")
    return Line(
        name=str(compressor).replace("compress.", ""),
        shape=(x.shape[0], x.shape[1]),
        entropy_bits=entropy_bits(symbols) / x.numel(),
        small_bits=8 * len(small) / x.numel(),
        fast_bits=8 * len(fast) / x.numel(),
        fast_encode=against_copy(lambda: wire.encode(compressor.compress(x, rng), effort="fast"), x, repeats),
        fast_decode=against_copy(lambda: wire.decode(fast).to_tensor(), x, repeats),
        small_encode=against_copy(lambda: wire.encode(compressor.compress(x, rng)), x, repeats),
        small_decode=against_copy(lambda: wire.decode(small).to_tensor(), x, repeats),
    )


def others(x: torch.Tensor, repeats: int) -> list[Line]:
    """What other systems put on the wire."""
    zstd, unzstd = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    array = x.numpy()

    def line(name: str, encode: Callable[[], bytes], decode: Callable[[bytes], Any]) -> Line:
        body = encode()
        bits = 8 * len(body) / x.numel()
        encode_time = against_copy(encode, x, repeats)
        decode_time = against_copy(lambda: decode(body), x, repeats)
        shape = (x.shape[0], x.shape[1])
        return Line(name, shape, None, bits, bits, encode_time, decode_time, encode_time, decode_time)

    return [
        line("pickle of float32", lambda: pickle.dumps(array), pickle.loads),
        line(
            "float16 bytes",
            lambda: array.astype(np.float16).tobytes(),
            lambda body: np.frombuffer(body, np.float16).astype(np.float32),
        ),
        line(
            "zstd-1 of float32",
            lambda: zstd.compress(array.tobytes()),
            lambda body: np.frombuffer(unzstd.decompress(body), np.float32).copy(),
        ),
    ]


def table(lines: list[Line], shape: tuple[int, int]) -> Table:
    made = Table(title=f"{shape[0]} x {shape[1]} float32; times in copies of the tensor, one thread")
    made.add_column("what")
    for heading in ("entropy", "small", "fast"):
        made.add_column(f"{heading}\nbits/value", justify="right")
    made.add_column("small over\nentropy", justify="right")
    for heading in ("fast\nencode", "fast\ndecode", "small\nencode", "small\ndecode"):
        made.add_column(heading, justify="right")
    for line in lines:
        entropy = "" if line.entropy_bits is None else f"{line.entropy_bits:.4f}"
        over = "" if not line.entropy_bits else f"{100 * (line.small_bits / line.entropy_bits - 1):+.2f} %"
        times = (line.fast_encode, line.fast_decode, line.small_encode, line.small_decode)
        made.add_row(
            line.name,
            entropy,
            f"{line.small_bits:.4f}",
            f"{line.fast_bits:.4f}",
            over,
            *(f"{time:.1f}x" for time in times),
        )
    return made


def print_bins(name: str, console: Console) -> None:
    """Bits a row of a data set's shuffled training rows as `Bins(bins=8)`, with columns given parents and without."""
    data = load_split(name)
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(0))
    total = [0.0, 0.0]
    for party, x in zip(data.names, data.features, strict=True):
        encoder = learners.Bins(x.shape[1], 8, data.categories.get(party, ()))
        encoder.fit(x)
        symbols = compress.StdGrid(1.0, scale=1.0).compress(encoder(x[order]), torch.Generator())
        with mock.patch.object(entropy, "plan_parents", return_value=None):
            without = measure_body(symbols)
        found = (without, measure_body(symbols))
        total = [bits + size for bits, (size, _) in zip(total, found, strict=True)]
        for way, (bits, times) in zip(("without", "with"), found, strict=True):
            console.print(f"{party}, {len(x)} x {x.shape[1]}, {way} parents: {bits:.2f} bits per row, {times}")
    console.print("{:.2f} bits per row without parents, {:.2f} with parents".format(*total))


def measure_body(symbols: Symbols) -> tuple[float, str]:
    """Bits a row, and how long the body takes out and in."""
    body = wire.encode(symbols)
    out = min(seconds_of(lambda: wire.encode(symbols)) for _ in range(7))
    back = min(seconds_of(lambda: wire.decode(body)) for _ in range(7))
    return 8 * len(body) / symbols.shape[0], f"{1000 * out:.1f} ms out, {1000 * back:.1f} ms in"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the tables")
    parser.add_argument("--repeats", type=int, default=15, help="pairs of copy and candidate a figure (15)")
    parser.add_argument("--bins", metavar="DATA_SET", help="a data set's bits per row as bins, and nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(stderr=arguments.json, width=150 if not sys.stdout.isatty() else None)
    if arguments.bins:
        print_bins(arguments.bins, console)
        return
    results: list[Line] = []
    for shape in SHAPES:
        x = embedding(shape)
        lines = []
        for compressor in COMPRESSORS:
            lines.append(measure(compressor, x, arguments.repeats))
        lines += others(x, arguments.repeats)
        results += lines
        if not arguments.json:
            console.print(table(lines, shape))
    if arguments.json:
        print(json.dumps({"unit": "copies of the tensor", "threads": 1, "lines": [asdict(line) for line in results]}))


if __name__ == "__main__":
    main()
