"""Packing of 1 to 32 bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.base.errors import Malformed
from thinwire.engine.wire.bits import bits_for, pack, pack_size, unpack


@given(st.integers(1, 32), st.integers(0, 70), st.integers(0, 99))
def test_unpack_is_the_inverse_of_pack(bits: int, count: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**bits, count, dtype=np.uint64)
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64, np.int64):
        if bits <= 8 * np.dtype(dtype).itemsize:
            packed = pack(values.astype(dtype), bits)
            assert len(packed) == pack_size(count, bits)
            assert np.array_equal(unpack(packed, count, bits), values)


@pytest.mark.parametrize("bits", range(1, 33))
def test_packing_leaves_no_gap(bits: int) -> None:
    assert pack_size(8000, bits) == 1000 * bits
    assert pack_size(1, bits) <= (bits + 7) // 8 + 2


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_powers_of_two_are_a_plain_bit_stream_lowest_first(bits: int) -> None:
    values = np.arange(37, dtype=np.uint8) % 2**bits
    stream = np.unpackbits(values[:, None], axis=1, bitorder="little")[:, :bits].reshape(-1)
    assert pack(values, bits) == np.packbits(stream, bitorder="little").tobytes()


def test_other_widths_are_planes_of_such_streams() -> None:
    values = np.array([0b1_01_0110, 0b0_11_1001, 0b1_00_1111], dtype=np.uint8)
    assert pack(values, 7) == pack(values & 15, 4) + pack(values >> 4 & 3, 2) + pack(values >> 6, 1)
    wide = np.array([0xABCDE, 0x12345], dtype=np.uint32)
    assert pack(wide, 20) == bytes([0xDE, 0x45, 0xBC, 0x23, 0x1A])


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 7, 11])
def test_a_bit_after_the_last_integer_is_refused(bits: int) -> None:
    packed = bytearray(pack(np.zeros(3, dtype=np.uint16), bits))
    packed[-1] |= 0x80
    with pytest.raises(Malformed, match="after the last packed integer"):
        unpack(bytes(packed), 3, bits)


def test_bits_for_a_span() -> None:
    assert [bits_for(span) for span in (0, 1, 2, 3, 4, 255, 256, 2**32 - 1)] == [1, 1, 2, 2, 3, 8, 9, 32]
