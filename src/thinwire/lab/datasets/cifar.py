"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 32 x 32 in colour, in the binary version.

The "python version" is a set of pickles, which thinwire never loads; the binary one has the same pictures.
"""

from __future__ import annotations

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import read_npz, require_file
from thinwire.lab.datasets.dataset_files import DataSource, Download, find, find_or_fetch
from thinwire.lab.datasets.pictures import Moments, Pictures, split_pictures
from thinwire.lab.datasets.vertical import Quadrants, Request, Scale, Split, VerticalData

_PIXELS = 3 * 32 * 32
_NO_PICKLES = "pickles, which thinwire never loads; take the binary version, the same pictures, from"

Records: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]  # pictures [N, 3, 32, 32], labels


@dataclass(frozen=True)
class CifarSet:
    """A set in CIFAR's binary records: label bytes, then 1024 red, green and blue bytes."""

    name: str
    source: DataSource
    folder: str  # of the binary version
    python_folder: str
    compact: str  # an NPZ file with x_train, y_train, x_test, y_test
    train_files: tuple[str, ...]
    test_file: str
    label_bytes: int  # the last one counts
    classes: int
    archive: Download
    moments: Moments
    default_split: Split = Quadrants()

    def load(self, split: Split, request: Request) -> VerticalData:
        found = self._found(request)
        if found.suffix == ".npz":
            pictures = self._compact(found)
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
        archive = self.archive.url.rpartition("/")[2]
        places = [f"{self.name}/{archive}", f"{self.name}/{self.folder}", self.folder, archive, self.compact]
        if find(request.folder, places) is None and not request.download:
            pickled = find(request.folder, [self.python_folder, f"{self.name}/{self.python_folder}"])
            if pickled is not None:
                raise BadInput(f"{pickled}: {_NO_PICKLES} {self.source.page} and put {archive} beside it")
        return find_or_fetch(self.source, request.folder, places, self.archive if request.download else None)

    def _records(self, file: Path, data: bytes) -> Records:
        size = self.label_bytes + _PIXELS
        if len(data) % size or not data:
            raise BadInput(f"{file}: cut off at byte {len(data)}; it must be whole records of {size} bytes")
        records = np.frombuffer(data, np.uint8).reshape(-1, size)
        labels = records[:, self.label_bytes - 1].astype(np.int64)
        if labels.max() >= self.classes:
            place = int(np.argmax(labels >= self.classes))
            raise BadInput(
                f"{file}: label {labels[place]} at byte {place * size + self.label_bytes - 1}; the classes are 0 to "
                f"{self.classes - 1}"
            )
        return records[:, self.label_bytes :].reshape(-1, 3, 32, 32), labels

    def _compact(self, file: Path) -> Pictures:
        images, labels, test_images, test_labels = (
            read_npz(file, key) for key in ("x_train", "y_train", "x_test", "y_test")
        )
        for key, array in (("x_train", images), ("x_test", test_images)):
            if array.dtype != np.uint8 or array.shape[1:] != (32, 32, 3):
                raise BadInput(f"{file}: {key!r} is {array.dtype} {array.shape}, expected uint8 [N, 32, 32, 3]")
        return Pictures(
            images.transpose(0, 3, 1, 2),
            labels.astype(np.int64),
            test_images.transpose(0, 3, 1, 2),
            test_labels.astype(np.int64),
            self.moments,
            f"{self.source.title}, the part of it in {file.name}",
        )


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


_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"

CIFAR10 = CifarSet(
    name="cifar10",
    source=DataSource("CIFAR-10", _PAGE, ("cifar10/cifar-10-binary.tar.gz",)),
    folder="cifar-10-batches-bin",
    python_folder="cifar-10-batches-py",
    compact="cifar10/cifar10_10k.npz",
    train_files=tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
    test_file="test_batch.bin",
    label_bytes=1,
    classes=10,
    archive=Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"
    ),
    moments=Moments((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)

CIFAR100 = CifarSet(
    name="cifar100",
    source=DataSource("CIFAR-100", _PAGE, ("cifar100/cifar-100-binary.tar.gz",)),
    folder="cifar-100-binary",
    python_folder="cifar-100-python",
    compact="cifar100/cifar100.npz",
    train_files=("train.bin",),
    test_file="test.bin",
    label_bytes=2,
    classes=100,
    archive=Download(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"
    ),
    moments=Moments((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)
