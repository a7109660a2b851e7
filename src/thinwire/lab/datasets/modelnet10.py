"""ModelNet10 (Wu et al., 2015): CAD models of ten kinds of furniture, each as twelve rendered views.

The papers give a party one view (12 parties), two (6) or three (4).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import read_npz
from thinwire.lab.datasets.dataset_files import DataSource, missing_file
from thinwire.lab.datasets.pictures import Pictures, read_pngs, split_pictures
from thinwire.lab.datasets.sampling import Subset, choose_rows
from thinwire.lab.datasets.vertical import Request, Scale, Split, VerticalData, Views

_VIEW = re.compile(r"(.+)_(\d+)\.png")
_RENDERED = "modelnet10/<class>/<train or test>/<object>_<view>.png"
_COMPACT = "modelnet10/modelnet10_12view_32px.npz"
_TOGETHER = 200  # objects that are decoded before they are made smaller

Part: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]  # views [N, V, H, W], labels


class _Object(NamedTuple):
    label: int
    files: tuple[Path, ...]  # one a view


@dataclass(frozen=True)
class ModelNet10:
    """modelnet10/<class>/<train or test>/<object>_<view>.png, or the compact NPZ file."""

    pixels: int = 32  # larger renderings are averaged down to this height and width
    name: str = "modelnet10"
    default_split: Split = Views(1)
    source: DataSource = DataSource(
        "ModelNet10",
        "https://modelnet.cs.princeton.edu/",
        (_RENDERED,),
        "the publisher offers the models for research on its own page, and the views have to be rendered from them",
    )

    def load(self, split: Split, request: Request) -> VerticalData:
        classes = _classes(request.folder)
        if classes:
            pictures = self._rendered(classes, request.subset)
            request = replace(request, subset=Subset())  # taken already: only those views were decoded
        elif (request.folder / _COMPACT).exists():
            pictures = self._compact(request.folder / _COMPACT)
        else:
            raise missing_file(self.source, request.folder, [_RENDERED, _COMPACT])
        return split_pictures(self.name, pictures, split, request, Scale.UNIT)

    def _compact(self, file: Path) -> Pictures:
        parts = [read_npz(file, key) for key in ("views_train", "y_train", "views_test", "y_test")]
        for key, views in (("views_train", parts[0]), ("views_test", parts[2])):
            if views.dtype != np.uint8 or views.ndim != 4:
                raise BadInput(f"{file}: {key!r} is {views.dtype} {views.shape}, expected uint8 [N, views, H, W]")
        labels, test_labels = (part.astype(np.int64) for part in parts[1::2])
        about = "ModelNet10, grey views, official training and test objects"
        return Pictures(parts[0], labels, parts[2], test_labels, None, about, views=True)

    def _rendered(self, classes: list[Path], subset: Subset) -> Pictures:
        train = self._part(_objects(classes, "train"), subset.rows, subset.seed, "rows")
        test = self._part(_objects(classes, "test"), subset.test_rows, subset.seed, "test_rows")
        if train[0].shape[1:] != test[0].shape[1:]:
            raise BadInput(
                f"{classes[0].parent}: training objects are {train[0].shape[1:]} views and pixels, test objects "
                f"{test[0].shape[1:]}"
            )
        return Pictures(*train, *test, None, "ModelNet10, grey renderings, training and test folders", views=True)

    def _part(self, objects: list[_Object], rows: int | None, seed: int, name: str) -> Part:
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


def _smaller(file: Path, pictures: NDArray[np.uint8], pixels: int) -> NDArray[np.uint8]:
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
