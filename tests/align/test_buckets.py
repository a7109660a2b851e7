"""Large sets in buckets on disk: the same rows, what is kept, and what is refused. Here eight ids are many."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from hashlib import sha256
from math import exp, lgamma, log, log1p
from pathlib import Path
from signal import SIGKILL
from subprocess import DEVNULL, Popen, run
from time import sleep
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from align.talking import CREW, LABEL, SMALL, Change, Wire, aligned, changed_body, common_ids
from thinwire.align import (
    Alignment,
    NoOverlap,
    RistrettoBackend,
    Terms,
    TooLittleOverlap,
    Workspace,
    bucket_files,
    intersect,
    normalize_ids,
    read_alignment,
    store_ids,
    write_alignment,
)
from thinwire.align.bucket_files import BucketPlan, plan_buckets
from thinwire.align.ids import sort_common_rows, tag_size
from thinwire.base.errors import BadFile, BadIds, BadState, Malformed, ThinwireError
from thinwire.base.types import Kind, PartyName
from thinwire.data.readers.features import read_id_texts, stream_id_texts
from thinwire.engine.channel.base import Message

IDS: dict[PartyName, list[Any]] = {
    "bank": [f"id {number}" for number in range(60)],
    "mill": [f"id {number}" for number in range(10, 70)],
    LABEL: [f"id {number}" for number in range(5, 50)][::-1],
}


class PlainBackend:
    """Both ends send hashes of their ids as they are: quick, for what happens around a backend."""

    name = "plain hashes, for these tests"

    def match_as_label(self, talk: Any, ids: Any, peer_ids: Any, on_progress: Any) -> dict[str, Any]:
        mine, places = self._hash(ids), {}
        for peer, count in peer_ids.items():
            talk.send(peer, Kind.BLINDED_IDS, 0, b"".join(mine))
            body = talk.receive_exactly(peer, Kind.BLINDED_IDS, 0, 32 * count)
            theirs = {body[32 * place : 32 * place + 32]: place for place in range(count)}
            places[peer] = np.array([theirs.get(one, -1) for one in mine])
        return places

    def match_as_feature(self, talk: Any, ids: Any, peer_ids: int, on_progress: Any) -> Any:
        talk.send(talk.label_party, Kind.BLINDED_IDS, 0, b"".join(reversed(self._hash(ids))))
        talk.receive_exactly(talk.label_party, Kind.BLINDED_IDS, 0, 32 * peer_ids)
        return np.arange(len(ids))[::-1]

    def _hash(self, ids: Any) -> list[bytes]:
        return [sha256(text).digest() for text in ids.texts(np.arange(len(ids)))]


PLAIN = PlainBackend()


def rooms(folder: Path, parties: Iterable[str] = IDS, **settings: Any) -> dict[str, Workspace]:
    return {party: Workspace(folder / party, bucket_ids=16, in_memory_ids=8, **settings) for party in parties}


def in_buckets(folder: Path, ids: dict[str, list[Any]] = IDS, **settings: Any) -> dict[str, Alignment]:
    """Four buckets; what stopped it is raised, and what was done stays in the folder."""
    return aligned(ids, workspaces=rooms(folder), **{"backend": PLAIN} | settings)


def match_files(folder: Path, party: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((folder / party).glob("*.match"))}


# The same as at once ------------------------------------------------------------------------------------------------


def test_rows_order_and_digest_are_those_of_an_alignment_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("protocol", "bucketed"):
        monkeypatch.setattr(f"thinwire.align.{module}.fresh_nonce", lambda: bytes(range(32)))
    at_once, parted = aligned(IDS), in_buckets(tmp_path, backend=SMALL)
    for party, alignment in at_once.items():
        assert np.array_equal(parted[party].rows, alignment.rows)
        assert parted[party].digest == alignment.digest
        assert (parted[party].sizes, parted[party].pairwise) == (alignment.sizes, alignment.pairwise)
        rows, digest = sort_common_rows(normalize_ids(IDS[party]), np.sort(parted[party].rows), bytes(range(32)))
        assert (rows.tolist(), digest.hex()) == (parted[party].rows.tolist(), parted[party].digest)
    texts = common_ids(IDS, parted)
    assert set(texts[LABEL]) == {f"id {number}" for number in range(10, 50)}


def test_small_sets_are_matched_at_once_whatever_the_folder(tmp_path: Path) -> None:
    wire = Wire()
    aligned(IDS, backend=PLAIN, wire=wire, workspaces={party: Workspace(tmp_path / party) for party in IDS})
    assert wire.bodies(Kind.ALIGNMENT, LABEL, "bank")[1] == b"[]"
    assert not list(tmp_path.iterdir())


def test_the_number_of_buckets_follows_from_the_largest_party() -> None:
    assert plan_buckets(1 << 20) is None
    counts = {ids: plan.count for ids in (2**20 + 1, 10**7, 10**9) if (plan := plan_buckets(ids))}
    assert counts == {2**20 + 1: 4, 10**7: 32, 10**9: 2048}
    for ids, count in counts.items():
        assert 2**17 < ids / count <= bucket_files.BUCKET_IDS


def test_the_simulator_uses_buckets_too(tmp_path: Path) -> None:
    found = intersect(IDS, LABEL, backend=PLAIN, workspaces=rooms(tmp_path))
    assert {len(one) for one in found.values()} == {40}
    assert (tmp_path / "bank" / "buckets.json").exists()


def test_a_large_alignment_is_written_in_pieces_and_read_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = in_buckets(tmp_path)["bank"]
    assert isinstance(found.rows, np.memmap)
    monkeypatch.setattr("thinwire.align.alignment._PIECE", 7)
    write_alignment(tmp_path / "bank.alignment", found)
    rooms(tmp_path)["bank"].clear()
    assert read_alignment(tmp_path / "bank.alignment") == found
    assert not (tmp_path / "bank").exists()


# What sizes show ----------------------------------------------------------------------------------------------------


def test_all_buckets_travel_with_one_size(tmp_path: Path) -> None:
    wire = Wire()
    in_buckets(tmp_path, wire=wire, backend=RistrettoBackend(CREW, 1000))
    plan = BucketPlan(4, bytes(32))
    for sender, receiver in (("bank", LABEL), (LABEL, "bank")):
        sizes = [len(body) // 32 for body in wire.bodies(Kind.BLINDED_IDS, sender, receiver)]
        assert sizes == [plan.bucket_size(len(IDS[sender]))] * 4
    assert len(set(wire.points())) == len(wire.points())  # no two buckets, no padding is alike


def test_a_bucket_has_more_ids_than_room_only_by_a_chance_of_one_in_two_to_the_40() -> None:
    """Against the binomial distribution itself: its tail is below its first term over 1 minus the ratio of two."""
    for ids, count in ((10**5, 2), (10**7, 32), (10**9, 2048)):
        room = BucketPlan(count, bytes(32)).bucket_size(ids)
        first, share = room + 1, 1 / count
        ways = lgamma(ids + 1) - lgamma(first + 1) - lgamma(ids - first + 1)
        term = exp(ways + first * log(share) + (ids - first) * log1p(-share))
        assert count * term / (1 - (ids - first) / (first + 1) * share / (1 - share)) < 2.0**-40
        assert room < 1.035 * ids / count
    assert tag_size(300, 300, 4) == tag_size(600, 600)


# Going on -----------------------------------------------------------------------------------------------------------


class Killed(ThinwireError):
    """The process ended here."""


def killed_at(number: int, kind: Kind = Kind.BLINDED_IDS) -> Change:
    """Before it sends this message of a bucket: bucket b's begin at b * 2^30."""

    def change(message: Message) -> Message:
        if message.kind is kind and message.round == number:
            raise Killed
        return message

    return change


