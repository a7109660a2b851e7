"""ImageNet-100 (Deng et al., 2009; the classes of C-VFL's experiment are a subset of one's own): photos in folders.

imagenet100/<train or val>/<class>/<photo>.JPEG, as ImageNet's archives unpack. Only the chosen rows are decoded: all
126,000 photos are 19 GB as bytes and 76 GB as floats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.base.errors import BadFile, BadInput
from thinwire.base.extras import require_extra
from thinwire.data.readers.files import require_file
from thinwire.lab.datasets.dataset_files import DataSource, missing_file, read_catalogue
from thinwire.lab.datasets.picture_sets import DAMAGED, Bytes, Labels, Moments, Pictures, split_pictures
from thinwire.lab.datasets.sampling import Subset, choose_rows
from thinwire.lab.datasets.vertical import Quadrants, Request, Scale, Split, VerticalData

_SUFFIXES = {".jpeg", ".jpg", ".png"}
_MARGIN = 256 / 224  # photos are made a little larger than the square that is cut from their middle


@dataclass(frozen=True)
class ImageNet100:
    """Photos, their shorter side scaled, a square cut from the middle."""

    pixels: int = 224
    name: str = "imagenet100"
    default_split: Split = Quadrants()
    source: DataSource = read_catalogue(DataSource, "imagenet100", "source")
    moments: Moments = read_catalogue(Moments, "imagenet100", "moments")

    def load(self, split: Split, request: Request) -> VerticalData:
        root = request.folder / "imagenet100"
        if not (root / "train").is_dir():
            raise missing_file(self.source, request.folder)
        classes = sorted(one.name for one in (root / "train").iterdir() if one.is_dir())
        subset = request.subset
        train = self._decode(*_list_photos(root / "train", classes), subset.rows, subset.seed, "rows")
        test = self._decode(*_list_photos(root / "val", classes), subset.test_rows, subset.seed, "test_rows")
        about = f"ImageNet, {len(classes)} classes, training and validation folders"
        pictures = Pictures(*train, *test, self.moments, about)
        chosen = replace(request, subset=Subset())  # only those photos were decoded
        return split_pictures(self.name, pictures, split, chosen, Scale.NORMALISED)

    def _decode(
        self, files: list[Path], labels: Labels, rows: int | None, seed: int, name: str
    ) -> tuple[Bytes, Labels]:
        taken = choose_rows(labels, rows, seed, name)
        photos = np.empty((len(taken), 3, self.pixels, self.pixels), dtype=np.uint8)
        for place, row in enumerate(taken):
            photos[place] = _read_photo(files[row], self.pixels)
        return photos, labels[taken]


def _list_photos(folder: Path, classes: list[str]) -> tuple[list[Path], Labels]:
    """The photos of all classes, in the order of the names, and their classes."""
    files, labels = [], []
    for label, name in enumerate(classes):
        own = sorted(file for file in (folder / name).glob("*") if file.suffix.lower() in _SUFFIXES)
        if not own:
            raise BadInput(f"{folder / name}: there are no photos; every class of train needs some in train and val")
        files += own
        labels += [label] * len(own)
    if not files:
        raise BadInput(f"{folder}: there are no folders of classes")
    return files, np.array(labels, dtype=np.int64)


def _read_photo(file: Path, pixels: int) -> Bytes:
    """In colour [3, pixels, pixels]."""
    require_file(file)
    pillow = require_extra("PIL.Image", "a set of photos", "datasets")
    try:
        with pillow.open(file, formats=["JPEG", "PNG"]) as image:
            return _cut_square(pillow, image.convert("RGB"), pixels)
    except (*DAMAGED, pillow.DecompressionBombError) as error:
        raise BadFile(f"{file}: not a JPEG or PNG picture, or a damaged one: {error}") from None


def _cut_square(pillow: Any, image: Any, pixels: int) -> Bytes:
    factor = round(pixels * _MARGIN) / min(image.size)
    width, height = (max(pixels, round(side * factor)) for side in image.size)
    scaled = image.resize((width, height), pillow.Resampling.BILINEAR)
    left, top = (width - pixels) // 2, (height - pixels) // 2
    square = scaled.crop((left, top, left + pixels, top + pixels))
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))
