"""PNG pictures as grey bytes, many at once.

A pixel depends on its left neighbour, so one picture cannot be undone in whole rows; pictures of one size
can be, together, which is what makes this fast enough without an image library.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thinwire.data.files import require_file
from thinwire.errors import BadInput

__all__ = ["read_pngs"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type: grey, RGB, grey + alpha, RGB + alpha
_LUMINANCE = np.array([299, 587, 114], dtype=np.uint32)
_TOGETHER = 2_048


class _Size(NamedTuple):
    height: int
    width: int
    channels: int

    def __str__(self) -> str:
        return f"{self.height} x {self.width} pixels of {self.channels} bytes"


def read_pngs(files: Sequence[Path]) -> NDArray[np.uint8]:
    """Grey pictures [n, H, W], all of one size; colours by their luminance, transparency ignored."""
    size, _ = _read(files[0])
    pictures = np.empty((len(files), size.height, size.width), dtype=np.uint8)
    for start in range(0, len(files), _TOGETHER):
        some = files[start : start + _TOGETHER]
        lines = np.empty((len(some), size.height, 1 + size.width * size.channels), dtype=np.uint8)
        for place, file in enumerate(some):
            own, data = _read(file)
            if own != size:
                raise BadInput(f"{file}: is {own}, but {files[0].name} is {size}; all views must have one size")
            lines[place] = data.reshape(lines.shape[1:])
        _check_filters(some, lines)
        pictures[start : start + len(some)] = _grey(_unfiltered(lines, size))
    return pictures


def _read(file: Path) -> tuple[_Size, NDArray[np.uint8]]:
    """Its size, and its lines as they were filtered, each behind its filter's number."""
    require_file(file)
    data = file.read_bytes()
    if not data.startswith(_SIGNATURE):
        raise BadInput(f"{file}: not a PNG file (byte 0)")
    header, packed, place = b"", [], len(_SIGNATURE)
    while True:
        kind, content, after = _chunk(file, data, place)
        if kind == b"IHDR":
            header = content
        elif kind == b"IDAT":
            packed.append(content)
        elif kind == b"IEND":
            break
        place = after
    size = _size(file, header)
    try:
        lines = np.frombuffer(zlib.decompress(b"".join(packed)), np.uint8)
    except zlib.error as error:
        raise BadInput(f"{file}: its picture cannot be unpacked: {error}") from None
    if len(lines) != size.height * (1 + size.width * size.channels):
        raise BadInput(f"{file}: its picture has {len(lines)} bytes, which is not {size}")
    return size, lines


def _chunk(file: Path, data: bytes, place: int) -> tuple[bytes, bytes, int]:
    if place + 12 > len(data):
        raise BadInput(f"{file}: cut off at byte {len(data)}")
    length, kind = struct.unpack_from(">I4s", data, place)
    end = place + 8 + length
    if end + 4 > len(data):
        raise BadInput(f"{file}: cut off at byte {len(data)}, within {kind!r}, which starts at byte {place}")
    if zlib.crc32(data[place + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
        raise BadInput(f"{file}: damaged: the checksum of {kind!r} at byte {place} is wrong")
    return kind, data[place + 8 : end], end + 4


def _size(file: Path, header: bytes) -> _Size:
    if len(header) != 13:
        raise BadInput(f"{file}: has no header")
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth != 8 or colour not in _CHANNELS or interlaced:
        raise BadInput(
            f"{file}: colour type {colour}, {depth} bits, {'' if interlaced else 'not '}interlaced; we read 8-bit "
            "grey or RGB, not interlaced: save it so"
        )
    return _Size(height, width, _CHANNELS[colour])


def _check_filters(files: Sequence[Path], lines: NDArray[np.uint8]) -> None:
    wrong = np.argwhere(lines[:, :, 0] > 4)
    if len(wrong):
        place, y = wrong[0]
        raise BadInput(f"{files[place]}: line {y + 1} has filter {lines[place, y, 0]}; there are only 0 to 4")


def _unfiltered(lines: NDArray[np.uint8], size: _Size) -> NDArray[np.uint8]:
    """[n, H, W, channels]; sums wrap at 256, as the format wants."""
    n = len(lines)
    pictures = np.empty((n, *size), dtype=np.uint8)
    above = np.zeros((n, size.width, size.channels), dtype=np.uint8)
    for y in range(size.height):
        line = lines[:, y, 1:].reshape(above.shape).copy()
        for kind, undo in ((1, _undo_sub), (2, _undo_up), (3, _undo_average), (4, _undo_paeth)):
            own = lines[:, y, 0] == kind
            if own.any():
                line[own] = undo(line[own], above[own])
        pictures[:, y] = above = line
    return pictures


def _undo_sub(line: NDArray[np.uint8], _: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.add.accumulate(line, axis=1, dtype=np.uint8)


def _undo_up(line: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return line + above


def _undo_average(line: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    left = np.zeros_like(line[:, 0], dtype=np.uint16)
    for x in range(line.shape[1]):
        line[:, x] += ((left + above[:, x]) >> 1).astype(np.uint8)
        left = line[:, x].astype(np.uint16)
    return line


def _undo_paeth(line: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    up = above.astype(np.int16)
    left = corner = np.zeros_like(up[:, 0])
    for x in range(line.shape[1]):
        b = up[:, x]
        by_left, by_up, by_corner = abs(b - corner), abs(left - corner), abs(left + b - 2 * corner)
        nearest = np.where(by_up <= by_corner, b, corner)
        nearest = np.where((by_left <= by_up) & (by_left <= by_corner), left, nearest)
        line[:, x] += nearest.astype(np.uint8)
        left, corner = line[:, x].astype(np.int16), b
    return line


def _grey(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if pictures.shape[-1] < 3:
        return pictures[..., 0]
    return ((pictures[..., :3] @ _LUMINANCE + 500) // 1000).astype(np.uint8)
