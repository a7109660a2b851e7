"""Durable links without a network: whatever connections do, the frames come once, in order and unchanged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from thinwire.base.errors import Malformed, WireError
from thinwire.base.types import Kind
from thinwire.engine.channel.base import TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.net.links.outgoing_log import OutgoingLog
from thinwire.net.links.peer_end import LinkEnds
from thinwire.net.links.peer_link import AttachedLink, PeerLink
from thinwire.net.links.records import CHUNK, Record
from thinwire.storage.atomic_file import WriteFailed

PARTIES = ("bank", "shop")


def ignore(*_: Any, **__: Any) -> None:
    """Events are not looked at, and there is nothing to hang up."""


def never_full(failed: WriteFailed) -> None:
    raise AssertionError(str(failed))


def link(folder: Path, me: str, incarnation: int = 1) -> PeerLink:
    peer = "shop" if me == "bank" else "bank"
    log = OutgoingLog(folder / me, incarnation, never_full)
    return PeerLink(LinkEnds(7, me, peer, PARTIES), log, Ledger(), ignore)


def joined(a: PeerLink, b: PeerLink) -> tuple[AttachedLink, AttachedLink]:
    said_a, said_b = a.describe_state(), b.describe_state()
    return a.attach(ignore, said_b["received"], said_b["kept"]), b.attach(ignore, said_a["received"], said_a["kept"])


def carried(source: AttachedLink, sink: AttachedLink, break_after: int) -> None:
    """Moves up to so many records, then the connection breaks."""
    records = source.outgoing()
    waiting = source._link.log.next_sequence - source._next  # frames of one record each
    for _ in range(min(waiting, break_after)):
        sink.incoming(next(records))
    source.end("broken")
    sink.end("broken")


def carry_on(source: AttachedLink, sink: AttachedLink) -> None:
    """Moves records for as long as the connection lasts."""

    def move() -> None:
        for record in source.outgoing():
            sink.incoming(record)

    Thread(target=move, daemon=True).start()


def records(attached: AttachedLink, count: int) -> list[bytes]:
    source = attached.outgoing()
    return [next(source) for _ in range(count)]


def bodies(count: int, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)  # noqa: S311
    return [rng.randbytes(rng.choice([0, 1, 50, 5000])) for _ in range(count)]


def test_frames_come_in_order_and_unchanged(tmp_path: Path) -> None:
    bank, shop = link(tmp_path, "bank"), link(tmp_path, "shop")
    up, down = joined(bank, shop)
    sent = [*bodies(20), b"x" * (3 * CHUNK + 5)]
    carry_on(up, down)
    for round, body in enumerate(sent):
        bank.post(Kind.EMBEDDING, round, body, durable=False)
    for round, body in enumerate(sent):
        message = shop.take(Kind.EMBEDDING, round, 5)
        assert message is not None
        assert bytes(message.body) == body
    up.end("done")


def test_a_program_that_expects_something_else_is_told_at_once(tmp_path: Path) -> None:
    bank, shop = link(tmp_path, "bank"), link(tmp_path, "shop")
    up, down = joined(bank, shop)
    bank.post(Kind.EMBEDDING, 3, b"", durable=False)
    for record in records(up, 1):
        down.incoming(record)
    with pytest.raises(TransportError, match="'bank' sent EMBEDDING of round 3 where EMBEDDING of round 2 was next"):
        shop.take(Kind.EMBEDDING, 2, 5)


@pytest.mark.parametrize("seed", range(20))
def test_any_number_of_broken_connections_changes_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    bank, shop = link(tmp_path, "bank"), link(tmp_path, "shop")
    sent = bodies(40, seed)
    for round, body in enumerate(sent):
        bank.post(Kind.EMBEDDING, round, body, durable=False)
        if rng.random() < 0.3:
            up, down = joined(bank, shop)
            carried(up, down, break_after=rng.randrange(1, 8))
    up, down = joined(bank, shop)
    carry_on(up, down)
    taken = [shop.take(Kind.EMBEDDING, round, 1) for round in range(len(sent))]
    assert [bytes(message.body) for message in taken if message is not None] == sent


def test_a_restarted_sender_sends_the_bytes_of_its_log(tmp_path: Path) -> None:
    bank, shop = link(tmp_path, "bank"), link(tmp_path, "shop")
    up, _ = joined(bank, shop)
    bank.post(Kind.EMBEDDING, 0, b"as first sent", durable=False)
    first = records(up, 1)
    again = link(tmp_path, "bank", incarnation=2)
    again.post(Kind.EMBEDDING, 0, b"computed anew", durable=False)
    up, down = joined(again, shop)
    assert records(up, 1) == first
    down.incoming(first[0])
    message = shop.take(Kind.EMBEDDING, 0, 1)
    assert message is not None
    assert bytes(message.body) == b"as first sent"
    assert again._ledger.total().retransmitted == bank.log.size_bytes - 24


def test_duplicates_are_dropped_and_gaps_refused(tmp_path: Path) -> None:
    bank, shop = link(tmp_path, "bank"), link(tmp_path, "shop")
    up, down = joined(bank, shop)
    for round in range(3):
        bank.post(Kind.EMBEDDING, round, b"abc", durable=False)
    one, two, three = records(up, 3)
    down.incoming(one)
    down.incoming(one)
    assert shop.duplicates == 1
    with pytest.raises(Malformed, match="frame 2 came where 1 was next"):
        down.incoming(three)
    assert shop.describe_state()["received"] == 1
    down.incoming(two)
    down.incoming(three)
    assert shop.describe_state()["received"] == 3


def every_mutation(record: bytes) -> Iterator[bytes]:
    for place in range(len(record)):
        for bit in range(8):
            changed = bytearray(record)
            changed[place] ^= 1 << bit
            yield bytes(changed)


def test_no_changed_frame_is_taken_for_the_one_that_was_sent(tmp_path: Path) -> None:
    bank = link(tmp_path, "bank")
    bank.post(Kind.EMBEDDING, 0, b"body", durable=False)
    up, _ = joined(bank, link(tmp_path, "shop"))
    (record,) = records(up, 1)
    for changed in every_mutation(record):
        shop = link(tmp_path / changed.hex(), "shop")
        down = shop.attach(ignore, 0, 0)
        with suppress(WireError):
            down.incoming(changed)
        assert not shop.holds(Kind.EMBEDDING, 0)


@pytest.mark.parametrize(
    ("other", "why"),
    [({"run": 8}, "run"), ({"me": "shop", "peer": "bank"}, "from party 1"), ({"parties": ("shop", "bank")}, "party")],
)
def test_a_frame_of_another_run_or_party_is_refused(tmp_path: Path, other: dict[str, Any], why: str) -> None:
    ends: dict[str, Any] = {"run": 7, "me": "bank", "peer": "shop", "parties": PARTIES} | other
    log = OutgoingLog(tmp_path / "wrong", 1, never_full)
    wrong = PeerLink(LinkEnds(**ends), log, Ledger(), ignore)
    wrong.post(Kind.EMBEDDING, 0, b"", durable=False)
    shop = link(tmp_path, "shop")
    down = shop.attach(ignore, 0, 0)
    with pytest.raises(Malformed, match=why):
        down.incoming(records(wrong.attach(ignore, 0, 0), 1)[0])
    assert shop.describe_state()["received"] == 0


def test_a_frame_over_the_cap_is_refused_by_its_announcement(tmp_path: Path) -> None:
    bank, shop = link(tmp_path, "bank"), link(tmp_path, "shop")
    shop.max_body = 100
    bank.post(Kind.EMBEDDING, 0, b"x" * 101, durable=False)
    up, down = joined(bank, shop)
    with pytest.raises(WireError, match="101 bytes is announced, the cap is 100"):
        down.incoming(records(up, 1)[0])


@pytest.mark.parametrize(
    "record",
    [b"\x00", bytes([Record.MORE, 1]), bytes([Record.HELLO]), bytes([Record.FRAME]), b"\xff", bytes([Record.KEPT])],
)
def test_records_that_cannot_be_are_refused(tmp_path: Path, record: bytes) -> None:
    shop = link(tmp_path, "shop")
    with pytest.raises(WireError):
        shop.attach(ignore, 0, 0).incoming(record)


@pytest.mark.parametrize("piece", [b"", b"x", b"x" * 6])
def test_a_frame_comes_in_no_crumbs(tmp_path: Path, piece: bytes) -> None:
    bank, shop = link(tmp_path, "bank"), link(tmp_path, "shop")
    bank.post(Kind.EMBEDDING, 0, b"x" * (CHUNK + 5), durable=False)
    up, down = joined(bank, shop)
    down.incoming(records(up, 1)[0])
    with pytest.raises(Malformed, match=f"{len(piece)} bytes came where a frame had 5 to go"):
        down.incoming(bytes([Record.MORE]) + piece)


def test_what_the_peer_has_kept_is_forgotten_and_asking_for_it_is_an_error(tmp_path: Path) -> None:
    bank, shop = link(tmp_path, "bank"), link(tmp_path, "shop")
    up, down = joined(bank, shop)
    for round in range(4):
        bank.post(Kind.EMBEDDING, round, b"abc", durable=False)
        bank.log.roll()
    for record in records(up, 4):
        down.incoming(record)
    shop.keep(2)
    for record in records(down, 1):
        up.incoming(record)
    assert bank.log.first_sequence == 2
    with pytest.raises(TransportError, match="'shop' goes on from frame 1, our log holds 2 to 4"):
        bank.attach(ignore, 1, 0)


def test_a_failed_link_raises_wherever_a_program_touches_it(tmp_path: Path) -> None:
    shop = link(tmp_path, "shop")
    shop.fail(TransportError("over"))
    for touch in (
        lambda: shop.take(Kind.EMBEDDING, 0, 1),
        lambda: shop.holds(Kind.EMBEDDING, 0),
        lambda: shop.post(Kind.EMBEDDING, 0, b"", durable=False),
    ):
        with pytest.raises(TransportError, match="over"):
            touch()


def test_a_peer_may_let_go_of_frames_in_the_very_moment_they_are_replayed(tmp_path: Path) -> None:
    """A restarted program posts again what is logged, while the peer says what it has kept."""
    frames, first = 600, link(tmp_path, "bank")
    for number in range(frames):
        first.post(Kind.EMBEDDING, number, b"body", durable=False)
        if number % 5 == 4:
            first.log.roll()
    first.log.close()
    for attempt in range(5):
        restarted = link(tmp_path, "bank", incarnation=attempt + 2)
        began = restarted.log.first_sequence
        keeps = Thread(target=lambda log=restarted.log: [log.prune(number) for number in range(frames - 100)])
        keeps.start()
        for number in range(frames):
            restarted.post(Kind.EMBEDDING, number, b"body", durable=False)
        keeps.join()
        restarted.log.close()
        assert restarted.log.first_sequence >= began
