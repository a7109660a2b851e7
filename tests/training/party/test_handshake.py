"""What may go wrong when two parties meet: each is refused in seconds, by name, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from threading import current_thread
from time import monotonic
from typing import Any

import grpc
import numpy as np
import pytest

from net.callers import channel_to, own_identity, refusal
from processes import until
from thinwire import cli
from thinwire.base.errors import BadInput, Malformed
from thinwire.base.types import Kind
from thinwire.engine.wire.frame import Frame, frame_header
from thinwire.net.grpc import server as grpc_server
from thinwire.net.grpc.service import CLAIM, PROTOCOL, RPCS
from thinwire.net.links.peer_link import PeerLink, WrongMessage
from thinwire.net.links.records import MAX_JSON, Record, frame_records, json_record, number_record
from thinwire.net.pki.authority import issue
from thinwire.training.party import session
from thinwire.training.party.feature_role import FeatureRole
from thinwire.training.party.label_role import LabelRole
from thinwire.training.party.party_run import PartyRun
from training.party.parties import (
    LABEL_PARTY,
    ROWS,
    TESTS,
    Document,
    PartyProcesses,
    PartyThread,
    Place,
    Shape,
    contents,
    finished,
    log_of,
    made,
    threads,
)

TALK = RPCS["Talk"]
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
DATA_LOSS = grpc.StatusCode.DATA_LOSS
SVFL = Shape({"method": "svfl"}, ids=True)
AT_ONCE = 5.0  # seconds


@dataclass(frozen=True)
class Waiting:
    """A label party that listens, and what 'bank' would say to it."""

    place: Place
    run: PartyRun
    hello: dict[str, Any]
    said: list[str]  # by the label party, to people

    def refuses(self, first: bytes) -> Any:
        """bank begins a connection with these bytes; nothing may come of it."""
        before, began = contents(self.run.session.folder), monotonic()
        with channel_to(self.place.port, LABEL_PARTY, own_identity(self.place.certs, "bank")) as channel:
            error = refusal(channel, TALK, ["bank"], first)
        assert monotonic() - began < AT_ONCE
        assert contents(self.run.session.folder) == before
        assert not self.run.session.links["bank"].is_connected
        assert self.run.session.peers["bank"].incarnation == 0
        return error

    def refuses_hello(self, **changes: Any) -> str:
        error = self.refuses(json_record(Record.HELLO, {**self.hello, **changes}))
        assert error.code() is FAILED_PRECONDITION, error
        assert "bank" in error.details()
        return str(error.details())


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    """One for all that must leave no trace."""
    yield from _waiting(tmp_path_factory.mktemp("waiting"))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Waiting]:
    yield from _waiting(tmp_path)


def _waiting(folder: Path) -> Iterator[Waiting]:
    place = made(folder, SVFL)
    party = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    party.start()
    assert isinstance(party.run.role, LabelRole)
    yield Waiting(place, party.run, hello_of(place, "bank"), party.seen.sentences)
    party.over()


def hello_of(place: Place, name: str) -> dict[str, Any]:
    party = PartyThread(place.job, name, place.folder / "hello" / name)
    assert isinstance(party.run.role, FeatureRole)
    party.run.session.channel.close()
    party.run.session.events.close()
    party.over()
    return party.run.role.hello()


# HELLO ------------------------------------------------------------------------------------------------------------


def test_a_party_that_has_come_to_predict_is_told_that_this_is_a_training(waiting: Waiting) -> None:
    said = waiting.refuses_hello(purpose="prediction", run=None)
    assert "this party is training, the other is aligning or predicting" in said


@pytest.mark.parametrize("protocol", [0, 1, 3, PROTOCOL + 1, 2**70, -1, "2", None, 1.5, [2]])
def test_another_protocol_is_named_before_all_else(waiting: Waiting, protocol: Any) -> None:
    said = waiting.refuses_hello(protocol=protocol, version="9.9", agreement="another shape altogether")
    assert f"speaks protocol {protocol!r} (thinwire 9.9)" in said
    assert "use the same version at all parties" in said


def test_another_version_is_named_at_both_parties(waiting: Waiting) -> None:
    said = waiting.refuses_hello(version="9.9")
    assert "'bank' runs thinwire 9.9, 'clinic' runs" in said


def test_an_unknown_run_is_refused(waiting: Waiting) -> None:
    assert "'bank' is in run 00000000deadbeef" in waiting.refuses_hello(run="00000000deadbeef")


def test_a_run_that_began_elsewhere_is_refused(waiting: Waiting) -> None:
    said = waiting.refuses_hello(nonce="0" * 32)
    assert "'bank' resumes a different run of this job than 'clinic'" in said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("recipe", "0" * 64),
        ("job.seed", "4"),
        ("job.batch_size", "8"),
        ("job.epochs", "3"),
        ("job.eval_every", "1"),
        ("job.batches", "announced"),
        ("job.effort", "fast"),
        ("parties", "bank, post"),
        ("label_party", "shop"),
        ("recipe.something.new", "1"),
    ],
)
def test_a_field_that_differs_is_named_with_both_values_and_parties(waiting: Waiting, field: str, value: str) -> None:
    said = waiting.refuses_hello(agreement={**waiting.hello["agreement"], field: value})
    ours = waiting.hello["agreement"].get(field, "not given")
    shown = ours if len(ours) < 80 else ours[:80]
    assert f"{field} is {shown} at 'clinic' and {value} at 'bank'" in said


@pytest.mark.parametrize(
    ("field", "name"), [("rows", f"has {ROWS + 1} training rows"), ("test_rows", f"has {TESTS + 1} test rows")]
)
def test_another_number_of_rows_is_named(waiting: Waiting, field: str, name: str) -> None:
    said = waiting.refuses_hello(**{field: waiting.hello[field] + 1})
    assert f"'bank' {name}, 'clinic' has {waiting.hello[field]}" in said


@pytest.mark.parametrize("field", ["row_ids", "test_row_ids"])
def test_other_row_ids_are_refused_by_their_digests(waiting: Waiting, field: str) -> None:
    said = waiting.refuses_hello(**{field: "f" * 64})
    assert "'bank' and 'clinic' list different row ids, or the same in a different order" in said
    assert "digests ffffffffffff and" in said


@pytest.mark.parametrize("count", [-1, 1 << 63, 1 << 200, True, "0", None, 0.0, [], {}])
@pytest.mark.parametrize("field", ["protocol", "rows", "validation_rows", "test_rows", "width", "incarnation"])
def test_a_count_that_is_none_is_named(waiting: Waiting, field: str, count: Any) -> None:
    assert field in waiting.refuses_hello(**{field: count})


@pytest.mark.parametrize("count", [-1, 1 << 63, True, "0", None])
@pytest.mark.parametrize("field", ["received", "kept", "logged"])
def test_a_count_of_frames_that_is_none_is_refused_before_the_process_is_noted(
    fresh: Waiting, field: str, count: Any
) -> None:
    error = fresh.refuses(json_record(Record.HELLO, {**fresh.hello, field: count}))
    assert error.code() is FAILED_PRECONDITION
    assert f"{field} must be a count of frames" in error.details()


@pytest.mark.parametrize("field", ["version", "party", "run", "row_ids", "instance", "nonce"])
@pytest.mark.parametrize("value", [7, ["x"], {"x": 1}, "x" * 4097], ids=["number", "list", "object", "too long"])
def test_a_text_that_is_none_is_named(waiting: Waiting, field: str, value: Any) -> None:
    assert field in waiting.refuses_hello(**{field: value})


@pytest.mark.parametrize("value", ["x", {"recipe": 3}, None, [], {"recipe": "x" * 5000}])
def test_an_agreement_of_another_form_is_refused(waiting: Waiting, value: Any) -> None:
    assert "agreement" in waiting.refuses_hello(agreement=value)


@pytest.mark.parametrize("value", [0, "false", None])
def test_finished_is_yes_or_no(waiting: Waiting, value: Any) -> None:
    assert "finished" in waiting.refuses_hello(finished=value)


def test_every_field_of_hello_is_needed(waiting: Waiting) -> None:
    for missing in waiting.hello.keys() - {"received", "kept", "logged"}:
        said = {field: value for field, value in waiting.hello.items() if field != missing}
        error = waiting.refuses(json_record(Record.HELLO, said))
        assert error.code() is FAILED_PRECONDITION
        assert missing in error.details()


def test_a_name_from_a_peer_is_never_a_path(waiting: Waiting) -> None:
    for name in ("../bank", "/etc/passwd", "bank/../shop", "..", "bank\x00"):
        said = waiting.refuses_hello(party=name)
        assert "HELLO says" in said
    assert not (waiting.place.folder / "bank").exists()


BAD_BEGINNINGS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "begins with HELLO"),
    "zeros": (bytes(64), "begins with HELLO"),
    "WELCOME": (json_record(Record.WELCOME, {}), "begins with HELLO"),
    "FRAME": (number_record(Record.FRAME, 0) + bytes(36), "begins with HELLO"),
    "MORE": (bytes([Record.MORE]) + bytes(9), "begins with HELLO"),
    "ALIVE": (bytes([Record.ALIVE]), "begins with HELLO"),
    "KEPT": (number_record(Record.KEPT, 5), "begins with HELLO"),
    "NEWS": (json_record(Record.NEWS, {"finished": True}), "begins with HELLO"),
    "an unknown record": (b"\xff{}", "begins with HELLO"),
    "HELLO alone": (bytes([Record.HELLO]), "not JSON"),
    "no JSON": (bytes([Record.HELLO]) + b"{'protocol': 1}", "not JSON"),
    "half of it": (bytes([Record.HELLO]) + b'{"protocol": 1', "not JSON"),
    "not UTF-8": (bytes([Record.HELLO]) + b'{"a": "\xff\xfe"}', "not JSON"),
    "a list": (bytes([Record.HELLO]) + b"[1, 2]", "JSON object"),
    "a number": (bytes([Record.HELLO]) + b"1", "JSON object"),
    "null": (bytes([Record.HELLO]) + b"null", "JSON object"),
    "too deep": (bytes([Record.HELLO]) + b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
    "too large": (json_record(Record.HELLO, {"a": "x" * MAX_JSON}), "the cap is"),
    "an empty object": (json_record(Record.HELLO, {}), "protocol None"),
    "a huge number": (bytes([Record.HELLO]) + b'{"protocol":' + b"9" * 5000 + b"}", ""),
    "NaN": (bytes([Record.HELLO]) + b'{"protocol":NaN}', "protocol nan"),
}


@pytest.mark.parametrize("beginning", BAD_BEGINNINGS)
def test_what_is_no_hello_is_refused(waiting: Waiting, beginning: str) -> None:
    first, expected = BAD_BEGINNINGS[beginning]
    error = waiting.refuses(first)
    assert error.code() is FAILED_PRECONDITION
    assert expected in error.details()


def test_a_record_over_the_transport_s_cap_is_refused(waiting: Waiting) -> None:
    error = waiting.refuses(json_record(Record.HELLO, {"a": "x" * (8 << 20)}))
    assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)


def test_silence_instead_of_hello_is_dropped(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "HELLO_SECONDS", 0.3)
    before, began = contents(waiting.run.session.folder), monotonic()
    with Talking(waiting.place, "bank") as talking:
        assert talking.end() is grpc.StatusCode.CANCELLED
    assert monotonic() - began < AT_ONCE
    assert contents(waiting.run.session.folder) == before


def test_many_silent_callers_do_not_shut_the_others_out(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that keeps its HELLO to itself keeps nobody else from saying theirs."""
    monkeypatch.setattr(grpc_server, "HELLO_SECONDS", 30.0)
    silent = [Talking(waiting.place, "shop") for _ in range(30)]
    try:
        assert "thinwire 9.9" in waiting.refuses_hello(version="9.9")
    finally:
        for talking in silent:
            talking.__exit__()


