"""Matching by RR22 (Raghuraman and Rindal, CCS 2022), as SecretFlow's `spu` wheel has it: faster, for buckets.

The wheel is for CPython 3.10 and 3.11 and brings 430 MB, so it has an environment of its own, and each bucket has a
process of it, which talks TCP. That process sees loopback alone: what it sends to its peer's port goes to a relay
here, over our link, and from the relay there to the peer's process. So a feature party still needs no port.

::

    spu  <-TCP->  relay  <--- our frames, in lock step --->  relay  <-TCP->  spu

The label party is RR22's receiver: it alone learns which of its ids match, but at no place of a list, so that common
rows are told by their keys (bucketed.py). Semi-honest, 40 bits of statistical security; it rests on LPN for
expand-accumulate codes with rows of weight 7, where ristretto255 rests on Diffie-Hellman.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING

import numpy as np

from thinwire.align.alignment import WorkersFailed
from thinwire.align.ids import Ids, RowNumbers
from thinwire.base.errors import BadInput
from thinwire.base.types import Kind, PartyName, Progress

if TYPE_CHECKING:
    from thinwire.align.conversation import Conversation

_ITEM = 16  # bytes of an id's hash; two ids have the same with a chance below 2^-88 for a million ids each
_MESSAGE = 1 << 22  # bytes that travel at a time
_READ = 1 << 18
_IDLE_SECONDS = (0.001, 0.1)  # between two looks while nothing travels
_CONNECT_SECONDS = 60.0
_STALL_SECONDS = 1800.0  # many times what a bucket takes
_MOST_CONNECTIONS = 256
_RECORD = struct.Struct("<IBI")  # connection, what, bytes
_OPEN, _DATA, _CLOSE = range(3)
_WORKING, _DONE, _FAILED = range(3)
_STAGE = "matching"


def find_rr22(python: str) -> Rr22Backend:
    """The engine of this interpreter; BadInput says how to get one."""
    how = f"python3.11 -m venv ENV && ENV/bin/pip install --no-deps spu, then name ENV/bin/python (got {python!r})"
    asked = [python, "-c", f"{_IMPORT}\nimport importlib.metadata\nprint(importlib.metadata.version('spu'))"]
    try:
        found = subprocess.run(  # noqa: S603  the user named it
            asked, capture_output=True, text=True, check=False, timeout=_CONNECT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"RR22 is not available: {error}; to install it: {how}") from None
    if found.returncode:
        why = (found.stderr.strip().splitlines() or ["it failed"])[-1]
        raise BadInput(f"RR22 is not available: {why}; to install it: {how}")
    return Rr22Backend(python, found.stdout.strip())


@dataclass(frozen=True, slots=True)
class Rr22Backend:
    """A `Backend` for buckets, whose common rows are told by keys; places say no more than whether an id matches."""

    python: str  # of the environment that has spu
    version: str
    cores: int | None = field(default=None, compare=False)  # for each process; None: all

    @property
    def name(self) -> str:
        return f"RR22 of spu {self.version}, expand-accumulate code of weight 7"

    def match_as_label(
        self, talk: Conversation, ids: Ids, peer_ids: Mapping[PartyName, int], on_progress: Progress
    ) -> dict[PartyName, RowNumbers]:
        items, total = hash_items(ids), sum(len(ids) + count for count in peer_ids.values())
        places, done = {}, 0
        for peer, count in peer_ids.items():
            matched = np.frombuffer(self._run(talk, peer, 0, items), f"S{2 * _ITEM}")
            if not np.isin(matched, items).all():
                raise WorkersFailed("RR22 returned ids that were not requested; match by ristretto255 instead")
            places[peer] = np.where(np.isin(items, matched), np.arange(len(items)), -1)
            done += len(ids) + count
            on_progress(done, total, _STAGE)
        return places

    def match_as_feature(self, talk: Conversation, ids: Ids, peer_ids: int, on_progress: Progress) -> RowNumbers:
        self._run(talk, talk.label_party, 1, hash_items(ids))
        on_progress(len(ids) + peer_ids, len(ids) + peer_ids, _STAGE)
        return np.empty(0, np.int64)  # nobody names places

    def _run(
        self, talk: Conversation, peer: PartyName, rank: int, items: np.ndarray[tuple[int], np.dtype[np.bytes_]]
    ) -> bytes:
        """What the two processes find: at rank 0 the common items."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="thinwire-rr22-")))
            (folder / "in.csv").write_bytes(b"id\n" + b"\n".join(items.tolist()) + b"\n")
            relay = stack.enter_context(Relay(talk, peer, rank))
            relay.meet()
            relay.run(self._start(folder, rank, relay))
            if rank:
                return b""
            lines = (folder / "out.csv").read_bytes().splitlines()[1:]
        return b"".join(line.strip(b'"') for line in lines)

    def _start(self, folder: Path, rank: int, relay: Relay) -> subprocess.Popen[bytes]:
        words = [str(rank), str(relay.child_port), str(relay.port), str(folder), str(self.cores or 0)]
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603  the user named it
                [self.python, "-c", f"{_IMPORT}\n{_MATCH}", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                # Arrow's pool, which reads the file, waits for itself for ever where it has one thread alone.
                env={"PATH": os.environ.get("PATH", ""), "TMPDIR": str(folder), "OMP_NUM_THREADS": "8"},
                start_new_session=True,
            )


