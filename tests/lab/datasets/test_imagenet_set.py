"""ImageNet-100: photos of any size in folders of classes become quadrants of one size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from thinwire.base.errors import BadFile, BadInput
from thinwire.lab.datasets import ImageNet100, Scale, load_split

SMALL = replace(ImageNet100(), pixels=8)


def write_photos(root: Path, photos: int = 3) -> Path:
    """Two classes, red and blue, wide and tall."""
    for part in ("train", "val"):
        for name, colour in (("n01", (250, 0, 0)), ("n02", (0, 0, 250))):
            folder = root / "imagenet100" / part / name
            folder.mkdir(parents=True)
            for number in range(photos):
                size = (40, 20) if number % 2 else (20, 30)
                Image.new("RGB", size, colour).save(folder / f"{name}_{number}.JPEG")
    return root


def test_photos_become_quadrants_of_one_size(tmp_path: Path) -> None:
    data = load_split(SMALL, folder=write_photos(tmp_path), scale=Scale.UNIT)
    assert [tuple(part.shape) for part in data.features] == [(6, 3, 4, 4)] * 4
    assert data.labels.tolist() == data.test_labels.tolist() == [0, 0, 0, 1, 1, 1]
    red, blue = data.features[0][0], data.features[0][-1]
    assert min(red[0].mean(), blue[2].mean()) > 0.9
    assert max(red[2].mean(), blue[0].mean()) < 0.1


def test_the_middle_of_the_photo_is_kept(tmp_path: Path) -> None:
    write_photos(tmp_path, photos=1)
    pixels = np.zeros((16, 64, 3), dtype=np.uint8)
    pixels[:, 24:40] = 255
    Image.fromarray(pixels).save(tmp_path / "imagenet100/train/n01/n01_0.JPEG", quality=95)
    data = load_split(SMALL, folder=tmp_path, scale=Scale.UNIT)
    assert all(part[0].mean() > 0.9 for part in data.features), "the black sides are cut off"


def test_only_chosen_rows_are_decoded(tmp_path: Path) -> None:
    write_photos(tmp_path)
    whole = load_split(SMALL, folder=tmp_path, rows=2, test_rows=2)
    assert sorted(whole.labels.tolist()) == [0, 1]
    (tmp_path / "imagenet100/train/n01/n01_0.JPEG").write_bytes(b"no picture")
    with pytest.raises(BadFile, match=r"n01_0\.JPEG: not a JPEG or PNG picture"):
        load_split(SMALL, folder=tmp_path)


def test_a_class_without_photos_is_named(tmp_path: Path) -> None:
    write_photos(tmp_path)
    for file in (tmp_path / "imagenet100/val/n02").iterdir():
        file.unlink()
    with pytest.raises(BadInput, match=r"val/n02: there are no photos"):
        load_split(SMALL, folder=tmp_path)