@pytest.mark.parametrize(
    "words",
    [
        {"agreement": {f"x{n}\n\x1b[31m": "y\n" * 2000 for n in range(100)}},
        {"protocol": PROTOCOL + 1, "version": "9\nthinwire: all is well\x1b[2J" + "x" * 5000},
        {"version": "9\nthinwire: all is well\x1b[2J"},
        {"run": "\x1b[2J\n" * 500},
        {"party": "bank\n\x1b[2J"},
    ],
    ids=["agreement", "protocol", "version", "run", "party"],
)
def test_what_is_said_of_a_refused_peer_is_short_and_of_one_line(fresh: Waiting, words: dict[str, Any]) -> None:
    fresh.said.clear()
    assert len(fresh.refuses_hello(**words)) <= 1500
    until(lambda: fresh.said)
    for sentence in fresh.said:
        assert sentence.isprintable()
        assert len(sentence) < 1 << 16


# After HELLO ------------------------------------------------------------------------------------------------------


class Talking:
    """A party that says on a Talk what a test tells it to."""

    def __init__(self, place: Place, name: str, *records: bytes) -> None:
        self._records: Queue[bytes | None] = Queue()
        for record in records:
            self._records.put(record)
        self._opened = channel_to(place.port, LABEL_PARTY, own_identity(place.certs, name))
        talk: Any = self._opened.__enter__().stream_stream(TALK.path)
        self._call = talk(iter(self._records.get, None), timeout=300, metadata=[(CLAIM, name)])

    def say(self, record: bytes) -> None:
        self._records.put(record)

    def hear(self) -> bytes:
        record = next(self._call)
        assert isinstance(record, bytes)
        return record

    def end(self) -> Any:
        """Hears all, and how it ends."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass
        return self._call.code()

    def __enter__(self) -> Talking:
        return self

    def __exit__(self, *_: object) -> None:
        self._call.cancel()
        self._records.put(None)
        self._opened.__exit__(None, None, None)


@dataclass
class Admitted:
    """bank and shop as the test plays them, at a real label party that has begun."""

    place: Place
    label: PartyThread
    bank: Talking
    shop: Talking

    @property
    def run_number(self) -> int:
        return self.label.run.session.run

    def frame(self, kind: Kind, round: int, body: bytes = b"", **changes: int) -> bytes:
        held = {"run": self.run_number, "sender": 0, "receiver": 2, "attempt": 0, **changes}
        made = Frame(kind=kind, round=round, body=body, **held)
        return next(iter(frame_records(0, frame_header(made), body)))


@pytest.fixture
def admitted(tmp_path: Path) -> Iterator[Admitted]:
    place = made(tmp_path, SVFL)
    hellos = [json_record(Record.HELLO, hello_of(place, name)) for name in place.feature_parties]
    label = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY), settings=["network.max_message_mb=0.001"])
    label.start()
    try:
        with Talking(place, "bank", hellos[0]) as bank, Talking(place, "shop", hellos[1]) as shop:
            assert bank.hear()[0] == shop.hear()[0] == Record.WELCOME
            yield Admitted(place, label, bank, shop)
    finally:
        label.over()


def test_a_frame_of_another_stage_stops_the_run_and_names_who_and_what(admitted: Admitted) -> None:
    admitted.bank.say(admitted.frame(Kind.DERIVATIVE, 3))
    admitted.label.join()
    assert isinstance(admitted.label.error, WrongMessage)
    assert "'bank' sent DERIVATIVE of round 3 where" in str(admitted.label.error)


def test_a_frame_of_the_last_round_there_can_be_is_a_wrong_message(admitted: Admitted) -> None:
    admitted.bank.say(admitted.frame(Kind.EVALUATION, 2**32 - 1))
    admitted.label.join()
    assert isinstance(admitted.label.error, WrongMessage)
    assert f"'bank' sent EVALUATION of round {2**32 - 1} where EVALUATION of round 0" in str(admitted.label.error)


def test_a_body_that_is_none_stops_the_run_and_names_the_party(admitted: Admitted) -> None:
    admitted.bank.say(admitted.frame(Kind.EVALUATION, 0, b"\xff" * 20))
    admitted.shop.say(admitted.frame(Kind.EVALUATION, 0, b"\xff" * 20, sender=1))
    admitted.label.join()
    assert admitted.label.error is not None
    assert "bank" in str(admitted.label.error)


BAD_RECORDS: dict[str, tuple[Callable[[Admitted], bytes], str]] = {
    "of another run": (lambda a: a.frame(Kind.EVALUATION, 0, run=a.run_number ^ 1), "'bank' sent a frame of run"),
    "from another party": (lambda a: a.frame(Kind.EVALUATION, 0, sender=1), "from party 1 to party 2"),
    "to another party": (lambda a: a.frame(Kind.EVALUATION, 0, receiver=1), "from party 0 to party 1"),
    "over the cap": (lambda a: a.frame(Kind.EVALUATION, 0, bytes(1001)), "the cap is 1000"),
    "with a gap": (lambda a: b"\x03\x01" + a.frame(Kind.EVALUATION, 0)[2:], "frame 1 came where 0 was next"),
    "far ahead": (lambda a: b"\x03" + b"\xff" * 8 + a.frame(Kind.EVALUATION, 0)[9:], "was lost or out of order"),
    "a bit flipped": (lambda a: a.frame(Kind.EVALUATION, 0, b"body")[:-1] + b"z", "checksum"),
    "no header": (lambda _: number_record(Record.FRAME, 0), "header has 36 bytes, not 0"),
    "no frame": (lambda _: number_record(Record.FRAME, 0) + bytes(36), "not a thinwire frame"),
    "another version": (lambda a: _with_version(a.frame(Kind.EVALUATION, 0)), "frame version 9"),
    "trailing bytes": (lambda a: a.frame(Kind.EVALUATION, 0) + b"x", "1 bytes came where a frame had 0"),
    "held back": (lambda a: a.frame(Kind.EVALUATION, 0, b"body")[:-4], "0 bytes came where a frame had 4"),
    "MORE of nothing": (lambda _: bytes([Record.MORE]) + b"xyz", "3 bytes came"),
    "a second HELLO": (lambda _: json_record(Record.HELLO, {}), "record kind 1 in the middle"),
    "an unknown record": (lambda _: b"\x63", "record kind 99 in the middle"),
    "KEPT without a number": (lambda _: bytes([Record.KEPT]), "has no number"),
    "NEWS that is no JSON": (lambda _: bytes([Record.NEWS]) + b"{", "not JSON"),
}


def _with_version(record: bytes) -> bytes:
    return record[:11] + b"\x09" + record[12:]


@pytest.mark.parametrize("bad", BAD_RECORDS)
def test_a_record_that_cannot_be_ends_the_connection_and_nothing_else(admitted: Admitted, bad: str) -> None:
    record, expected = BAD_RECORDS[bad]
    run = admitted.label.run
    until(lambda: run.life.begun)
    before = contents(run.session.folder)
    admitted.bank.say(record(admitted))
    assert admitted.bank.end() is DATA_LOSS
    assert expected in admitted.bank._call.details()
    until(lambda: any(line["event"] == "damaged" for line in log_of(run.session.folder)))
    assert [line["peer"] for line in log_of(run.session.folder) if line["event"] == "damaged"] == ["bank"]
    assert run.session.links["bank"].describe_state()["received"] == 0
    assert not run.session.links["bank"].is_connected
    assert run.session.links["shop"].is_connected
    assert admitted.label.error is None
    after = contents(run.session.folder)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} <= {"events.jsonl"}


def test_news_of_another_form_do_no_harm(admitted: Admitted) -> None:
    run = admitted.label.run
    for news in ({"finished": "yes"}, {"noted": 7}, {"away": [1, 2]}, {"begin": "x"}, {"x" * 1000: None}):
        admitted.bank.say(json_record(Record.NEWS, news))
    admitted.bank.say(number_record(Record.KEPT, 2**64 - 1))
    until(lambda: sum(line["event"] == "news" for line in log_of(run.session.folder)) == 5)
    assert not run.session.peers["bank"].finished
    assert run.session.links["bank"].is_connected
    assert admitted.label.error is None


def test_a_peer_s_news_cannot_claim_fields_of_the_log(admitted: Admitted) -> None:
    """What a peer tells goes into the log as its own words, and not in place of ours."""
    run = admitted.label.run
    admitted.bank.say(json_record(Record.NEWS, {"party": "shop", "time": "never", "round": 77}))
    until(lambda: any(line["event"] == "news" for line in log_of(run.session.folder)))
    for line in log_of(run.session.folder):
        assert line["party"] == LABEL_PARTY
        assert line["time"] != "never"
        assert line["round"] != 77


@pytest.mark.parametrize("topic", ["event", "peer", "self"])
def test_news_under_any_topic_are_news(admitted: Admitted, topic: str) -> None:
    """A topic of the peer's choice is no argument of ours."""
    run = admitted.label.run
    admitted.bank.say(json_record(Record.NEWS, {topic: "x"}))
    admitted.bank.say(json_record(Record.NEWS, {"noted": True}))
    until(lambda: not run.session.links["bank"].is_connected or run.session.links["bank"].news.get("noted") is True)
    assert run.session.links["bank"].is_connected


