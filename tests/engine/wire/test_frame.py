"""The header around a body."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.base.errors import BadInput, Malformed, TooLarge, TrailingBytes, Truncated, UnknownTag, WireError
from thinwire.base.types import Kind
from thinwire.engine.wire import HEADER_SIZE, Frame, body_length, pack_frame, unpack_frame

FRAME = Frame(
    run=0x1122334455667788, sender=3, receiver=0, kind=Kind.EMBEDDING, round=70_000, attempt=2, body=b"hello"
)

frames = st.builds(
    Frame,
    run=st.integers(0, 2**64 - 1),
    sender=st.integers(0, 65535),
    receiver=st.integers(0, 65535),
    kind=st.sampled_from(Kind),
    round=st.integers(0, 2**32 - 1),
    attempt=st.integers(0, 2**32 - 1),
    body=st.binary(max_size=300),
)


@given(frames)
def test_a_frame_survives(frame: Frame) -> None:
    data = pack_frame(frame)
    assert len(data) == HEADER_SIZE + len(frame.body)
    assert unpack_frame(data) == frame
    assert body_length(data[:HEADER_SIZE]) == len(frame.body)


def test_the_header_is_small_and_laid_out_as_documented() -> None:
    data = pack_frame(FRAME)
    assert HEADER_SIZE == 36  # 48 at most: cached recipes send thousands of small frames
    assert data[:2] == b"tw"
    assert data[2:4] == bytes([1, Kind.EMBEDDING])
    assert struct.unpack_from("<HHQIII", data, 4) == (3, 0, FRAME.run, 70_000, 2, 5)
    assert data[36:] == b"hello"


@pytest.mark.parametrize("bit", range(8 * (HEADER_SIZE + 5)))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(pack_frame(FRAME))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        unpack_frame(bytes(data))


@pytest.mark.parametrize("length", range(HEADER_SIZE + 5))
def test_every_truncation_is_noticed(length: int) -> None:
    with pytest.raises(Truncated):
        unpack_frame(pack_frame(FRAME)[:length])


def test_trailing_bytes_are_noticed() -> None:
    with pytest.raises(TrailingBytes, match="41 bytes is announced, 42 are here"):
        unpack_frame(pack_frame(FRAME) + b"x")


def test_the_cap_holds_on_both_sides() -> None:
    with pytest.raises(TooLarge, match="a body of 5 bytes, the cap is 4"):
        pack_frame(FRAME, max_body=4)
    with pytest.raises(TooLarge, match="a body of 5 bytes is announced, the cap is 4"):
        body_length(pack_frame(FRAME)[:HEADER_SIZE], max_body=4)
    assert unpack_frame(pack_frame(FRAME, max_body=5), max_body=5) == FRAME


def test_another_version_or_kind_is_named() -> None:
    data = bytearray(pack_frame(FRAME))
    data[2] = 9
    with pytest.raises(UnknownTag, match="frame version 9, this build speaks 1"):
        unpack_frame(bytes(data))
    unknown = pack_frame(Frame(1, 0, 1, 200, 0, 0, b""))  # type: ignore[arg-type]
    with pytest.raises(UnknownTag, match="message kind 200"):
        unpack_frame(unknown)
    with pytest.raises(Malformed, match="not a thinwire frame"):
        unpack_frame(b"GET / HTTP/1.1\r\nHost: somebody else\r\n\r\n")


@pytest.mark.parametrize(
    "field", [{"round": -1}, {"round": 2**32}, {"round": 2**63}, {"sender": 65536}, {"run": -1}, {"attempt": 2**32}]
)
def test_numbers_that_do_not_fit_are_refused_by_the_sender(field: dict[str, Any]) -> None:
    values = {name: getattr(FRAME, name) for name in FRAME.__dataclass_fields__} | field
    with pytest.raises(BadInput, match="round and attempt have 32 bits"):
        pack_frame(Frame(**values))
