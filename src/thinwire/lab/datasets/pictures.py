"""Pictures become parties' regions: chosen rows, cut, then scaled."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadFile, BadInput, BadParameter
from thinwire.base.extras import require_extra
from thinwire.data.readers.files import require_file
from thinwire.lab.datasets.sampling import choose_rows
from thinwire.lab.datasets.vertical import ImageSplit, Request, Scale, Split, VerticalData, Views

Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Moments:
    """Mean and deviation of bytes / 255, one for each channel or one for all."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Pictures:
    """A picture set as it was read."""

    images: Bytes  # [N, C, H, W]
    labels: NDArray[np.int64]
    test_images: Bytes
    test_labels: NDArray[np.int64]
    moments: Moments | None  # what NORMALISED uses; None = those of the training pictures
    about: str  # what it is, without numbers of rows and scale
    views: bool = False  # whether C counts camera views


def read_pngs(files: Sequence[Path]) -> Bytes:
    """Grey pictures [n, H, W], all of one size; colours by their luminance, transparency ignored."""
    pictures = [_read_png(files[0])]
    for file in files[1:]:
        own, first = _read_png(file), pictures[0]
        if own.shape != first.shape:
            sizes = [" x ".join(map(str, one.shape)) for one in (own, first)]
            raise BadInput(f"{file}: is {sizes[0]} pixels, but {files[0].name} is {sizes[1]}; all must have one size")
        pictures.append(own)
    return np.stack(pictures)


def _read_png(file: Path) -> Bytes:
    require_file(file)
    pillow = require_extra("PIL.Image", "a set of PNG pictures", "datasets")
    try:
        with pillow.open(file, formats=["PNG"]) as image:
            if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
                return (np.asarray(image) >> 8).astype(np.uint8)
            return np.asarray(image.convert("L"))
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        zlib.error,
        struct.error,
        pillow.DecompressionBombError,
    ) as error:
        raise BadFile(f"{file}: not a PNG picture, or a damaged one: {error}") from None


def split_pictures(name: str, pictures: Pictures, split: Split, request: Request, default: Scale) -> VerticalData:
    """One region a party."""
    if not isinstance(split, ImageSplit) or (isinstance(split, Views) and not pictures.views):
        fitting = "Views, Quadrants or Halves" if pictures.views else "Quadrants or Halves"
        raise BadParameter(f"{name}: {split} does not fit pictures; use {fitting}")
    subset = request.subset
    train = choose_rows(_labels(name, pictures.labels, pictures.images), subset.rows, subset.seed)
    test = choose_rows(
        _labels(name, pictures.test_labels, pictures.test_images), subset.test_rows, subset.seed, "test_rows"
    )
    images, test_images = _some(pictures.images, train), _some(pictures.test_images, test)
    table, scaled = _table(request.scale or default, pictures, images)
    regions = split.regions(images.shape[1:])
    channels, height, width = images.shape[1:]
    return VerticalData(
        names=tuple(regions),
        features=tuple(_cut(images, region, table) for region in regions.values()),
        test_features=tuple(_cut(test_images, region, table) for region in regions.values()),
        labels=torch.from_numpy(pictures.labels[train]),
        test_labels=torch.from_numpy(pictures.test_labels[test]),
        about=f"{pictures.about}; {len(train)} training and {len(test)} test rows of "
        f"{channels} x {height} x {width}, {scaled}",
    )


def _labels(name: str, labels: NDArray[np.int64], images: Bytes) -> NDArray[np.int64]:
    if len(labels) != len(images):
        raise BadInput(f"{name}: {len(images)} pictures, but {len(labels)} labels; take both from one copy")
    return labels


def _some(images: Bytes, rows: NDArray[np.int64]) -> Bytes:
    return images if len(rows) == len(images) else images[rows]


def _table(scale: Scale, pictures: Pictures, images: Bytes) -> tuple[NDArray[np.float32], str]:
    """The float of every byte, for each channel or view, and how to say it: [C, 256]."""
    channels = images.shape[1]
    units = np.arange(256) / 255
    if scale is Scale.UNIT:
        return np.tile(units, (channels, 1)).astype(np.float32), "pixels / 255"
    moments = pictures.moments or _fitted(images)
    mean = np.broadcast_to(moments.mean, channels)[:, None]
    deviation = np.broadcast_to(moments.deviation, channels)[:, None]
    said = f"normalised by mean {_said(moments.mean)} and deviation {_said(moments.deviation)}"
    return ((units - mean) / deviation).astype(np.float32), said


def _fitted(images: Bytes) -> Moments:
    counts = np.zeros(256, dtype=np.int64)
    for row in images:
        counts += np.bincount(row.reshape(-1), minlength=256)
    units = np.arange(256) / 255
    mean = float(counts @ units / counts.sum())
    deviation = float(np.sqrt(counts @ (units - mean) ** 2 / counts.sum())) or 1.0
    return Moments((mean,), (deviation,))


def _said(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:.4f}" for number in numbers)


def _cut(images: Bytes, region: tuple[slice, slice, slice], table: NDArray[np.float32]) -> Tensor:
    part = images[:, region[0], region[1], region[2]]
    floats = np.empty(part.shape, dtype=np.float32)
    for channel, values in enumerate(table[region[0]]):
        floats[:, channel] = values[part[:, channel]]
    return torch.from_numpy(floats)