def test_a_peer_s_reason_to_stop_cannot_write_lines_of_its_own(admitted: Admitted) -> None:
    until(lambda: admitted.label.run.life.begun)
    admitted.bank.say(json_record(Record.NEWS, {"stopped": "done\nthinwire: all is well\x1b[2J" + "x" * 5000}))
    admitted.label.join()
    said = str(admitted.label.error)
    assert "done" in said
    assert len(said) < 1500
    assert said.isprintable()


# Real parties whose jobs or data differ ---------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Any]]:
    """`thinwire ...` in this process: its exit code and what it wrote to stderr."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", *map(str, words)])
        began = monotonic()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert monotonic() - began < AT_ONCE
        return int(ended.value.code or 0), capsys.readouterr().err

    yield run
    for number, handler in kept.items():
        signal.signal(number, handler)


def other_seed(document: Document) -> None:
    document["job"]["seed"] = 4


def other_batch(document: Document) -> None:
    document["job"]["batch_size"] = 12


def other_epochs(document: Document) -> None:
    document["job"]["epochs"] = 2.5


def other_recipe(document: Document) -> None:
    document["recipe"] = {"method": "celu", "capacity": 2, "reuse": 2}


def other_parties(document: Document) -> None:
    document["party"].append({"name": "post"})


def other_rows(document: Document) -> None:
    document["party"][0]["features"]["file"] = "fewer.npz"
    document["party"][0]["ids"]["file"] = "fewer.npz"


def other_order(document: Document) -> None:
    document["party"][0]["ids"]["file"] = "reversed.npz"


DIFFERENT: dict[str, tuple[Callable[[Document], None], str]] = {
    "seed": (other_seed, "job.seed is 4 at 'bank' and 3 at 'clinic'"),
    "batch": (other_batch, "job.batch_size is 12 at 'bank' and 16 at 'clinic'"),
    "epochs": (other_epochs, "job.epochs is 2.5 at 'bank' and 2 at 'clinic'"),
    "recipe": (other_recipe, "recipe.name is celu at 'bank' and svfl at 'clinic'"),
    "parties": (other_parties, "parties is bank, shop, post at 'bank' and bank, shop at 'clinic'"),
    "rows": (other_rows, f"'bank' has {ROWS - 1} training rows, 'clinic' has {ROWS}"),
    "order of ids": (other_order, "'bank' and 'clinic' list different row ids, or the same in a different order"),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_a_party_with_another_job_or_other_rows_is_refused_before_the_start(
    waiting: Waiting, command: Callable[..., Any], difference: str, tmp_path: Path
) -> None:
    place, (change, expected) = waiting.place, DIFFERENT[difference]
    _write_variants(place)
    before = contents(waiting.run.session.folder)
    job = place.write(f"{difference}.toml", change)
    code, said = command("party", job, "--name", "bank", "--yes", "--out", tmp_path / "bank")
    assert code == 2
    both = expected.replace(" at 'bank' and ", "|").split("|")  # either party's value may come first
    assert expected in said or all(part.split(" at ")[0].split()[-1] in said for part in both), said
    assert "'bank'" in said
    assert "'clinic'" in said
    assert "Traceback" not in said
    assert contents(waiting.run.session.folder) == before


def _write_variants(place: Place) -> None:
    with np.load(place.folder / "bank.npz") as held:
        arrays = {name: held[name] for name in held.files}
    np.savez(place.folder / "fewer.npz", **{**arrays, "x": arrays["x"][:-1], "id": arrays["id"][:-1]})
    np.savez(place.folder / "reversed.npz", **{**arrays, "id": arrays["id"][::-1]})


def test_two_label_parties_cannot_share_a_port(waiting: Waiting, command: Callable[..., Any], tmp_path: Path) -> None:
    code, said = command("party", waiting.place.job, "--name", LABEL_PARTY, "--yes", "--out", tmp_path / "second")
    assert code == 2
    assert f"network.listen: cannot listen on {waiting.place.address}: it is in use" in said
    assert "Traceback" not in said


def test_the_label_party_s_folder_takes_one_process(waiting: Waiting, command: Callable[..., Any]) -> None:
    before = contents(waiting.run.session.folder)
    folder = waiting.place.out(LABEL_PARTY)
    code, said = command("party", waiting.place.job, "--name", LABEL_PARTY, "--yes", "--out", folder)
    assert code == 2
    assert f"a run is under way here already (process {os.getpid()}); stop it first" in said
    assert contents(waiting.run.session.folder) == before


def test_a_party_of_another_authority_is_refused(
    waiting: Waiting, command: Callable[..., Any], tmp_path: Path
) -> None:
    issue(tmp_path / "certs", ["bank", "clinic"])
    certs = f'network.certs="{tmp_path / "certs"}"'
    words = ("party", waiting.place.job, "--name", "bank", "--yes", "--out", tmp_path / "bank", "--set", certs)
    code, said = command(*words)
    assert code == 2
    assert "the TLS handshake fails" in said
    assert "'clinic'" in said
    assert "Traceback" not in said


def test_nobody_is_called_so(waiting: Waiting, command: Callable[..., Any]) -> None:
    code, said = command("party", waiting.place.job, "--name", "bnak", "--yes")
    assert code == 2
    assert "no party is called 'bnak'" in said


def test_a_label_party_at_another_name_is_refused(
    waiting: Waiting, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The party that answers must hold the label party's own certificate; waiting would not help."""

    def renamed(document: Document) -> None:
        document["label_party"]["name"] = "hospital"
        document["network"]["wait_seconds"] = 3

    monkeypatch.setattr(session, "_LABEL_PARTY_FIRST", 0.0)
    issue(waiting.place.certs, ["hospital"])
    job = waiting.place.write("renamed.toml", renamed)
    code, said = command("party", job, "--name", "bank", "--yes", "--out", tmp_path / "bank")
    assert code == 2
    assert "'hospital'" in said


