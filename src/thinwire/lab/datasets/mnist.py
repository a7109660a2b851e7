"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017): 28 x 28 grey, ten classes.

The papers cut it into quadrants in reading order; the authors' code normalises.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import read_bytes
from thinwire.lab.datasets.dataset_files import DataSource, Download, find_or_fetch
from thinwire.lab.datasets.pictures import Moments, Pictures, split_pictures
from thinwire.lab.datasets.vertical import Quadrants, Request, Scale, Split, VerticalData

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
        what = "is cut off" if len(data) < wanted else "goes on"
        raise BadInput(f"{file}: {what} at byte {min(len(data), wanted)}; {shape} values end at byte {wanted}")
    if not prod(shape):
        raise BadInput(f"{file}: its header announces {shape}: no values")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


_CLASSES = 10
_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True)
class DigitSet:
    """A set in MNIST's four files."""

    name: str
    source: DataSource
    folders: tuple[str, ...]  # where to look, the first one is where a download goes
    downloads: tuple[tuple[str, Download], ...]  # training pictures and labels, test pictures and labels
    moments: Moments
    default_split: Split = Quadrants()

    def load(self, split: Split, request: Request) -> VerticalData:
        files = [self._file(name, download, request) for name, download in self.downloads]
        images, labels, test_images, test_labels = (
            read_idx(file, 1 if "labels" in file.name else 3) for file in files
        )
        for file, values in ((files[1], labels), (files[3], test_labels)):
            if values.max() >= _CLASSES:
                place = int(np.argmax(values >= _CLASSES))
                raise BadInput(f"{file}: label {values[place]} at byte {8 + place}; there are classes 0 to 9")
        pictures = Pictures(
            images[:, None],
            labels.astype(np.int64),
            test_images[:, None],
            test_labels.astype(np.int64),
            self.moments,
            f"{self.source.title}, official training and test rows",
        )
        return split_pictures(self.name, pictures, split, request, Scale.NORMALISED)

    def _file(self, name: str, download: Download, request: Request) -> Path:
        places = [f"{folder}/{one}" for folder in self.folders for one in (name, name.removesuffix(".gz"))]
        return find_or_fetch(self.source, request.folder, places, download if request.download else None)


def _source(title: str, page: str, folder: str) -> DataSource:
    return DataSource(title, page, tuple(f"{folder}/{part}-ubyte.gz" for part in _PARTS))


def _downloads(base: str, *files: tuple[str, int, str]) -> tuple[tuple[str, Download], ...]:
    return tuple((name, Download(base + name, size, md5)) for name, size, md5 in files)


MNIST = DigitSet(
    name="mnist",
    source=_source("MNIST", "http://yann.lecun.com/exdb/mnist/", "mnist"),
    folders=("mnist", "MNIST/raw", "MNIST"),
    # The publisher's own server no longer hands the files out; this mirror has them byte for byte.
    downloads=_downloads(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ("train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    moments=Moments((0.1307,), (0.3081,)),
)

FASHION_MNIST = DigitSet(
    name="fashion_mnist",
    source=_source("Fashion-MNIST", "https://github.com/zalandoresearch/fashion-mnist", "fashion_mnist"),
    folders=("fashion_mnist", "FashionMNIST/raw", "fashion-mnist"),
    downloads=_downloads(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ("train-images-idx3-ubyte.gz", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", 29515, "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", 4422102, "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", 5148, "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    moments=Moments((0.2860,), (0.3530,)),
)