@pytest.mark.parametrize("party", IDS)
def test_a_stopped_alignment_goes_on_with_the_buckets_that_are_done(tmp_path: Path, party: str) -> None:
    with pytest.raises(Killed):
        in_buckets(tmp_path, changes={party: killed_at(3 << 30)})
    kept = {name: match_files(tmp_path, name) for name in IDS}  # some may be a bucket ahead of the others
    wire = Wire()
    notes: list[str] = []
    found = aligned(IDS, backend=PLAIN, wire=wire, workspaces=rooms(tmp_path, say=notes.append))
    assert set(common_ids(IDS, found)[LABEL]) == {f"id {number}" for number in range(10, 50)}
    assert any(note.startswith(tuple(f"{done} of 4 buckets are done" for done in (1, 2, 3))) for note in notes)
    assert {message.round >> 30 for message in wire.messages if message.kind is Kind.BLINDED_IDS} <= {1, 2, 3}
    for name, files in kept.items():
        assert match_files(tmp_path, name)["00000.match"] == files["00000.match"]


def test_one_that_is_stopped_at_the_end_matches_nothing_again(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        in_buckets(tmp_path, changes={LABEL: killed_at(2, Kind.COMMON_ROWS)})
    wire = Wire()
    in_buckets(tmp_path, wire=wire)
    assert not wire.points()


def test_a_party_without_its_folder_has_all_buckets_matched_again(tmp_path: Path) -> None:
    in_buckets(tmp_path)
    shutil.rmtree(tmp_path / "mill")
    notes: list[str] = []
    found = aligned(IDS, backend=PLAIN, workspaces=rooms(tmp_path, say=notes.append))
    assert {len(one) for one in found.values()} == {40}
    assert notes == ["0 of 4 buckets are done; 4 more are done here alone, and are matched again"]


def test_a_damaged_result_is_matched_again(tmp_path: Path) -> None:
    in_buckets(tmp_path)
    file = tmp_path / "bank" / "00002.match"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    wire = Wire()
    notes: list[str] = []
    found = aligned(IDS, backend=PLAIN, wire=wire, workspaces=rooms(tmp_path, say=notes.append))
    assert {len(one) for one in found.values()} == {40}
    assert notes[0] == f"{file}: is damaged: its checksum does not match; this bucket is matched again"
    assert {message.round >> 30 for message in wire.messages if message.kind is Kind.BLINDED_IDS} == {2}


@pytest.mark.parametrize(
    ("damage", "what"), [(lambda file: file.write_bytes(b"x"), "is damaged"), (Path.unlink, "cannot be read")]
)
def test_a_damaged_bucket_is_named_and_made_again(tmp_path: Path, damage: Any, what: str) -> None:
    with pytest.raises(Killed):
        in_buckets(tmp_path, changes={LABEL: killed_at(1 << 30)})
    file = tmp_path / "bank" / "00003.ids"
    damage(file)
    with pytest.raises(
        BadFile, match=rf"{file}: {what}.* start the same command again .* the \d that are done are kept"
    ):
        in_buckets(tmp_path)
    kept = match_files(tmp_path, "bank")
    assert {len(one) for one in in_buckets(tmp_path).values()} == {40}
    for name in ("00000.match", "00001.match"):
        assert match_files(tmp_path, "bank")[name] == kept[name]


@pytest.mark.parametrize("name", ["session.json", "00001.ids", "00002.match", "00000.sort"])
def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    function = "write_all" if name.endswith((".ids", ".sort")) else "replace_file"
    write = getattr(bucket_files, function)

    def fail(target: Any, *rest: Any, **settings: Any) -> None:
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if path.endswith(f"bank/{name}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(target, *rest, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(bucket_files, function, fail)
        says = rf"bank/{name}: could not write \d+ bytes: No space left.*make room.*are kept"
        with pytest.raises(ThinwireError, match=says):
            in_buckets(tmp_path)
    kept = match_files(tmp_path, "bank")
    assert len(kept) == {"00002.match": 2, "00000.sort": 4}.get(name, 0)
    assert {len(one) for one in in_buckets(tmp_path).values()} == {40}
    assert kept.items() <= match_files(tmp_path, "bank").items()


@pytest.mark.faults
def test_processes_that_were_killed_go_on_with_the_same_command(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "align.py"
    words = ["--ids", "3000", "--bucket-ids", "400", "--folder", str(tmp_path), "--json"]
    command = [sys.executable, str(script), *words]
    with Popen(command, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True) as first:
        while not (tmp_path / "shop" / "00001.match").exists():
            assert first.poll() is None
            sleep(0.01)
        os.killpg(first.pid, SIGKILL)
    kept = (tmp_path / "shop" / "00000.match").read_bytes()
    assert kept[:16] == (tmp_path / "bank" / "00000.match").read_bytes()[:16]
    second = run(command, capture_output=True, text=True, check=True)
    assert re.match(r"[1-7] of 8 buckets are done", second.stderr)
    assert json.loads(second.stdout)["runs"][0]["thinwire"]["common"] == 1500
    assert not (tmp_path / "shop").exists()


# What is refused ----------------------------------------------------------------------------------------------------


def test_ids_that_have_changed_since_are_refused_and_the_folder_stays(tmp_path: Path) -> None:
    in_buckets(tmp_path)
    kept = match_files(tmp_path, "bank")
    other = IDS | {"bank": [*IDS["bank"][:-1], "another"]}
    with pytest.raises(
        BadState, match=r"bank: holds the buckets of another alignment \(other ids_digest; 4 of 4 done\)"
    ):
        in_buckets(tmp_path, other)
    assert match_files(tmp_path, "bank") == kept
    assert {len(one) for one in in_buckets(tmp_path).values()} == {40}


def test_other_ids_take_a_folder_where_no_bucket_is_done(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        in_buckets(tmp_path, changes={LABEL: killed_at(0)})
    other = IDS | {"bank": IDS["bank"][1:], LABEL: [*IDS[LABEL][:-1], "another"]}
    assert set(common_ids(other, in_buckets(tmp_path, other))[LABEL]) == {f"id {number}" for number in range(10, 50)}


def test_a_peer_with_other_buckets_is_refused_and_the_folder_stays(tmp_path: Path) -> None:
    in_buckets(tmp_path)
    kept = match_files(tmp_path, "bank")
    shutil.move(tmp_path / LABEL, tmp_path / "away")
    with pytest.raises(BadState, match=r"bank: holds the buckets of another alignment \(other salt; 4 of 4 done\)"):
        in_buckets(tmp_path)
    assert match_files(tmp_path, "bank") == kept
    shutil.rmtree(tmp_path / LABEL, ignore_errors=True)
    shutil.move(tmp_path / "away", tmp_path / LABEL)
    wire = Wire()
    in_buckets(tmp_path, wire=wire)
    assert not wire.points()


def test_an_id_that_is_there_twice_is_found_in_its_bucket(tmp_path: Path) -> None:
    pieces = [["a", "b"], [f"id {number}" for number in range(40)], ["b "]]
    ids = store_ids(pieces, tmp_path / "stored", 8)
    room = rooms(tmp_path, where="bank.csv")["bank"]
    folder = bucket_files.BucketFolder(room)
    room.folder.mkdir()
    with pytest.raises(BadIds, match=r"^bank.csv: 1 id is repeated: row 43 repeats the id of row 2"):
        folder.split(ids, BucketPlan(4, bytes(32)))
    with pytest.raises(BadIds, match="row 43 repeats the id of row 2"):
        ids.require_different()


@pytest.mark.parametrize(
    ("sender", "kind", "number", "change", "what"),
    [
        (
            LABEL,
            Kind.ALIGNMENT,
            1,
            lambda _: b'{"buckets": 3, "engine": "", "salt": "' + b"0" * 64 + b'"}',
            "expected the names",
        ),
        (
            LABEL,
            Kind.ALIGNMENT,
            1,
            lambda _: b'{"buckets": 131072, "engine": "", "salt": "' + b"0" * 64 + b'"}',
            "expected the names",
        ),
        (LABEL, Kind.ALIGNMENT, 1, lambda _: b'{"buckets": 4, "salt": "00", "engine": ""}', "expected the names"),
        (LABEL, Kind.ALIGNMENT, 1, lambda _: b'{"buckets": true, "salt": 1, "engine": 1}', "expected the names"),
        (LABEL, Kind.ALIGNMENT, 5, lambda body: bytes(len(body)), "'shop' sent a bucket without a token"),
        (LABEL, Kind.ALIGNMENT, 5, lambda body: body[:-1], "ALIGNMENT 5 of 63 bytes, expected 64"),
        ("bank", Kind.ALIGNMENT, 5, lambda body: body + b"0", "'bank' sent ALIGNMENT 5 of 65 bytes, expected 64"),
        (
            LABEL,
            Kind.COMMON_ROWS,
            1,
            lambda body: b"\xff" * len(body),
            r"keys of bucket 1, of which 0 are those of ids",
        ),
        (LABEL, Kind.COMMON_ROWS, 1, lambda body: body[:7] * (len(body) // 7), "keys of bucket 1, of which 1 are"),
        (
            LABEL,
            Kind.COMMON_ROWS,
            1,
            lambda body: body + b"0",
            r"keys of bucket 1 in \d+ bytes, but at most \d+ of 7 are possible",
        ),
        (LABEL, Kind.COMMON_ROWS, 1, lambda body: body * 99, r"keys of bucket 1 in \d+ bytes, but at most"),
        (LABEL, Kind.COMMON_ROWS, 0, lambda body: body[:32], "after announcing 40"),
        (LABEL, Kind.COMMON_ROWS, 4, lambda body: body[1:], "COMMON_ROWS 4 of 31 bytes, expected 32"),
    ],
)
def test_messages_that_cannot_be_are_refused(
    tmp_path: Path, sender: str, kind: Kind, number: int, change: Any, what: str
) -> None:
    with pytest.raises(Malformed, match=what):
        in_buckets(tmp_path, changes={sender: changed_body(kind, change, number)})


def test_terms_hold_for_buckets_too(tmp_path: Path) -> None:
    with pytest.raises(TooLittleOverlap, match="the parties share 40 ids, too few for 'mill'"):
        in_buckets(tmp_path, terms={"mill": Terms(41)})
    with pytest.raises(NoOverlap, match=r"no id is held by all parties \(0 with 'bank'\)"):
        intersect({LABEL: range(20), "bank": range(20, 40)}, LABEL, backend=PLAIN, workspaces=rooms(tmp_path / "two"))


# Ids in pieces ------------------------------------------------------------------------------------------------------


def test_ids_that_are_stored_are_those_in_memory(tmp_path: Path) -> None:
    values = [f"{'é' * (number % 5)}{number} " for number in range(30)]
    plain, stored = normalize_ids(values), store_ids([values[:9], values[9:11], [], values[11:]], tmp_path, 8)
    assert stored.decode() == plain.decode()
    assert stored.digest() == plain.digest()
    assert store_ids([values], tmp_path, 8).decode() == plain.decode()  # over what was there
    assert store_ids([values[:4], values[4:]], tmp_path / "none", 30).decode() == plain.decode()
    assert not (tmp_path / "none").exists()
    with pytest.raises(BadIds, match="here: 2 rows have no id: rows 3, 12"):
        store_ids([["a", "b", None], list("cdefghij"), [" "]], tmp_path, 2, "here")
    with pytest.raises(BadIds, match="there are no ids"):
        store_ids([[]], tmp_path, 2)


def test_tables_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.data.readers.features._PIECE", 4)
    column = ["a", None, "c", "d", "e", "f", "g", "h", "i"]
    parquet.write_table(pa.table({"id": column, "x": range(9)}), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("id,x\n" + "".join(f"{one or ''},1\n" for one in column))
    np.savez(tmp_path / "rows.npz", id=np.arange(9))
    for file in ("rows.parquet", "rows.csv"):
        pieces = list(stream_id_texts(tmp_path / file, column="id"))
        assert [len(piece) for piece in pieces] == [4, 4, 1]
        assert read_id_texts(tmp_path / file, column="id") == column
    assert read_id_texts(tmp_path / "rows.npz", "id") == [str(number) for number in range(9)]