def test_an_unknown_host_is_named(waiting: Waiting, command: Callable[..., Any], tmp_path: Path) -> None:
    words = ("--set", 'network.address="no-such-host.invalid:7443"')
    code, said = command("party", waiting.place.job, "--name", "bank", "--yes", "--out", tmp_path / "bank", *words)
    assert code == 2
    assert "network.address: no host is found for no-such-host.invalid:7443" in said


# The same party twice ---------------------------------------------------------------------------------------------


def test_a_second_process_of_a_party_in_another_folder_is_refused(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    """At the start and in the middle; the first one goes on, and the run ends as if nothing had happened."""
    place = made(tmp_path, SVFL)
    label = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    bank = PartyThread(place.job, "bank", place.out("bank"))
    shop = PartyThread(place.job, "shop", place.out("shop"))
    parties = {LABEL_PARTY: label, "bank": bank, "shop": shop}
    try:
        label.start()
        bank.start()
        until(lambda: label.run.session.links["bank"].is_connected)
        before = contents(place.out(LABEL_PARTY))
        code, said = command("party", place.job, "--name", "bank", "--yes", "--out", tmp_path / "second")
        assert code == 2
        assert "another process already takes part as 'bank'" in said
        assert "Traceback" not in said
        assert contents(place.out(LABEL_PARTY)) == before
        code, said = command("party", place.job, "--name", "bank", "--yes", "--out", place.out("bank"))
        assert code == 2
        assert "a run is under way here already" in said
        shop.start()
        summaries = finished(parties)
    finally:
        for party in parties.values():
            party.over()
    assert {summary["rounds"] for summary in summaries.values()} == {6}


def _is_settled(trying: PartyThread, label: PartyThread) -> bool:
    """Refused, or let in."""
    return trying.error is not None or label.run.session.peers[trying.name].instance == trying.run.session.instance


def test_a_second_folder_of_a_party_cannot_push_the_first_one_out(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    """However often its operator tries."""
    place = made(tmp_path, SVFL)
    label = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    bank = PartyThread(place.job, "bank", place.out("bank"))
    try:
        label.start()
        bank.start()
        until(lambda: label.run.session.links["bank"].is_connected)
        for attempt in range(3):
            trying = PartyThread(place.job, "bank", tmp_path / "second")
            trying.start()
            until(partial(_is_settled, trying, label))
            refused = trying.error is not None
            trying.over()
            assert refused, f"attempt {attempt} took the first one's place"
            assert "another process already takes part as 'bank'" in str(trying.error)
        assert bank.error is None
        assert label.run.session.links["bank"].is_connected
    finally:
        bank.over()
        label.over()


def test_a_party_that_lost_its_folder_in_the_middle_is_refused(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}, job={"epochs": 4}))
    with threads(place) as parties:
        until(lambda: (parties["bank"].run.session.events.round or 0) >= 2)
        parties["bank"].run.session.stopping.ask()
        parties["bank"].join()
        assert parties["bank"].outcome is not None
        assert parties["bank"].outcome.interrupted
        before = contents(place.out(LABEL_PARTY))["peers.json"]
        for _ in range(3):
            fresh = PartyThread(place.job, "bank", tmp_path / "fresh")
            fresh.start()
            fresh.join()
            fresh.over()
            assert isinstance(fresh.error, BadInput)
            assert "'bank'" in str(fresh.error)
            assert "folder" in str(fresh.error)
        assert contents(place.out(LABEL_PARTY))["peers.json"] == before


