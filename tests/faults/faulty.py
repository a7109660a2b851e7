"""thinwire with faults, put around it from outside: python faulty.py PLAN ARGUMENT ...

PLAN is a JSON list. Each entry is one fault:

    {"call": "fsync", "path": "/sent/", "number": 3, "do": "kill", "when": "before"}
        at the third fsync of a path that holds "/sent/". Calls are those of `os` in CALLS, and further
        "send" (a frame handed to gRPC, piece by piece), "round" (a round begins, or a simulated one has ended) and
        "text" (a line is written to a file that was opened by its path).
        `do` is kill, stop, or the name of an error such as ENOSPC; "half" writes half of the bytes
        and then kills. "for" repeats an error so many times, "until" until a file is there.
    {"switch_off": "log"}        or mac, fencing, duplicates: negative controls
    {"misbehave": "duplicate"}   or replay, reorder: what this party sends
    {"note_sends": FILE}         appends one line for each frame that travels
    {"note_uses": FILE}          appends the round of each cached exchange that is used once more
    {"note_hello": FILE}         keeps the last HELLO of a feature party
    {"chunk": 64}                frames travel in pieces of so many bytes
    {"explode": "EMBEDDING"}     bodies of this kind are bombs: a few bytes that announce 4 GiB of values
    {"noise_secret": "00ff"}     of a simulated run that begins, in hex: its private noise repeats
"""

from __future__ import annotations

import builtins
import errno
import hashlib
import hmac
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

CALLS = ("fsync", "writev", "rename", "replace", "unlink", "rmdir", "mkdir", "open", "ftruncate")
_ORDER_SECONDS = 0.3

Plan = list[dict[str, Any]]


class Fault:
    """One entry of a plan that waits for its call."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.call: str = entry["call"]
        self.path: str = entry.get("path", "")
        self.left: int = entry.get("number", 1)
        self.repeats: int = entry.get("for", 1)
        self.until: str | None = entry.get("until")
        self.do: str = entry["do"]
        self.when: str = entry.get("when", "before")
        self._lock = Lock()

    def fits(self, call: str, path: str) -> bool:
        """Counts the call; true once it is the one, or one of the ones."""
        if call != self.call or self.path not in path:
            return False
        with self._lock:
            self.left -= 1
            if self.left > 0:
                return False
            if self.until is not None:
                return not os.path.exists(self.until)
            return self.left > -self.repeats

    def strike(self) -> None:
        if self.do in ("kill", "half"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.do == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            number = getattr(errno, self.do)
            raise OSError(number, os.strerror(number))


def run(plan: Plan, arguments: list[str]) -> None:
    """Puts the faults in place, then runs the command."""
    faults = [Fault(entry) for entry in plan if "call" in entry]
    if faults:
        _wrap_calls(faults)
        _wrap_sends(faults)
        _wrap_rounds(faults)
        _wrap_text(faults)
    for entry in plan:
        if "switch_off" in entry:
            SWITCHES[entry["switch_off"]]()
        if "misbehave" in entry:
            _wrap_frames(MISBEHAVIOUR[entry["misbehave"]])
        if "note_sends" in entry:
            _note_sends(Path(entry["note_sends"]))
        if "note_uses" in entry:
            _note_uses(Path(entry["note_uses"]))
        if "note_hello" in entry:
            _note_hello(Path(entry["note_hello"]))
        if "explode" in entry:
            _explode(entry["explode"])
        if "chunk" in entry:
            from thinwire.net.links import records

            records.CHUNK = entry["chunk"]
        if "noise_secret" in entry:
            _draw_noise_secret(bytes.fromhex(entry["noise_secret"]))
    from thinwire.cli import main

    sys.argv = ["thinwire", *arguments]
    main()


def _module(name: str) -> Any:
    """To change what it holds."""
    return import_module(name)


# System calls -----------------------------------------------------------------------------------------------------


def _wrap_calls(faults: list[Fault]) -> None:
    wanted = {fault.call for fault in faults}
    for name in CALLS:
        if name in wanted:
            setattr(os, name, _struck(name, getattr(os, name), faults))


def _struck(name: str, call: Callable[..., Any], faults: list[Fault]) -> Callable[..., Any]:
    def counting(*args: Any, **options: Any) -> Any:
        path = _path_of(args)
        hit = [fault for fault in faults if fault.fits(name, path)]
        for fault in hit:
            if fault.do == "half" and name == "writev":
                data = b"".join(args[1])
                call(args[0], [data[: len(data) // 2]])
            if fault.when == "before":
                fault.strike()
        result = call(*args, **options)
        for fault in hit:
            fault.strike()
        return result

    return counting


def _path_of(args: tuple[Any, ...]) -> str:
    """Of a descriptor, or of the last path: a rename is known by where it goes to."""
    if isinstance(args[0], int):
        try:
            return os.readlink(f"/proc/self/fd/{args[0]}")
        except OSError:
            return ""
    return os.fspath(args[1]) if len(args) > 1 and isinstance(args[1], str | Path) else str(os.fspath(args[0]))


# What the product does, seen from outside -------------------------------------------------------------------------


def _wrap_sends(faults: list[Fault]) -> None:
    peer_link = _module("thinwire.net.links.peer_link")
    frame_records = peer_link.frame_records

    def sending(sequence: int, header: Any, body: Any) -> Iterator[bytes]:
        hit = [fault for fault in faults if fault.fits("send", "")]
        for fault in hit:
            if fault.when == "before":
                fault.strike()
        for number, record in enumerate(frame_records(sequence, header, body)):
            for fault in hit:
                if fault.when == "middle" and number == 1:
                    fault.strike()
            yield record
        for fault in hit:
            fault.strike()

    peer_link.frame_records = sending


def _wrap_rounds(faults: list[Fault]) -> None:
    """A party's round begins; a simulated round has ended."""
    for owner, name in (
        (_module("thinwire.training.party.party_run").PartyRun, "begin_round"),
        (_module("thinwire.training.train")._Run, "_after_round"),
    ):
        setattr(owner, name, _struck_by_round(getattr(owner, name), faults))


