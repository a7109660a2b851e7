"""MNIST in four quadrants, and the papers' one-hidden-layer network."""

from __future__ import annotations

import gzip
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.engine.compress.message import Array


def _read(name: str) -> Array:
    folder = os.environ.get("THINWIRE_DATA")
    if not folder:
        raise RuntimeError("set THINWIRE_DATA to the folder that holds mnist/")
    data = gzip.decompress((Path(folder) / "mnist" / name).read_bytes())
    rank = data[3]
    shape = np.frombuffer(data, ">u4", rank, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


@lru_cache
def quadrants(part: str) -> tuple[list[Tensor], Tensor]:
    """Pixels / 255, not normalised; quadrants in reading order; labels."""
    images = torch.tensor(_read(f"{part}-images-idx3-ubyte.gz") / 255, dtype=torch.float32)
    labels = torch.tensor(_read(f"{part}-labels-idx1-ubyte.gz").astype(np.int64))
    cut = [images[:, :14, :14], images[:, :14, 14:], images[:, 14:, :14], images[:, 14:, 14:]]
    return [quadrant.reshape(len(images), 196).contiguous() for quadrant in cut], labels


def network(seed: int) -> tuple[list[nn.Module], nn.Module]:
    """16 sigmoid units per party, no biases; weights uniform in +-1/14 and +-1/4."""
    rng = torch.Generator().manual_seed(seed)

    def linear(inputs: int, outputs: int, bound: float) -> nn.Linear:
        layer = nn.Linear(inputs, outputs, bias=False)
        with torch.no_grad():
            layer.weight.copy_((torch.rand(outputs, inputs, generator=rng) * 2 - 1) * bound)
        return layer

    bottoms: list[nn.Module] = [nn.Sequential(linear(196, 16, 1 / 14), nn.Sigmoid()) for _ in range(4)]
    return bottoms, linear(16, 10, 1 / 4)


def job(recipe: tw.Recipe, seed: int = 0, **settings: Any) -> tw.Job:
    x, y = quadrants("train")
    xt, yt = quadrants("t10k")
    bottoms, top = network(seed)
    return tw.Job(
        parties=[tw.FeatureParty(f"q{k}", x[k], bottoms[k], xt[k]) for k in range(4)],
        label_party=tw.LabelParty("labels", y, top, yt),
        recipe=recipe,
        seed=seed,
        **{"optimizer": tw.SGD(lr=1.0), "diagnostics": False, **settings},
    )