def test_a_width_that_changes_is_refused(waiting: Waiting, tmp_path: Path) -> None:
    """An embedding's width is agreed once; a peer that comes back with another one is no longer the same party."""
    place = made(tmp_path, SVFL)
    label = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    hello = hello_of(place, "bank")
    try:
        label.start()
        with Talking(place, "bank", json_record(Record.HELLO, hello)) as bank:
            assert bank.hear()[0] == Record.WELCOME
        until(lambda: not label.run.session.links["bank"].is_connected)
        before = contents(place.out(LABEL_PARTY))
        with channel_to(place.port, LABEL_PARTY, own_identity(place.certs, "bank")) as channel:
            changed = {**hello, "width": 5, "incarnation": 2, "instance": "another"}
            error = refusal(channel, TALK, ["bank"], json_record(Record.HELLO, changed))
        assert error.code() is FAILED_PRECONDITION
        assert "'bank' now has embeddings of width 5, it began with 4" in error.details()
        assert contents(place.out(LABEL_PARTY)) == before
    finally:
        label.over()


def test_a_start_that_no_later_one_could_follow_is_refused(waiting: Waiting) -> None:
    said = waiting.refuses_hello(incarnation=(1 << 63) - 1)
    assert f"says that it is start {(1 << 63) - 1}, and was at start 0 before; the gap is too large" in said


