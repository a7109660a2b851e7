"""decode(encode(s)) == s, for every kind of symbols, and the decoder takes exactly its bytes."""

from __future__ import annotations

import sys
from dataclasses import make_dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.wire.symbol_strategies import KINDS, every_kind_of_symbols
from every import BOUNDED_INPUT, COMPRESSORS, generator, messages, unit_messages
from thinwire.base.errors import (
    BadInput,
    BadParameter,
    Malformed,
    TooLarge,
    TrailingBytes,
    Truncated,
    UnknownTag,
    WireError,
)
from thinwire.engine import wire
from thinwire.engine.compress import QSGD, Compressor, Identity, TopK, Uniform, symbols
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import Counts, Dithered, Entries, Levels, Masked, Symbols, UniformGrid, Zeros
from thinwire.engine.wire import codec
from thinwire.engine.wire.bits import read_indices, write_indices
from thinwire.engine.wire.buffers import BodyReader, BodyWriter
from thinwire.engine.wire.entropy import Coding, read_integers, write_integers

EFFORTS = st.sampled_from(["small", "fast"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_codec_is_exact(kind: str) -> None:
    @given(KINDS[kind], EFFORTS)
    @settings(max_examples=80)
    def check(s: Symbols, effort: Any) -> None:
        body = wire.encode(s, effort)
        decoded = wire.decode(body)
        assert decoded == s
        assert decoded.shape == s.shape
        if not isinstance(s, Masked):  # which stand for nothing alone
            assert torch.equal(decoded.to_tensor(), s.to_tensor())
            assert bool(torch.isfinite(decoded.to_tensor()).all())

    check()


@given(every_kind_of_symbols(), EFFORTS, st.binary(min_size=1, max_size=9))
def test_the_decoder_takes_exactly_its_bytes(s: Symbols, effort: Any, more: bytes) -> None:
    body = wire.encode(s, effort)
    with pytest.raises(TrailingBytes):
        wire.decode(body + more)
    for cut in {0, 1, len(body) // 2, len(body) - 1}:
        with pytest.raises(WireError):
            wire.decode(body[:cut])


@pytest.mark.parametrize("effort", ["small", "fast"])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_what_compressors_make_survives_the_wire(compressor: Compressor, effort: Any) -> None:
    for name, x in messages().items():
        made = compressor.compress(x, generator())
        decoded = wire.decode(wire.encode(made, effort))
        assert decoded == made, name
        assert torch.equal(decoded.to_tensor(), made.to_tensor()), name


@pytest.mark.parametrize("compressor", BOUNDED_INPUT, ids=str)
def test_what_bounded_compressors_make_survives_the_wire(compressor: Compressor) -> None:
    for name, x in unit_messages().items():
        made = compressor.compress(x, generator())
        assert wire.decode(wire.encode(made)) == made, name


@pytest.mark.parametrize("rows", [1, 1000])
def test_large_messages_survive_every_coding(rows: int) -> None:
    x = torch.randn(rows, 300, generator=generator())
    for compressor in COMPRESSORS:
        for effort in ("small", "fast"):
            made = compressor.compress(x, generator())
            assert wire.decode(wire.encode(made, effort)) == made, str(compressor)


def test_every_bytes_like_body_decodes() -> None:
    s = Zeros((3, 4))
    body = wire.encode(s)
    assert wire.decode(bytearray(body)) == wire.decode(memoryview(body)) == s


def test_small_is_never_larger_than_fast() -> None:
    for compressor in COMPRESSORS:
        s = compressor.compress(torch.randn(200, 40, generator=generator()), generator())
        assert len(wire.encode(s, "small")) <= 1.02 * len(wire.encode(s, "fast")) + 8, str(compressor)


def test_what_is_not_symbols_or_effort_is_refused() -> None:
    with pytest.raises(BadInput, match="Tensor is not a kind of symbols; compress the tensor first"):
        wire.encode(torch.ones(3))  # type: ignore[arg-type]
    with pytest.raises(BadParameter, match="effort must be 'small' or 'fast', got 'tiny'"):
        wire.encode(Zeros((1,)), effort="tiny")  # type: ignore[arg-type]


def test_the_decoder_keeps_to_its_cap() -> None:
    body = wire.encode(Zeros((1000, 1000)))
    assert wire.decode(body) == Zeros((1000, 1000))
    with pytest.raises(TooLarge, match="1000000 values in shape"):
        wire.decode(body, max_values=999_999)


def test_the_table_has_one_tag_for_each_kind() -> None:
    kinds = {c.kind for c in codec._CODECS}
    assert {kind.__name__ for kind in kinds} >= set(KINDS)
    assert len({c.tag for c in codec._CODECS}) == len(codec._CODECS) == len(kinds)
    assert 0 not in {c.tag for c in codec._CODECS}  # an all-zero body is never anything


def test_a_table_that_misses_a_kind_is_noticed_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "Unheard", make_dataclass("Unheard", ["shape"]), raising=False)
    with pytest.raises(TypeError, match="differ"):
        codec._check_table()


# Bodies that are wrong in one place -------------------------------------------------------------------


def altered(s: Symbols, at: int, new: bytes) -> bytes:
    body = bytearray(wire.encode(s))
    body[at : at + len(new)] = new
    return bytes(body)


LEVELS = Levels((2, 3), np.array([0, 1, 2, 3, 0, 1], np.uint8), -1.0, 1.0, 2)
ENTRIES = Entries((3, 2), np.array([1, 2]), np.array([5, -1, 2], np.float32), np.array([0, 0, 0, 1, 0, 1]))
NAN, INF = np.float32(np.nan).tobytes(), np.float32(np.inf).tobytes()


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b"", Truncated, "the body is empty"),
        (b"\x00", UnknownTag, "symbols of kind 0 are unknown"),
        (b"\xfe\x01", UnknownTag, "symbols of kind 254 are unknown"),
        (altered(Identity().compress(torch.ones(2), generator()), 1, b"\x09"), UnknownTag, "float format 9"),
        (altered(Identity().compress(torch.ones(2), generator()), 4, NAN), Malformed, "NaN or infinity"),
        (
            altered(Identity().compress(torch.ones(2).half(), generator()), 4, b"\x00\x7c"),
            Malformed,
            "NaN or infinity",
        ),
        (
            altered(Identity().compress(torch.ones(2).bfloat16(), generator()), 4, b"\x80\xff"),
            Malformed,
            "NaN or inf",
        ),
        (b"\x02" + wire.encode(Identity().compress(torch.ones(2), generator()))[1:], Malformed, "narrow values of 4"),
        (b"\x03\x02\x00\x05", Malformed, "holds no values"),
        (b"\x03\x09" + b"\x01" * 9, Malformed, "9 dimensions"),
        (b"\x03\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Malformed, "does not fit 63 bits"),
        (b"\x03\x01\x81\x00", Malformed, "more bytes than it needs"),
        (b"\x03\x02\xff\xff\x7f\xff\xff\x7f", TooLarge, "the cap is"),
        (altered(LEVELS, 4, b"\x00"), Malformed, "levels of 0 bits"),
        (altered(LEVELS, 4, b"\x11"), Malformed, "levels of 17 bits"),
        (altered(LEVELS, 4, b"\x01"), Malformed, "integers from 0 to 3 are announced, 0 to 1 are allowed"),
        (altered(LEVELS, 5, INF), Malformed, "a scale is inf"),
        (altered(LEVELS, 5, np.float32(2).tobytes()), Malformed, "a range from 2.0 to 1.0"),
        (altered(LEVELS, 13, b"\x77"), UnknownTag, "coding 119"),
        (altered(UniformGrid((2,), np.array([1, -1]), 0.5), 3, np.float64(0).tobytes()), Malformed, "a step of 0.0"),
        (altered(TopK(0.5).compress(torch.ones(4), generator()), 3, b"\x05"), Malformed, "number of indices is 5"),
        (altered(ENTRIES, 2, b"\x01"), Malformed, "integers from 1 to 2 are announced, 1 to 1 are allowed"),
        (altered(ENTRIES, 3, b"\x7f"), Truncated, "values of 127 columns are announced, 20 bytes are left"),
        (altered(ENTRIES, 8, NAN), Malformed, "a column's values hold NaN or infinity"),
        (altered(ENTRIES, 16, np.float32(-1).tobytes()), Malformed, "a column's values do not rise"),
        (altered(ENTRIES, 12, np.array([0, -0.0], np.float32).tobytes()), Malformed, "values do not rise"),
        (altered(ENTRIES, 23, b"\x29"), Malformed, "a row's number is beyond the values of its column"),
    ],
)
def test_a_wrong_body_is_named(body: bytes, error: type[WireError], message: str) -> None:
    with pytest.raises(error, match=message):
        wire.decode(body)


