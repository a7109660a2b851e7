"""LOSSLESS: here, and only here, things become bytes. See FORMAT.md beside this file.

Lazy, so that frames (which know only bytes) do not bring torch along.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire.engine.wire.codec import MAX_VALUES, decode, encode
    from thinwire.engine.wire.frame import HEADER_SIZE, MAX_BODY, Frame, body_length, pack_frame, unpack_frame

_ROOMS = {
    "HEADER_SIZE": "frame",
    "MAX_BODY": "frame",
    "MAX_VALUES": "codec",
    "Frame": "frame",
    "body_length": "frame",
    "decode": "codec",
    "encode": "codec",
    "pack_frame": "frame",
    "unpack_frame": "frame",
}

__all__ = [
    "HEADER_SIZE",
    "MAX_BODY",
    "MAX_VALUES",
    "Frame",
    "body_length",
    "decode",
    "encode",
    "pack_frame",
    "unpack_frame",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(f"thinwire.engine.wire.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'thinwire.wire' has no attribute {name!r}")
