"""A tiny data set in MNIST's own files, and an experiment on it that takes a second."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROWS, TESTS, CLASSES = 120, 60, 10

EXPERIMENT = """
[experiment]
paper = "A paper"
figure = "Figure 1"
title = "tiny"
claim = "Error feedback helps."
data = "mnist"
split = "quadrants"
seeds = [0, 1]
width = 4
formula = "efvfl"

[model]
bottom = { name = "linear", width = 4, activation = "sigmoid" }
top = { name = "linear_top", classes = 10 }
fusion = "sum"

[common]
epochs = 4
batch_size = 40
eval_every = 3
optimizer = { name = "sgd", lr = 0.5 }
diagnostics = true
link = { bandwidth_mbit = 10, latency_ms = 1, compute_ms = 1 }
target = { metric = "accuracy", best_of = "svfl", less = 0.05 }

[quick]
says = "two epochs, one seed"
seeds = [0]

[quick.settings]
epochs = 2

[[curve]]
name = "svfl"
recipe = { method = "svfl" }

[[curve]]
name = "efvfl top-k 10 %"
recipe = { method = "efvfl", compressor = { name = "TopK", fraction = 0.1 } }

[[expect]]
claim = "Fewer bytes"
curve = "efvfl top-k 10 %"
measure = "final"
metric = "bytes.up"
form = "ratio"
of = "svfl"
at_most = 0.9

[[expect]]
claim = "At full size only"
curve = "svfl"
measure = "best"
metric = "test.accuracy"
at_least = 0.0
sizes = ["full"]
"""


def write_digits(folder: Path) -> Path:
    """The four files, of images that are bright where their class says."""
    rng = np.random.default_rng(5)
    place = folder / "mnist"
    place.mkdir(parents=True)
    for part, rows in (("train", ROWS), ("t10k", TESTS)):
        labels = (np.arange(rows) % CLASSES).astype(np.uint8)
        images = rng.integers(0, 80, (rows, 28, 28)).astype(np.uint8)
        for row, label in enumerate(labels):
            images[row, 2 * label : 2 * label + 8, ::3] = 220
        _write_idx(place / f"{part}-images-idx3-ubyte.gz", images)
        _write_idx(place / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


def write_experiment(folder: Path, text: str = EXPERIMENT) -> str:
    path = folder / "tiny.toml"
    path.write_text(text)
    return str(path)


def _write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes()))