def hash_items(ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.bytes_]]:
    """What RR22 compares: any text, as hexadecimal digits."""
    texts = ids.texts(np.arange(len(ids)))
    hashes = [blake2b(text, digest_size=_ITEM, person=b"tw align rr22").hexdigest() for text in texts]
    return np.array(hashes, f"S{2 * _ITEM}")


class Relay:
    """Carries the TCP connections of a local process to the peer's relay, and the other way round.

    Both ends send one message each in turn, an empty one where there is nothing: whatever carries them needs no more
    than `send` and `receive`. A message is a byte, whether this end's process works, is done or has failed; then
    records.
    """

    def __init__(self, talk: Conversation, peer: PartyName, rank: int) -> None:
        self._talk, self._peer = talk, peer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])  # where the local process finds its peer
        self.child_port = _find_free_port()  # where the local process listens
        self._next = rank  # connections that begin here have even numbers at rank 0, odd ones at rank 1
        self._connections: dict[int, socket.socket] = {}
        self._unsent: dict[int, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (*self._connections.values(), self._listener):
            connection.close()
        self._selector.close()

    def meet(self) -> None:
        """Waits until the peer is here too: the label party may be busy with another one for long."""
        self._talk.send(self._peer, Kind.BLINDED_IDS, 0, bytes([_WORKING]))
        self._apply(self._talk.receive(self._peer, Kind.BLINDED_IDS, 0))

    def run(self, process: subprocess.Popen[bytes]) -> None:
        """Until both processes are done. Raises where one has failed, and ends the local one in any case."""
        number, states, idle, moved = 1, (_WORKING, _WORKING), _IDLE_SECONDS[0], monotonic()
        try:
            while states != (_DONE, _DONE):
                state = {None: _WORKING, 0: _DONE}.get(process.poll(), _FAILED)
                records = self._collect(idle)
                self._talk.send(self._peer, Kind.BLINDED_IDS, number, bytes([state]) + records)
                if state == _FAILED:
                    raise WorkersFailed(f"RR22 ended with code {process.returncode}: {_read_end(process)}")
                body = self._talk.receive(self._peer, Kind.BLINDED_IDS, number)
                states = state, self._apply(body)
                idle = min(2 * idle, _IDLE_SECONDS[1])
                if records or len(body) > 1:
                    idle, moved = _IDLE_SECONDS[0], monotonic()
                elif monotonic() - moved > _STALL_SECONDS:
                    raise WorkersFailed(
                        f"RR22 has sent nothing for {_STALL_SECONDS:.0f} s; start the same command again"
                    )
                number += 1
        finally:
            _end(process)

    # Local connections to records ---------------------------------------------------------------------------------

    def _collect(self, seconds: float) -> bytes:
        records: list[bytes] = []
        size = 0
        for key, events in self._selector.select(seconds):
            if key.data is None:
                records.append(self._accept())
                continue
            if events & selectors.EVENT_WRITE:
                self._flush(key.data)
            while events & selectors.EVENT_READ and size < _MESSAGE and key.data in self._connections:
                data = self._read(key.data)
                if data is None:
                    break
                records.append(_RECORD.pack(key.data, _DATA if data else _CLOSE, len(data)) + data)
                size += len(data)
        return b"".join(records)

    def _accept(self) -> bytes:
        connection, _ = self._listener.accept()
        self._next += 2
        self._register(self._next, connection)
        return _RECORD.pack(self._next, _OPEN, 0)

    def _read(self, number: int) -> bytes | None:
        """None where nothing is there; nothing where the connection has ended."""
        try:
            data = self._connections[number].recv(_READ)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._drop(number)
        return data

    # Records to local connections ---------------------------------------------------------------------------------

    def _apply(self, body: bytes) -> int:
        """Does what the peer's message says; gives the state of its process."""
        if not body or body[0] > _FAILED:
            raise self._talk.build_error(self._peer, "a message of RR22 without its state")
        if body[0] == _FAILED:
            raise WorkersFailed(f"RR22 has failed at {self._peer!r}; its own message says why")
        at = 1
        while at < len(body):
            if len(body) - at < _RECORD.size:
                raise self._talk.build_error(self._peer, "a record of RR22 that is cut off")
            number, what, size = _RECORD.unpack_from(body, at)
            at += _RECORD.size
            if what > _CLOSE or len(body) - at < size or (what != _DATA and size):
                raise self._talk.build_error(self._peer, "an invalid record of RR22")
            self._apply_record(number, what, body[at : at + size])
            at += size
        return body[0]

    def _apply_record(self, number: int, what: int, data: bytes) -> None:
        if what == _OPEN:
            if number in self._connections or len(self._connections) >= _MOST_CONNECTIONS:
                raise self._talk.build_error(self._peer, f"RR22's connection {number}, which cannot be opened")
            self._register(number, _connect(self.child_port))
        elif number in self._connections:  # one that has ended here may still be spoken to from there
            if what == _CLOSE:
                self._drop(number)
            else:
                self._unsent[number] += data
                self._flush(number)

    def _register(self, number: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[number] = connection
        self._unsent[number] = bytearray()
        self._selector.register(connection, selectors.EVENT_READ, number)

    def _flush(self, number: int) -> None:
        connection, unsent = self._connections[number], self._unsent[number]
        try:
            while unsent:
                del unsent[: connection.send(unsent)]
        except BlockingIOError:
            pass
        except OSError:
            unsent.clear()  # it has ended; reading says so
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
        self._selector.modify(connection, events, number)

    def _drop(self, number: int) -> None:
        connection = self._connections.pop(number)
        del self._unsent[number]
        self._selector.unregister(connection)
        connection.close()


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _connect(port: int) -> socket.socket:
    """To the local process, which may only just begin to listen."""
    began = monotonic()
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1.0)
        except OSError as error:
            if monotonic() - began > _CONNECT_SECONDS:
                raise WorkersFailed(f"RR22 does not listen at 127.0.0.1:{port}: {error}") from None
            sleep(_IDLE_SECONDS[1])


def _read_end(process: subprocess.Popen[bytes]) -> str:
    """The last line of its log."""
    arguments = process.args
    folder = arguments[6] if isinstance(arguments, list) else "."
    lines = Path(str(folder), "log").read_bytes().decode(errors="replace").strip().splitlines()
    return next((line for line in reversed(lines) if "rror" in line), "it left no message")[:300]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# What runs in the other environment: the libraries alone, since the package itself would load jax and numpy ---------

_IMPORT = """
import importlib.util, sys, types
found = importlib.util.find_spec("spu")
if found is None:
    raise SystemExit("this Python has no spu")
package = types.ModuleType("spu")
package.__path__ = list(found.submodule_search_locations)
sys.modules["spu"] = package
import spu.libpsi as psi
import spu.libspu as libspu
"""

_MATCH = """
import os
rank, own_port, peer_port, folder, cores = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
if cores:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
ports = [own_port, peer_port] if rank == 0 else [peer_port, own_port]
link = libspu.link.Desc()
for number, port in enumerate(ports):
    link.add_party(f"party{number}", f"127.0.0.1:{port}")
link.brpc_channel_connection_type = "single"
link.connect_retry_times, link.connect_retry_interval_ms = 600, 100
link.recv_timeout_ms = link.http_timeout_ms = 600_000
context = libspu.link.create_brpc(link, rank)
protocol = psi.PsiProtocolConfig(
    protocol=psi.PsiProtocol.PROTOCOL_RR22, receiver_rank=0, bucket_size=1 << 24, broadcast_result=False
)
psi.psi_execute(
    psi.PsiExecuteConfig(
        protocol_conf=protocol,
        input_params=psi.InputParams(path=f"{folder}/in.csv", selected_keys=["id"], keys_unique=True),
        output_params=psi.OutputParams(path=f"{folder}/out.csv", disable_alignment=True),
    ),
    context,
)
context.stop_link()
"""
