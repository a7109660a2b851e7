"""Messages that cannot be are refused, and the party that sent them is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from align.talking import CREW, LABEL, Change, Wire, aligned, changed_body, common_ids, outcomes
from thinwire.align import AlignmentsDiffer, NoOverlap, RistrettoBackend, Terms, TooLittleOverlap
from thinwire.align.protocol import Step
from thinwire.base.errors import Malformed, ThinwireError, TooLarge, UnknownTag
from thinwire.base.types import Kind
from thinwire.engine.channel.base import Message

IDS = {"bank": list(range(20)), "mill": list(range(5, 25)), LABEL: list(range(3, 22))}  # 5 to 19 in common
HELLO, POINTS, TAGS, ROWS = Kind.ALIGNMENT, Kind.BLINDED_IDS, Kind.MATCH_TAGS, Kind.COMMON_ROWS


def at(place: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda body: body[:place] + data + body[place + len(data) :]


def copied(source: int, target: int, size: int) -> Callable[[bytes], bytes]:
    return lambda body: body[:target] + body[source : source + size] + body[target + size :]


def cut(size: int) -> Callable[[bytes], bytes]:
    return lambda body: body[:-size]


def swapped_bits(body: bytes) -> bytes:
    """As many bits as before, one of them at another place."""
    bits = int.from_bytes(body[64:], "little")
    one = next(place for place in range(20) if bits >> place & 1)
    none = next(place for place in range(20) if not bits >> place & 1)
    return body[:64] + (bits ^ (1 << one) ^ (1 << none)).to_bytes(len(body) - 64, "little")


def one_bit_less(body: bytes) -> bytes:
    bits = int.from_bytes(body[64:], "little")
    return body[:64] + (bits & (bits - 1)).to_bytes(len(body) - 64, "little")


def padding_bit(body: bytes) -> bytes:
    """A bit moved behind the end of a list of 20."""
    return one_bit_less(body)[:-1] + bytes([one_bit_less(body)[-1] | 0x80])


CASES: list[tuple[str, Kind, int, Callable[[bytes], bytes], type[ThinwireError], str]] = [
    ("bank", HELLO, 0, cut(32), Malformed, "'bank' sent a greeting of"),
    ("bank", HELLO, 0, at(0, b"\x01"), UnknownTag, "'bank' speaks version 1, this party 2"),
    ("bank", HELLO, 0, lambda body: body + b"!", UnknownTag, "'bank' matches by 'ristretto255, 8 ids per message!'"),
    ("bank", HELLO, 0, cut(1), UnknownTag, "'bank' matches by"),
    ("bank", HELLO, 0, at(1, bytes(8)), Malformed, "'bank' sent a message that it has no ids"),
    (
        "bank",
        HELLO,
        0,
        at(1, b"\xff" * 8),
        TooLarge,
        "'bank' has 18446744073709551615 ids, more than this party's max_peer_ids",
    ),
    (LABEL, HELLO, 0, at(1, b"\xff" * 8), TooLarge, "'shop' has 18446744073709551615 ids"),
    (LABEL, HELLO, 0, at(0, b"\0"), UnknownTag, "'shop' speaks version 0"),
    ("bank", HELLO, 0, at(1, b"\x15"), Malformed, "'bank' sent BLINDED_IDS 2 of 128 bytes, expected 160"),
    ("bank", HELLO, 0, at(1, b"\x13"), Malformed, "'bank' sent BLINDED_IDS 2 of 128 bytes, expected 96"),
    (LABEL, HELLO, 0, at(1, b"\x14"), Malformed, "'shop' sent BLINDED_IDS 2 of 96 bytes, expected 128"),
    ("bank", HELLO, 1, at(0, b"\x07"), Malformed, "'bank' sent the verdict"),
    ("bank", HELLO, 3, cut(1), Malformed, "'bank' sent ALIGNMENT 3 of 0 bytes, expected 1"),
    (LABEL, HELLO, 1, lambda _: b"{", Malformed, "'shop' sent b'{', expected the names of the parties that refuse"),
    (LABEL, HELLO, 1, lambda _: b'"bank"', Malformed, "'shop' sent .*expected the names"),
    (LABEL, HELLO, 1, lambda _: b'["mine"]', Malformed, "'shop' sent .*mine.*expected the names"),
    (LABEL, HELLO, 1, lambda _: b"[[]]", Malformed, "'shop' sent .*expected the names"),
    (LABEL, HELLO, 3, lambda _: b"[" * 100_000, Malformed, "'shop' sent .*expected the names"),
    ("bank", POINTS, 0, cut(1), Malformed, "'bank' sent BLINDED_IDS 0 of 255 bytes, expected 256"),
    ("bank", POINTS, 0, cut(32), Malformed, "'bank' sent BLINDED_IDS 0 of 224 bytes, expected 256"),
    ("bank", POINTS, 1, lambda body: body + body[:32], Malformed, "'bank' sent BLINDED_IDS 1 of 288 bytes"),
    (
        "bank",
        POINTS,
        2,
        at(32, bytes(32)),
        Malformed,
        "'bank' sent a blinded id, number 17, that is not a curve point",
    ),
    (
        "bank",
        POINTS,
        0,
        at(0, b"\xff" * 32),
        Malformed,
        "'bank' sent a blinded id, number 0, that is not a curve point",
    ),
    (LABEL, POINTS, 0, at(96, bytes(32)), Malformed, "'shop' sent a blinded id, number 3, that is not a curve point"),
    (LABEL, POINTS, 2, cut(32), Malformed, "'shop' sent BLINDED_IDS 2 of 64 bytes, expected 96"),
    (
        "bank",
        POINTS,
        1,
        copied(0, 32, 32),
        Malformed,
        "'bank' sent blinded ids of which numbers (8 and 9|9 and 8) are the same",
    ),
    (
        LABEL,
        POINTS,
        1,
        copied(0, 32, 32),
        Malformed,
        "'shop' sent blinded ids of which numbers (8 and 9|9 and 8) are the same",
    ),
    ("bank", TAGS, 0, cut(1), Malformed, "'bank' sent MATCH_TAGS 0 of 55 bytes, expected 56"),
    ("bank", TAGS, 2, lambda body: body + b"\0", Malformed, "'bank' sent MATCH_TAGS 2 of"),
    (
        "bank",
        TAGS,
        1,
        copied(0, 7, 7),
        Malformed,
        "'bank' sent match tags of which numbers (8 and 9|9 and 8) are the same",
    ),
    (LABEL, HELLO, 2, at(0, b"\x14"), Malformed, "'shop' sent an overlap of 20 ids, of at most 19"),
    (LABEL, HELLO, 2, cut(1), Malformed, "'shop' sent ALIGNMENT 2 of 7 bytes, expected 8"),
    (LABEL, HELLO, 2, at(0, b"\x0e"), Malformed, "'shop' sent 15 common rows of 20, after announcing 14"),
    (LABEL, ROWS, 0, cut(1), Malformed, "'shop' sent COMMON_ROWS 0 of 66 bytes, expected 67"),
    (LABEL, ROWS, 0, lambda body: body + b"\0", Malformed, "'shop' sent COMMON_ROWS 0 of 68 bytes"),
    (LABEL, ROWS, 0, one_bit_less, Malformed, "'shop' sent 14 common rows of 20, after announcing 15"),
    (LABEL, ROWS, 0, padding_bit, Malformed, "'shop' sent 15 common rows of 20, after announcing 15"),
    (
        LABEL,
        ROWS,
        0,
        swapped_bits,
        AlignmentsDiffer,
        "the rows of 'bank' do not match those of the label party; align again",
    ),
    (LABEL, ROWS, 0, at(0, bytes(32)), AlignmentsDiffer, "the rows of 'bank' do not match"),
    (LABEL, ROWS, 0, at(32, bytes(32)), AlignmentsDiffer, "the rows of 'bank' do not match"),
    ("bank", HELLO, 4, at(0, b"\0"), AlignmentsDiffer, "the rows of 'bank' do not match"),
]


@pytest.mark.parametrize(("party", "kind", "number", "change", "error", "says"), CASES)
def test_a_message_that_cannot_be_names_its_sender(
    party: str, kind: Kind, number: int, change: Callable[[bytes], bytes], error: type[ThinwireError], says: str
) -> None:
    with pytest.raises(error, match=says):
        aligned(IDS, changes={party: changed_body(kind, change, number)})


def test_a_refusal_cannot_be_overruled() -> None:
    for step, least in ((Step.SIZES_ACCEPTED, 20), (Step.OVERLAP_ACCEPTED, 16)):
        turned = changed_body(HELLO, lambda _: b"\x01", step)
        with pytest.raises(Malformed, match="'shop' sent an agreement that 'bank' has refused"):
            aligned(IDS, terms={"bank": Terms(least)}, changes={"bank": turned})


def test_ends_that_cut_their_messages_otherwise_do_not_begin() -> None:
    wire = Wire()
    backends = dict.fromkeys(IDS, RistrettoBackend(CREW, 8)) | {"mill": RistrettoBackend(CREW, 16)}
    with pytest.raises(UnknownTag, match=r"'(mill|shop)' matches by 'ristretto255, (8|16) ids per message'"):
        aligned(IDS, backend=backends, wire=wire)
    assert {message.kind for message in wire.messages} == {HELLO}


def test_all_are_told_that_one_of_them_differs() -> None:
    for change in (swapped_bits, at(0, bytes(32)), at(32, bytes(32))):
        found = outcomes(IDS, changes={LABEL: changed_body(ROWS, change)})
        for outcome in found.values():
            assert isinstance(outcome, AlignmentsDiffer)
            assert outcome.parties == ("bank",)


def one_change(target: int, change: Callable[[bytes], bytes]) -> dict[str, Change]:
    """Changes the message that is sent as number `target` of all."""
    count = [0]

    def changed(message: Message) -> Message:
        count[0] += 1
        if count[0] - 1 != target:
            return message
        return replace(message, body=change(bytes(message.body)))

    return dict.fromkeys(IDS, changed)


@settings(max_examples=150)
@given(
    st.integers(0, 45), st.integers(0, 10**6), st.integers(1, 255), st.sampled_from(["flip", "cut", "grow", "none"])
)
def test_any_change_ends_in_an_error_of_ours_or_in_common_rows(target: int, place: int, flip: int, way: str) -> None:
    def change(body: bytes) -> bytes:
        spot = place % max(1, len(body))
        match way:
            case "flip":
                return body[:spot] + bytes([body[spot] ^ flip]) + body[spot + 1 :] if body else b"x"
            case "cut":
                return body[:spot]
            case "grow":
                return body + bytes(flip)
            case _:
                return b""

    try:
        found = aligned(IDS, changes=one_change(target, change))
    except (Malformed, UnknownTag, TooLarge, TooLittleOverlap, NoOverlap, AlignmentsDiffer):
        return
    rows = common_ids(IDS, found)
    assert rows[LABEL] == rows["bank"] == rows["mill"]
    assert set(rows[LABEL]) <= set(range(5, 20))
    assert len({alignment.digest for alignment in found.values()}) == 1