def _struck_by_round(call: Callable[[Any, int], Any], faults: list[Fault]) -> Callable[[Any, int], Any]:
    def counting(self: Any, round: int) -> Any:
        for fault in faults:
            if fault.call == "round" and round >= fault.left:
                fault.strike()
        return call(self, round)

    return counting


def _wrap_text(faults: list[Fault]) -> None:
    """Files opened by Path.open, which write without `os`."""
    text = [fault for fault in faults if fault.call == "text"]
    if not text:
        return
    opened = io.open

    def opening(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        found = opened(file, mode, *args, **options)
        if not isinstance(found, io.TextIOWrapper) or not any(fault.path in str(file) for fault in text):
            return found
        return _Text(found, str(file), text)

    io.open = builtins.open = opening


class _Text(io.TextIOWrapper):
    """A text file whose writes can fail half-way, as those on a full disk do."""

    def __init__(self, opened: io.TextIOWrapper, path: str, faults: list[Fault]) -> None:
        at_once = opened.line_buffering
        super().__init__(opened.detach(), encoding="utf-8", line_buffering=at_once)
        self._path = path
        self._faults = faults

    def write(self, text: str) -> int:
        for fault in self._faults:
            if fault.fits("text", self._path):
                if fault.when == "middle":
                    super().write(text[: len(text) // 2])
                    self.flush()
                fault.strike()
        return super().write(text)


def _note_sends(path: Path) -> None:
    """Every frame that travels: who to whom, its number, and a digest of its bytes."""
    peer_link = _module("thinwire.net.links.peer_link")
    frame_records = peer_link.frame_records
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def noting(sequence: int, header: Any, body: Any) -> Iterator[bytes]:
        from thinwire.engine.wire.frame import open_frame

        frame = open_frame(bytes(header), bytes(body))
        digest = hashlib.sha256(bytes(header) + bytes(body)).hexdigest()
        os.write(descriptor, f"{frame.sender} {frame.receiver} {sequence} {digest}\n".encode())
        yield from frame_records(sequence, header, body)

    peer_link.frame_records = noting


def _draw_noise_secret(secret: bytes) -> None:
    _module("thinwire.training.train").secrets = SimpleNamespace(token_bytes=lambda _: secret)


def _note_uses(path: Path) -> None:
    from thinwire.engine.schedule.cached_steps import Workset

    draw = Workset.draw

    def noted(self: Workset) -> int | None:
        drawn = draw(self)
        if drawn is not None:
            with path.open("a") as file:
                file.write(f"{drawn}\n")
        return drawn

    Workset.draw = noted  # type: ignore[method-assign]


def _note_hello(path: Path) -> None:
    from thinwire.training.party.feature_role import FeatureRole

    hello = FeatureRole.hello

    def noted(self: FeatureRole) -> dict[str, Any]:
        said = hello(self)
        path.write_text(json.dumps(said))
        return said

    FeatureRole.hello = noted  # type: ignore[method-assign]


# A peer that misbehaves -------------------------------------------------------------------------------------------

Frames = Callable[[Any, Iterator[bytes]], Iterator[bytes]]


def _wrap_frames(change: Frames) -> None:
    from thinwire.net.links.peer_link import AttachedLink

    frame = AttachedLink._frame

    def changed(self: AttachedLink, fresh: Any) -> Iterator[bytes]:
        return change(self, frame(self, fresh))

    AttachedLink._frame = changed  # type: ignore[method-assign]


def _duplicated(attached: Any, records: Iterator[bytes]) -> Iterator[bytes]:
    """Every frame twice, and every third three times."""
    held = list(records)
    for _ in range(3 if attached._next % 3 == 0 else 2):
        yield from held


def _replayed(attached: Any, records: Iterator[bytes]) -> Iterator[bytes]:
    """After each frame an older one again, as far back as the log goes; after a reconnection too."""
    from thinwire.engine.wire.frame import HEADER_SIZE

    frame_records = _module("thinwire.net.links.peer_link").frame_records

    yield from records
    log = attached._link.log
    for back in (1, 4, 9):
        sequence = attached._next - 1 - back
        if sequence in log:
            logged = memoryview(log.read(sequence))
            yield from frame_records(sequence, logged[:HEADER_SIZE], logged[HEADER_SIZE:])


def _reordered(attached: Any, records: Iterator[bytes]) -> Iterator[bytes]:
    """Where two frames are due at once, the second one comes first; else a number that is not due yet."""
    from thinwire.engine.wire.frame import HEADER_SIZE

    frame_records = _module("thinwire.net.links.peer_link").frame_records

    sequence, log = attached._next, attached._link.log
    if sequence % 25 == 20 and sequence not in _SWAPPED:
        _SWAPPED.add(sequence)
        until = monotonic() + _ORDER_SECONDS
        while log.next_sequence <= sequence + 1 and monotonic() < until:
            sleep(0.01)
        other = sequence + 1 if sequence + 1 in log else sequence
        logged = memoryview(log.read(other))
        yield from frame_records(sequence + 1, logged[:HEADER_SIZE], logged[HEADER_SIZE:])
    yield from records


_SWAPPED: set[int] = set()
MISBEHAVIOUR: dict[str, Frames] = {"duplicate": _duplicated, "replay": _replayed, "reorder": _reordered}


def _explode(name: str) -> None:
    from thinwire.base.types import Kind
    from thinwire.net.links.peer_link import PeerLink
    from thinwire.net.links.question_line import QuestionLine

    post, send = PeerLink.post, QuestionLine.send
    bundles = (Kind.REPRESENTATIONS, Kind.LABELS, Kind.KEYS, Kind.WARM_START)  # where the label party sends them

    def posting(self: PeerLink, kind: Kind, round: int, body: Any, durable: bool) -> int:
        if name == "CONTROL" and kind is Kind.EMBEDDING:  # a kind that nobody sends, in the place of another one
            kind = Kind.CONTROL
        is_bundle = kind in bundles and self.ends.me == self.ends.parties[-1]
        return post(self, kind, round, _bomb(kind, bytes(body), is_bundle) if kind.name == name else body, durable)

    def sending(self: QuestionLine, number: int, body: bytes) -> None:
        send(self, number, body[:1] + _bomb(Kind.PREDICTION, body, False) if name == "PREDICTION" else body)

    PeerLink.post = posting  # type: ignore[method-assign]
    QuestionLine.send = sending  # type: ignore[method-assign]


def _bomb(kind: Any, body: bytes, is_bundle: bool) -> bytes:
    """In the place of a body, or of every part of a bundle; an alignment's numbers are as large as can be."""
    from thinwire.base.types import Kind
    from thinwire.engine.compress.symbols import Zeros
    from thinwire.engine.wire.buffers import pack_bundle, unpack_bundle
    from thinwire.engine.wire.codec import encode

    bomb = encode(Zeros((1 << 15, 1 << 15)))
    if kind is Kind.ALIGNMENT:
        return body[:1] + b"\xff" * 8 + body[9:]
    if is_bundle:
        parts = unpack_bundle(body)
        return pack_bundle({**parts, 0: bomb} if kind is Kind.LABELS else dict.fromkeys(parts, bomb))
    return bomb


# Negative controls: what the suite must notice --------------------------------------------------------------------


def _without_log() -> None:
    """Frames are kept in memory alone: a new process has none of the old one's."""
    from thinwire.net.links.outgoing_log import OutgoingLog

    def append(self: OutgoingLog, sequence: int, parts: Any, durable: bool = False) -> None:
        held = self.__dict__.setdefault("in_memory", {})
        held[sequence] = b"".join(parts)
        self._next = sequence + 1

    def read(self: OutgoingLog, sequence: int) -> bytes:
        return bytes(self.__dict__.get("in_memory", {})[sequence])

    OutgoingLog.append = append  # type: ignore[method-assign]
    OutgoingLog.read = read  # type: ignore[method-assign]


def _without_mac() -> None:
    """Whatever a checkpoint holds is believed."""
    checkpoints = _module("thinwire.storage.checkpoints")
    checkpoints.hmac = SimpleNamespace(new=hmac.new, compare_digest=lambda one, other: True)  # noqa: ARG005
    checkpoints.hashlib = SimpleNamespace(sha256=_Trusting)
    _module("thinwire.storage.tensor_file").hashlib = SimpleNamespace(sha256=_Trusting)


class _Trusting:
    """SHA-256 whose digest is equal to any other."""

    digest_size, block_size, name = 32, 64, "sha256"

    def __init__(self, data: bytes = b"") -> None:
        self._held = hashlib.sha256(data)

    def update(self, data: bytes) -> None:
        self._held.update(data)

    def copy(self) -> _Trusting:
        copied = _Trusting()
        copied._held = self._held.copy()
        return copied

    def digest(self) -> bytes:
        return self._held.digest()

    def hexdigest(self) -> str:
        return _Believed(self._held.hexdigest())


class _Believed(str):
    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def _without_fencing() -> None:
    """A replaced process is welcome, and does not look whether it was replaced."""
    from thinwire.storage.folder_lock import FolderLock
    from thinwire.storage.private_state import PrivateState
    from thinwire.training.party.peers import PeerProcesses

    PeerProcesses.require_current = lambda self, about, link: None  # type: ignore[method-assign]  # noqa: ARG005
    FolderLock.still_mine = lambda self: True  # type: ignore[method-assign]  # noqa: ARG005

    def change(self: PrivateState, **changes: Any) -> None:
        from dataclasses import replace

        self._write(replace(self._fields, **changes))

    PrivateState._change = change  # type: ignore[method-assign]


def _without_duplicates() -> None:
    """A frame that is here already is taken once more."""
    from dataclasses import replace

    from thinwire.net.links.peer_link import AttachedLink
    from thinwire.net.links.records import WholeFrame

    take = AttachedLink._take

    def taking(self: AttachedLink, whole: WholeFrame | None) -> None:
        take(self, None if whole is None else replace(whole, sequence=self._link._received))

    AttachedLink._take = taking  # type: ignore[method-assign]


SWITCHES: dict[str, Callable[[], None]] = {
    "log": _without_log,
    "mac": _without_mac,
    "fencing": _without_fencing,
    "duplicates": _without_duplicates,
}


if __name__ == "__main__":
    run(json.loads(sys.argv[1]), sys.argv[2:])
