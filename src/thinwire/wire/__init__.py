"""LOSSLESS: here, and only here, things become bytes. See FORMAT.md beside this file."""

from thinwire.wire.codec import MAX_VALUES, decode, encode
from thinwire.wire.frame import HEADER_SIZE, MAX_BODY, Frame, body_length, pack_frame, unpack_frame

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