def test_a_replaced_process_is_refused(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    label = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    hello = hello_of(place, "bank")
    try:
        label.start()
        with Talking(place, "bank", json_record(Record.HELLO, {**hello, "incarnation": 3})) as bank:
            assert bank.hear()[0] == Record.WELCOME
            before = contents(place.out(LABEL_PARTY))
            with channel_to(place.port, LABEL_PARTY, own_identity(place.certs, "bank")) as channel:
                error = refusal(channel, TALK, ["bank"], json_record(Record.HELLO, {**hello, "incarnation": 2}))
            assert (
                "this process was replaced by a later one (it is start 2, the party is at start 3)" in error.details()
            )
            assert contents(place.out(LABEL_PARTY)) == before
            assert label.run.session.links["bank"].is_connected
    finally:
        label.over()


# What a feature party hears ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"protocol": PROTOCOL + 1}, f"'clinic' speaks protocol {PROTOCOL + 1}"),
        ({"party": "shop"}, "is 'shop'; expected 'clinic'"),
        ({"rows": -1}, "'clinic': rows"),
        ({"nonce": None}, "'clinic' names no run"),
        ({"version": "9.9"}, "'clinic' runs thinwire 9.9"),
        ({"received": -1}, "received must be a count of frames"),
        ({"received": "x"}, "received"),
        ({"received": None}, "received"),
        ({"begin": {"bank": 4}}, "starts with different parties from the job's"),
        ({"begin": {"bank": 9, "shop": 4}}, "expects our embedding to have width 9"),
        ({"begin": {"bank": 4, "shop": -4}}, "'clinic'"),
        ({"begin": [1, 2]}, "starts with invalid widths"),
    ],
    ids=str,
)
def test_a_welcome_that_cannot_be_is_refused_by_a_feature_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], expected: str
) -> None:
    place = made(tmp_path, SVFL)

    def changed(kind: Record, value: dict[str, Any]) -> bytes:
        return json_record(kind, {**value, **change} if kind is Record.WELCOME else value)

    monkeypatch.setattr(grpc_server, "json_record", changed)
    label = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    bank = PartyThread(place.job, "bank", place.out("bank"))
    try:
        label.start()
        bank.start()
        bank.join(300)
        assert bank.error is not None
        assert expected in str(bank.error)
        assert not isinstance(bank.error, (TypeError, KeyError))
    finally:
        bank.over()
        label.over()


