"""Tiny data sets in their publishers' layouts, written from scratch."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def written(file: Path, content: bytes | str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def idx(array: Bytes) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits(folder: Path, train: int = 20, test: int = 10) -> dict[str, Bytes]:
    """MNIST's four files, gzipped, with labels 0 to 9 in turn."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = (np.arange(count) % 10).astype(np.uint8)
    for name, array in arrays.items():
        written(folder / f"{name}.gz", gzip.compress(idx(array)))
    return arrays


def cifar(label_bytes: int, count: int, seed: int) -> bytes:
    """CIFAR's binary records; the last label byte is the class, an earlier one per class of another kind."""
    rng = np.random.default_rng(seed)
    labels = np.stack([np.full(count, 7), np.arange(count) % 10], axis=1)[:, 2 - label_bytes :]
    pixels = rng.integers(0, 256, (count, 3072))
    return np.concatenate([labels, pixels], axis=1).astype(np.uint8).tobytes()


def tar_gz(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def png(picture: Bytes, filters: list[int] | None = None, packed_lines: bytes = b"", **header: int) -> bytes:
    """[H, W] or [H, W, channels] as PNG, line y filtered by filters[y]."""
    pixels = picture[..., None] if picture.ndim == 2 else picture
    height, width, channels = pixels.shape
    lines = bytearray()
    for y in range(height):
        kind = filters[y] if filters else 0
        lines.append(kind)
        for x in range(width):
            for c in range(channels):
                left = int(pixels[y, x - 1, c]) if x else 0
                up = int(pixels[y - 1, x, c]) if y else 0
                corner = int(pixels[y - 1, x - 1, c]) if x and y else 0
                guess = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[kind] if kind < 5 else 0
                lines.append((int(pixels[y, x, c]) - guess) % 256)
    colour = header.get("colour", {1: 0, 2: 4, 3: 2, 4: 6}[channels])
    about = struct.pack(">IIBBBBB", width, height, header.get("depth", 8), colour, 0, 0, header.get("interlaced", 0))
    packed = zlib.compress(packed_lines or bytes(lines))
    chunks = [(b"IHDR", about), (b"tEXt", b"by\0us"), (b"IDAT", packed[:9]), (b"IDAT", packed[9:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def _paeth(left: int, up: int, corner: int) -> int:
    """As the PNG specification words it."""
    guess = left + up - corner
    distances = [abs(guess - left), abs(guess - up), abs(guess - corner)]
    return (left, up, corner)[distances.index(min(distances))]


def criteo_lines(count: int) -> list[list[str]]:
    """Rows as train.txt has them: label, 13 counts, 26 categories, some empty."""
    rng = np.random.default_rng(1)
    rows = []
    for k in range(count):
        counts = [str(rng.integers(-2, 500)) if rng.random() < 0.7 else "" for _ in range(13)]
        words = [f"{rng.integers(0, 40):08x}" if rng.random() < 0.9 else "" for _ in range(26)]
        rows.append([str(k % 4 // 3), *counts, *words])
    return rows


AVAZU_HEADER = [
    *("id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain"),
    *("app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *("C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"),
]


def avazu_rows(count: int) -> list[list[Any]]:
    rng = np.random.default_rng(2)
    rows = []
    for k in range(count):
        site = [f"{rng.integers(0, 9):08x}" for _ in range(9)]
        rows.append([k, k % 5 // 4, 14102100 + k % 24, 1005, 0, *site, 1, 2, *rng.integers(-1, 30, 8).tolist()])
    return rows


def table(header: list[str] | None, rows: list[list[Any]], delimiter: str = ",") -> str:
    lines = [*([header] if header else []), *rows]
    return "".join(delimiter.join(map(str, line)) + "\n" for line in lines)


RATINGS = "".join(f"{1 + k % 3}::{1 + k % 4}::{1 + k % 5}::97830{k:04d}\n" for k in range(600))
USERS = "1::F::1::10::48067\n2::M::56::16::70072\n3::M::25::15::55117\n"
MOVIES = (
    "1::Toy Story (1995)::Animation|Children's|Comedy\n2::Misérables, Les (1995)::Drama|Musical\n"
    "3::Heat (1995)::Action|Crime|Thriller\n4::Jumanji (1996)::Adventure|Children's|Fantasy\n"
)


def movielens(folder: Path) -> None:
    written(folder / "ratings.dat", RATINGS)
    written(folder / "users.dat", USERS)
    written(folder / "movies.dat", MOVIES.encode("latin-1"))