def test_values_that_do_not_fit_their_places_are_refused() -> None:
    out = BodyWriter()
    out.byte(4)
    out.shape((10,))
    write_indices(out, np.array([1, 4]), 10)
    out.raw(wire.encode(Zeros((3,))))
    with pytest.raises(Malformed, match=r"values of shape \(3,\) for places of shape \(2,\)"):
        wire.decode(out.body())


def test_chosen_values_are_not_chosen_among_again() -> None:
    inner = TopK(0.5).compress(torch.ones(2), generator())
    out = BodyWriter()
    out.byte(4)
    out.shape((10,))
    write_indices(out, np.array([1, 4]), 10)
    out.raw(wire.encode(inner))
    with pytest.raises(Malformed, match="once more"):
        wire.decode(out.body())
    deep = b"\x04\x01\x01\x01\xff" * 5000  # no recursion to exhaust the stack with
    with pytest.raises(WireError):
        wire.decode(deep)
    assert sys.getrecursionlimit() < 5000


# Integers and index sets ------------------------------------------------------------------------------


def through(values: Array, effort: Any, width: int = 1) -> tuple[Coding, Array]:
    out = BodyWriter()
    write_integers(out, values, effort, width)
    reader = BodyReader(out.body(), 1 << 20)
    back = read_integers(reader, values.size, -(2**31), 2**32)
    reader.finish()
    return Coding(out.body()[0]), back


