"""The bytes of one body, written and read with every count checked; several bodies in one bundle."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import isfinite, prod

import numpy as np

from thinwire.base.errors import Malformed, TooLarge, TrailingBytes, Truncated
from thinwire.engine.compress.message import MOST_DIMENSIONS, Array

_CHEAP_TO_COPY = 1 << 16  # bytes


class BodyWriter:
    """Gathers the parts of one body."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    def raw(self, data: bytes | memoryview) -> None:
        self._parts.append(data)

    def byte(self, value: int) -> None:
        self._parts.append(value.to_bytes(1, "little"))

    def whole(self, value: int) -> None:
        """A non-negative integer, seven bits a byte, lowest first."""
        coded = bytearray()
        while value > 0x7F:
            coded.append(value & 0x7F | 0x80)
            value >>= 7
        coded.append(value)
        self._parts.append(bytes(coded))

    def zigzag(self, value: int) -> None:
        """An integer, folded: 0, -1, 1, -2, 2 ..."""
        self.whole(value << 1 if value >= 0 else (-value << 1) - 1)

    def float32(self, value: float) -> None:
        self._parts.append(struct.pack("<f", value))

    def float64(self, value: float) -> None:
        self._parts.append(struct.pack("<d", value))

    def seed(self, value: int) -> None:
        self._parts.append(value.to_bytes(8, "little"))

    def shape(self, shape: tuple[int, ...]) -> None:
        self.byte(len(shape))
        for length in shape:
            self.whole(length)

    def blob(self, data: bytes | memoryview) -> None:
        self.whole(len(data))
        self._parts.append(data)

    def size(self) -> int:
        return sum(len(part) for part in self._parts)

    def body(self) -> bytes:
        return b"".join(self._parts)


class BodyReader:
    """Reads one body; every count is checked against the cap and against what is left."""

    __slots__ = ("_data", "_place", "max_values")

    def __init__(self, data: bytes | memoryview, max_values: int) -> None:
        self._data = memoryview(data)
        self._place = 0
        self.max_values = max_values

    @property
    def remaining(self) -> int:
        return len(self._data) - self._place

    def raw(self, size: int) -> memoryview:
        if size > self.remaining:
            raise Truncated(f"{size} bytes are announced, {self.remaining} are left")
        self._place += size
        return self._data[self._place - size : self._place]

    def back(self, size: int) -> None:
        """Gives back the last `size` bytes that were taken."""
        self._place -= size

    def byte(self) -> int:
        return self.raw(1)[0]

    def look(self) -> int:
        """The next byte, without taking it."""
        return self._data[self._place]

    def whole(self) -> int:
        value = 0
        for shift in range(0, 63, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise Malformed("an integer is written with more bytes than it needs")
                return value
        raise Malformed("an integer does not fit 63 bits")

    def zigzag(self) -> int:
        folded = self.whole()
        return folded >> 1 if folded % 2 == 0 else -(folded + 1 >> 1)

    def count(self, most: int, what: str) -> int:
        """An integer from 1 to `most`."""
        value = self.whole()
        if not 1 <= value <= most:
            raise Malformed(f"{what} is {value}, not from 1 to {most}")
        return value

    def float32(self) -> float:
        return self._finite(struct.unpack("<f", self.raw(4))[0])

    def float64(self) -> float:
        return self._finite(struct.unpack("<d", self.raw(8))[0])

    def _finite(self, value: float) -> float:
        if not isfinite(value):
            raise Malformed(f"a scale is {value}")
        return value

    def seed(self) -> int:
        return int.from_bytes(self.raw(8), "little")

    def shape(self) -> tuple[int, ...]:
        rank = self.byte()
        if rank > MOST_DIMENSIONS:
            raise Malformed(f"{rank} dimensions, {MOST_DIMENSIONS} at most")
        shape = tuple(self.whole() for _ in range(rank))
        size = prod(shape)
        if size == 0:
            raise Malformed(f"the shape {shape} holds no values")
        if size > self.max_values:
            raise TooLarge(f"{size} values in shape {shape} are announced, the cap is {self.max_values}")
        return shape

    def blob(self) -> memoryview:
        return self.raw(self.whole())

    def array(self, dtype: str, count: int) -> Array:
        """`count` little-endian numbers."""
        raw = self.raw(count * np.dtype(dtype).itemsize)
        # numpy is slow where numbers begin at an odd byte; making room for many of them is slower.
        return np.frombuffer(bytes(raw) if len(raw) <= _CHEAP_TO_COPY else raw, dtype)

    def finish(self) -> None:
        if self.remaining:
            raise TrailingBytes(f"{self.remaining} bytes follow the end of the body")


def pack_bundle(bodies: Mapping[int, bytes | memoryview]) -> bytes:
    """Bodies under the index of the party each is from."""
    out = BodyWriter()
    for index, body in bodies.items():
        out.whole(index)
        out.blob(body)
    return out.body()


def unpack_bundle(data: bytes | memoryview) -> dict[int, memoryview]:
    reader = BodyReader(data, 0)
    bodies: dict[int, memoryview] = {}
    while reader.remaining:
        index = reader.whole()
        if index in bodies:
            raise Malformed(f"two bodies of party {index} in one bundle")
        bodies[index] = reader.blob()
    return bodies
