"""LOSSLESS: here, and only here, things become bytes. See FORMAT.md beside this file.

Lazy, so that frames (which know only bytes) do not bring torch along.
"""

from typing import TYPE_CHECKING

from thinwire.base.extras import load_lazily

if TYPE_CHECKING:
    from thinwire.engine.wire.codec import MAX_VALUES, decode, encode
    from thinwire.engine.wire.frame import HEADER_SIZE, MAX_BODY, Frame, body_length, pack_frame, unpack_frame

__all__ = ["HEADER_SIZE", "MAX_BODY", "MAX_VALUES", "Frame", "body_length", "decode", "encode"]
__all__ += ["pack_frame", "unpack_frame"]

__getattr__ = load_lazily(__name__, __all__, ("frame", "codec"))