RNG = np.random.default_rng(0)
SUITED = {
    Coding.CONSTANT: (np.full(500, -7), "small"),
    Coding.PACKED: (RNG.integers(0, 256, 5000), "small"),
    Coding.ZSTD: (np.tile(RNG.integers(0, 16, 50), 400), "small"),
    Coding.RANGE: (RNG.geometric(0.3, 5000), "small"),
    Coding.UNARY: (RNG.geometric(0.5, 60), "small"),
    Coding.SPARSE: (np.where(RNG.random(5000) < 0.02, RNG.integers(-9, 9, 5000), 3), "fast"),
    Coding.COLUMNS: (
        np.rint(RNG.normal([-3, 0, 0, 4, 7], [0, 0.2, 1, 0.3, 2], (1000, 5))).astype(int).ravel(),
        "small",
    ),
    Coding.PARENTS: (np.cumsum(RNG.integers(0, 3, (2000, 5)), axis=1).ravel(), "small"),
}


@pytest.mark.parametrize("coding", Coding, ids=lambda coding: coding.name)
def test_each_coding_is_chosen_where_it_suits_and_is_exact(coding: Coding) -> None:
    values, effort = SUITED[coding]
    chosen, back = through(values, effort, 5 if coding in (Coding.COLUMNS, Coding.PARENTS) else 1)
    assert chosen == coding
    assert np.array_equal(back, values)


@given(st.data(), EFFORTS)
@settings(max_examples=200)
def test_any_integers_survive(data: st.DataObject, effort: Any) -> None:
    from engine.wire.symbol_strategies import integers

    count = data.draw(st.integers(1, 400))
    low = data.draw(st.integers(-(2**31), 2**31))
    span = data.draw(st.sampled_from([0, 1, 3, 200, 1023, 1024, 5000, 2**20, 2**32 - 1]))
    high = min(low + span, 2**32 - 1)
    values = data.draw(integers(count, low, high))
    width = data.draw(st.sampled_from([width for width in (1, 2, 3, 16) if count % width == 0]))
    assert np.array_equal(through(values, effort, width)[1], values)


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=300), st.integers(0, 10))
@settings(max_examples=200)
def test_any_index_set_survives(indices: set[int], slack: int) -> None:
    rising = np.array(sorted(indices))
    size = int(rising[-1]) + 1 + slack
    out = BodyWriter()
    write_indices(out, rising, size)
    reader = BodyReader(out.body(), 1 << 20)
    assert np.array_equal(read_indices(reader, size), rising)
    reader.finish()


