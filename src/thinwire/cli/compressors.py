"""`thinwire compressors`: what there is; with --measure, what each makes of real embeddings."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from thinwire.cli.output import build_table, print_listing, print_plain, print_result
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from torch import Tensor, nn

    from thinwire.engine.compress import Compressor


def compressors(measured: bool = False, seed: int = 0, as_json: bool = False) -> None:
    """List the compressors with their parameters."""
    if measured:
        _measure_all(as_json, seed)
        return
    from thinwire.engine.compress import COMPRESSORS

    print_listing("compressor", COMPRESSORS, as_json)


@dataclass(frozen=True)
class Measurement:
    """One compressor on one embedding."""

    compressor: str
    bits_per_value: float
    ratio: float
    relative_error: float
    accuracy: float
    encode_mb_per_s: float
    decode_mb_per_s: float


def _measure_all(as_json: bool, seed: int) -> None:
    """Trains a small network on handwritten digits and compresses its embeddings in every way."""
    every = _build_compressors()
    results = []
    with ProgressLine("training a bottom and a top model on 1,797 digits", len(every)) as progress:
        embedding, top, labels = _train_digits(seed)
        for compressor in every:
            progress.name = str(compressor)
            results.append(_measure(compressor, embedding, top, labels, seed))
            progress.advance()
    facts = {"shape": list(embedding.shape), "results": [asdict(result) for result in results]}
    print_result(facts, as_json, lambda: _print(results, embedding))


def _train_digits(seed: int) -> tuple[Tensor, nn.Module, Tensor]:
    """The test rows' embeddings [599, 32], the top model and the test labels."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        images, digits = load_digits(return_X_y=True)
        x = torch.tensor(images / 16, dtype=torch.float32)
        y = torch.tensor(digits)
        test = torch.arange(len(y)) % 3 == 0
        bottom = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh())
        top = nn.Linear(32, 10)
        optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=3e-3)
        for _ in range(200):
            optimizer.zero_grad()
            nn.functional.cross_entropy(top(bottom(x[~test])), y[~test]).backward()
            optimizer.step()
        with torch.no_grad():
            return bottom(x[test]), top, y[test]


def _build_compressors() -> list[Compressor]:
    from thinwire.engine import compress

    return [
        compress.Identity(),
        compress.Cast("float16"),
        compress.RowScale(4),
        compress.Uniform(4),
        compress.Uniform(2),
        compress.HexLattice(2),
        compress.StdGrid(1.0),
        compress.StdGrid(2.0, stochastic=True),
        compress.Directions(0.5),
        compress.Shorter(compress.StdGrid(1.5), compress.Directions(0.5)),
        compress.Codebook(16),
        compress.QSGD(bits=4),
        compress.TopK(0.1),
        compress.Then(compress.TopK(0.1), compress.Uniform(4)),
        compress.RandK(0.1),
        compress.Sign(),
        compress.PoissonBinomial(trials=16, beta=0.25),
    ]


def _measure(compressor: Compressor, x: Tensor, top: nn.Module, labels: Tensor, seed: int) -> Measurement:
    import torch

    from thinwire.engine import wire

    rng = torch.Generator().manual_seed(seed)
    body = wire.encode(compressor.compress(x, rng))
    decoded = wire.decode(body).to_tensor()
    repeats = 30
    start = perf_counter()
    for _ in range(repeats):
        wire.encode(compressor.compress(x, rng))
    middle = perf_counter()
    for _ in range(repeats):
        wire.decode(body).to_tensor()
    end = perf_counter()
    megabytes = repeats * 4 * x.numel() / 1e6
    with torch.no_grad():
        accuracy = (top(decoded).argmax(dim=1) == labels).float().mean()
    return Measurement(
        compressor=str(compressor),
        bits_per_value=8 * len(body) / x.numel(),
        ratio=4 * x.numel() / len(body),
        relative_error=float((x - decoded).norm() / x.norm()),
        accuracy=float(accuracy),
        encode_mb_per_s=megabytes / (middle - start),
        decode_mb_per_s=megabytes / (end - middle),
    )


def _print(results: list[Measurement], embedding: Tensor) -> None:
    rows, width = embedding.shape
    title = f"One message: the embeddings of {rows} test digits, {rows} x {width} float32"
    headings = ("bits/\nvalue", "times\nless", "rel.\nerror", "test\nacc.", "out\nMB/s", "in\nMB/s")
    table = build_table(title, ["compressor"], headings, wrapped=["compressor"])
    for name, *figures in map(astuple, results):
        table.add_row(name, *map(format, figures, (".2f", ".1f", ".3f", ".1%", ".0f", ".0f")))
    print_plain(
        table,
        "Bytes are counted on the encoded message, including scales and indices. Accuracy: the top model was "
        "trained on exact embeddings and is evaluated on decoded ones. Out: compress and encode; in: decode; both "
        "timed on this machine.",
    )


# `thinwire methods`: what there is, with parameters, one line each ------------------------------------------------


def methods(as_json: bool = False) -> None:
    """List the methods with their parameters."""
    from thinwire.engine.methods import METHODS

    print_listing("method", METHODS.values(), as_json)