def test_a_refused_process_writes_no_traceback_and_exits_with_2(waiting: Waiting, tmp_path: Path) -> None:
    """As an operator sees it, in a process of its own."""
    with PartyProcesses() as started:
        options = ("--set", "job.seed=4")
        process = started.party(waiting.place, "bank", *options, out=tmp_path / "bank")
        assert process.code() == 2, process.stderr
        last = process.stderr.splitlines()[-1]
        assert last.startswith("thinwire: ")
        assert "job.seed is " in last
        assert "'bank'" in last
        assert "'clinic'" in last
        assert "Traceback" not in process.stderr
        assert process.stdout == ""
    assert json.loads((tmp_path / "bank" / "private.json").read_text())["run_nonce"] is None


def test_a_malformed_peer_is_given_up_after_a_few_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label party whose bytes make no sense is not dialled for ever."""
    place = made(tmp_path, SVFL)
    monkeypatch.setattr(grpc_server, "json_record", lambda *_: bytes([Record.WELCOME]) + b"{half")
    label = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    bank = PartyThread(place.job, "bank", place.out("bank"))
    try:
        label.start()
        bank.start()
        bank.join(300)
        assert isinstance(bank.error, Malformed)
        assert "not JSON" in str(bank.error)
    finally:
        bank.over()
        label.over()


def test_who_leaves_has_said_that_it_knows_of_the_others_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the thread that notes an end comes no further before the process goes."""
    tell = PeerLink.tell

    def tell_otherwise(link: PeerLink, news: dict[str, Any]) -> None:
        if news != {"noted": True} or current_thread().name.startswith("party "):
            tell(link, news)

    monkeypatch.setattr(PeerLink, "tell", tell_otherwise)
    with threads(made(tmp_path, SVFL)) as parties:
        finished(parties)
        links = [link for party in parties.values() for link in party.run.session.links.values()]
        assert all(link.news.get("noted") is True for link in links)