@pytest.mark.parametrize(
    ("payload", "count", "error", "message"),
    [
        (b"\x00" + b"\xff" * 6 + b"\x01", 4, Malformed, "are announced, 0 to 32767 are allowed"),
        (b"\x01\x00\x00", 4, Malformed, "span of the integers is 0"),
        (b"\x01\x00\x01\x01", 4, None, ""),
        (b"\x01\x00\x01\x00", 4, Malformed, "do not span"),
        (b"\x01\x00\x01\xf1", 4, Malformed, "set after the last packed"),
        (b"\x01\x00\x02\x03\x02", 4, Malformed, "do not span"),
        (b"\x02\x00\x01\x03abc", 4, Malformed, "zstd"),
        (b"\x03\x00\x01\x09", 4, Malformed, "a table of 1 symbols"),
        (b"\x03\x00\xff\xff\x01\x00", 4, Malformed, "a table of 32768 symbols"),
        (b"\x03\x00\x01\x00\x05\x00\x00", 4, Malformed, "fewer than two symbols"),
        (b"\x03\x00\x01\x00\x10\x10\x01" + b"\x00" * 4, 4, Malformed, "end with an empty one"),
        (b"\x03\x00\x01\x00\x10\x10\x02" + b"\xff" * 8, 4, Malformed, "do not end with the last symbol"),
        (b"\x06\x00\x01\x01", 4, Malformed, "in 1 columns"),
        (b"\x06\x00\x01\x03", 4, Malformed, "4 integers up to 1 in 3 columns"),
        (b"\x06\x00\x80\x02\x02", 4, Malformed, "4 integers up to 256 in 2 columns"),
        (b"\x06\x00\x01\x02\x10\x10\x00\x00", 4, Malformed, "no symbol occurs"),
        (b"\x06\x00\x01\x02\x10\x00\x00\x10\x01" + b"\xff" * 4, 4, Malformed, "do not end with the last"),
        (b"\x06\x00\x02\x02\x10\x00\x00\x00\x10\x00\x00", 4, Malformed, "do not span"),
        (b"\x04\x00\x09\x01", 4, Truncated, "1 unary integers where 4"),
        (b"\x04\x00\x01\xff", 4, Malformed, "set after the last unary"),
        (b"\x04\x00\x01\xe4", 4, Malformed, "a unary integer is over 1"),
        (b"\x05\x00\x02\x03", 4, Malformed, "common integer 3 is above the span 2"),
        (b"\x05\x00\x02\x00\x01\xff\x00\x00\x08", 4, Malformed, "from 4 to 4 are announced, 0 to 2"),
    ],
)
def test_wrong_integers_are_named(payload: bytes, count: int, error: type[WireError] | None, message: str) -> None:
    if error is None:
        assert read_integers(BodyReader(payload, 100), count, 0, 2**15 - 1).tolist() == [1, 0, 0, 0]
        return
    with pytest.raises(error, match=message):
        read_integers(BodyReader(payload, 100), count, 0, 2**15 - 1)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"\x00", "number of indices is 0"),
        (b"\x0b", "number of indices is 11"),
        (b"\x02\x20", "gaps with 32 low bits"),
        (b"\x02\xff\x2d", "beyond the last set"),
        (b"\x02\x00\x00\x30", "a unary integer is over 10"),
        (b"\x02\x00\x20\x10", "not below 10"),
    ],
)
def test_wrong_index_sets_are_named(payload: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        read_indices(BodyReader(payload, 100), 10)


def test_more_numbered_indices_than_allowed_are_refused() -> None:
    with pytest.raises(Malformed, match="25 numbered indices"):
        read_indices(BodyReader(b"\x19\xff" + bytes(100), 1000), 1000)


def test_equality_is_by_content() -> None:
    assert Levels((2, 3), LEVELS.codes.astype(np.int64), -1.0, 1.0, 2) == LEVELS
    assert Levels((3, 2), LEVELS.codes, -1.0, 1.0, 2) != LEVELS
    assert Dithered((2, 3), LEVELS.codes, -1.0, 1.0, 2, 0) != LEVELS
    minus, plus = (Identity().compress(torch.tensor([zero]), generator()) for zero in (-0.0, 0.0))
    assert minus != plus
    assert prod(LEVELS.shape) == LEVELS.codes.size


def test_both_ends_compute_alike_however_the_codes_are_stored() -> None:
    for value in torch.rand(200, generator=generator()):
        made = QSGD(bits=16).compress(value.reshape(1), generator())
        assert torch.equal(wire.decode(wire.encode(made)).to_tensor(), made.to_tensor())
    codes = np.array([1, 40_000, 65_535, 7])
    for dtype in (np.uint16, np.int32, np.int64):
        assert torch.equal(
            UniformGrid((4,), codes.astype(dtype), 0.1).to_tensor(), UniformGrid((4,), codes, 0.1).to_tensor()
        )


def test_sparse_integers_are_not_nested() -> None:
    out = BodyWriter()
    out.byte(9)
    out.shape((1,))
    out.float64(1.0)
    for _ in range(600):
        out.raw(bytes([5, 0, 1, 0, 1, 0xFF]))
    with pytest.raises(Malformed, match="sparse integers inside sparse ones"):
        wire.decode(out.body())


def test_a_buffer_may_be_used_again() -> None:
    made = Uniform(8).compress(torch.randn(600, generator=generator()), generator())
    buffer = bytearray(wire.encode(made))
    decoded = wire.decode(buffer)
    buffer[:] = bytes(len(buffer))
    assert decoded == made


def test_a_long_run_of_zeros_is_read_in_few_steps_and_then_refused() -> None:
    body = b"\x09\x01\x02" + np.float64(1).tobytes() + b"\x04\x00\x03" + bytes(1 << 24)
    with pytest.raises(Malformed, match="a unary integer is over 3"):
        wire.decode(body)


def test_counts_that_would_leave_float32_are_refused() -> None:
    made = Counts((2,), np.array([1, 2]), 5, 4, 0.1, 1.0)
    for at, value in ((6, 5e-324), (14, 1e300)):
        body = bytearray(wire.encode(made))
        body[at : at + 8] = np.float64(value).tobytes()
        with pytest.raises(Malformed, match="counts with beta"):
            wire.decode(bytes(body))
