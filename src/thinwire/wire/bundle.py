"""Several parties' bodies in one message."""

from __future__ import annotations

from collections.abc import Mapping

from thinwire.errors import Malformed
from thinwire.wire.buffers import Reader, Writer

__all__ = ["pack_bundle", "unpack_bundle"]


def pack_bundle(bodies: Mapping[int, bytes | memoryview]) -> bytes:
    """Bodies under the index of the party each is from."""
    out = Writer()
    for index, body in bodies.items():
        out.whole(index)
        out.sized(body)
    return out.body()


def unpack_bundle(data: bytes | memoryview) -> dict[int, memoryview]:
    reader = Reader(data, 0)
    bodies: dict[int, memoryview] = {}
    while reader.left:
        index = reader.whole()
        if index in bodies:
            raise Malformed(f"two bodies of party {index} in one bundle")
        bodies[index] = reader.sized()
    return bodies
