"""The label party's side: one port, mutual TLS 1.3, and every caller known by its certificate before it is heard.

gRPC keeps all connections that come: those beyond a budget are closed here. Nobody with a budget left is kept out by
those without: of addresses that have not said who they are the oldest connections go, and a party's handshake is
always among the newest.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, thread_time
from typing import Any, Protocol
from urllib.parse import unquote

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.types import PartyName
from thinwire.net.grpc.client import OPTIONS, grpc, require_configured_grpc
from thinwire.net.grpc.service import (
    BODY_SECONDS,
    BUDGETS,
    CALLS_PER_CONNECTION,
    CLAIM,
    HANDSHAKE_SECONDS,
    HELLO_SECONDS,
    REFUSAL_MS,
    RPCS,
    SERVICE,
    AccessList,
    Denied,
    NotYet,
    Refused,
    Role,
    Rpc,
    RunAborted,
)
from thinwire.net.links.peer_end import SILENCE_SECONDS, Attachment, Events, PeerEnd
from thinwire.net.links.records import Record, json_record, parse_count, parse_json
from thinwire.net.pki.certificates import BadCertificate, Credentials
from thinwire.storage.events import LineQuota

Caller = tuple[Role, str]  # and its name; "" where callers are not told apart
_STRANGERS = (Role.ADDRESS, Role.STRANGER)
_ADDRESSES: Caller = (Role.ADDRESS, "")
_HANDSHAKES = 512  # connections at a time, beside those of all that may call
_DESCRIPTORS = Path("/dev/fd")


def count_acceptable(callers: int) -> int:
    """Connections that gRPC may take at all; half of the files that this process may open stay for the run."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _HANDSHAKES + callers * BUDGETS[Role.FEATURE_PARTY].connections
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)


class Connections:
    """Those at one port of this process. `claim` is thread-safe, `trim` is for one thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._owners: dict[str, Caller | None] = {}  # by the caller's address and port, once it has called
        self._known: dict[str, int] = {}  # descriptors, the oldest connection first

    def claim(self, peer: str, caller: Caller | None) -> None:
        """Who calls over the connection that gRPC knows as `peer`; None: nobody that may, it is closed."""
        place = unquote(peer).partition(":")[2].replace("[", "").replace("]", "")
        self._owners[place] = caller and (caller[0], caller[1] or place.rpartition(":")[0])

    def trim(self) -> None:
        """Closes what is beyond the budgets."""
        claimed = set(self._owners)  # others may call while we look
        found = dict(self._list_open())
        self._known = {place: found[place] for place in self._known if place in found} | found
        for place in claimed - found.keys():
            self._owners.pop(place, None)
        for caller, places in self._group().items():
            surplus = max(0, len(places) - (BUDGETS[caller[0]].connections if caller else 0))
            newest_first = caller is not None and caller[0] not in _STRANGERS
            for place in places[len(places) - surplus :] if newest_first else places[:surplus]:
                self._close(place)

    def _group(self) -> dict[Caller | None, list[str]]:
        grouped: defaultdict[Caller | None, list[str]] = defaultdict(list)
        for place in self._known:
            grouped[self._owners.get(place, (Role.ADDRESS, place.rpartition(":")[0]))].append(place)
        return grouped

    def _list_open(self) -> Iterator[tuple[str, int]]:
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError):  # closed meanwhile, or not connected
                descriptor = int(name)
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    with closing(socket.socket(fileno=os.dup(descriptor))) as held:
                        yield from ((place, descriptor) for place in self._find_caller(held))

    def _find_caller(self, held: socket.socket) -> Iterator[str]:
        if held.family in (socket.AF_INET, socket.AF_INET6) and held.getsockname()[1] == self._port:
            host, port, *_ = held.getpeername()
            yield f"{host.removeprefix('::ffff:')}:{port}"

    def _close(self, place: str) -> None:
        """On a descriptor of our own: gRPC may have closed its own, and another file may have got the number."""
        with suppress(OSError), closing(socket.socket(fileno=os.dup(self._known[place]))) as held:
            if place in self._find_caller(held):
                held.shutdown(socket.SHUT_RDWR)


class CpuQuota:
    """CPU time that callers cause, and pay off at so many milliseconds a second; they may owe those of one second."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owed: dict[Caller, tuple[float, float]] = {}  # seconds, and when it was so

    def spend(self, caller: Caller, seconds: float = 0.0) -> float:
        """How many seconds this caller must wait now."""
        share = BUDGETS[caller[0]].cpu_ms / 1000
        with self._lock:
            now = monotonic()
            owed, since = self._owed.get(caller, (0.0, now))
            owed = max(0.0, owed - (now - since) * share) + seconds
            self._owed[caller] = (owed, now)
        return max(0.0, owed / share - 1.0)

    @contextmanager
    def charge(self, caller: Caller) -> Iterator[None]:
        """For what this thread does meanwhile."""
        began = thread_time()
        try:
            yield
        finally:
            self.spend(caller, thread_time() - began)


_SERVER_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a coin to be tossed
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION),
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
]
_CODES: list[tuple[type[ThinwireError], Any]] = [
    (NotYet, grpc.StatusCode.UNAVAILABLE),
    (RunAborted, grpc.StatusCode.ABORTED),
    (ThinwireError, grpc.StatusCode.FAILED_PRECONDITION),
]
_WATCH_SECONDS, _SHORTEST_WATCH_SECONDS = 0.5, 0.01
_QUICK_REFUSALS = 8  # threads for callers that are denied; they wait for nothing
_LONGEST_REASON = 1500  # characters; gRPC sends them in a header


class Desk(Protocol):
    """What the label party answers, once a caller is known."""

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> PeerEnd:
        """The line of a party that may take part; raises Refused otherwise."""

    def welcome(self, peer: PartyName) -> dict[str, Any]: ...

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        """A small question: Status, Abort, Probe."""


class Listener:
    """Listens for the other parties of a run."""

    def __init__(
        self, address: str, credentials: Callable[[], Credentials], roster: AccessList, desk: Desk, events: Events
    ) -> None:
        require_configured_grpc()
        self._roster = roster
        self._desk = desk
        self._events = events
        self._lines = LineQuota()
        self._cpu = CpuQuota()
        self._credentials = credentials
        self._talking: dict[Attachment, tuple[PartyName, bytes]] = {}
        self._calls: Counter[PartyName] = Counter()  # that are open
        self._awaited: dict[Any, float] = {}  # calls whose request has not come, until when
        self._lock = Lock()
        self._arrived = 0  # connections since the watch last looked
        self._to_watch = Event()
        self._over = Event()
        # One for each call that the budgets allow: nobody waits for a thread that another caller holds.
        most = roster.callers * BUDGETS[Role.FEATURE_PARTY].calls + _QUICK_REFUSALS
        acceptable = ("grpc.max_allowed_incoming_connections", count_acceptable(roster.callers))
        self._server = grpc.server(
            ThreadPoolExecutor(most, thread_name_prefix="listen"), options=[*OPTIONS, *_SERVER_OPTIONS, acceptable]
        )
        handlers = {rpc.name: self._handler(rpc) for rpc in RPCS.values()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        secure = grpc.dynamic_ssl_server_credentials(self._configuration(), self._renewed, True)
        try:
            self.port = self._server.add_secure_port(address, secure)
        except RuntimeError as error:
            raise BadInput(
                f"network.listen: cannot listen on {address}: it is in use by another process, or not an address of "
                f"this machine ({str(error).splitlines()[0]})"
            ) from None
        if self.port == 0:
            raise BadInput(f"network.listen: cannot listen on {address}")
        self._connections = Connections(self.port)

    def start(self) -> None:
        self._server.start()
        Thread(target=self._watch, name="watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._to_watch.set()
        self._server.stop(grace=0.5).wait()

    # Certificates -----------------------------------------------------------------------------------------------

    def _configuration(self) -> Any:
        mine = self._served = self._credentials()
        return grpc.ssl_server_certificate_configuration([(mine.key_pem, mine.certificate_pem)], mine.authority_pem)

    def _renewed(self) -> Any:
        """At every handshake: the certificate may have been renewed; one that cannot be read changes nothing.

        So it also counts who comes, before anybody can fill all places. In a flood of handshakes not all look.
        None keeps what is there. Another configuration at every handshake would crash gRPC where two meet.
        """
        self._arrived += 1
        if self._arrived >= BUDGETS[Role.ADDRESS].connections:
            self._to_watch.set()
        if self._cpu.spend(_ADDRESSES):
            return None
        try:
            with self._lock, self._cpu.charge(_ADDRESSES):
                return None if self._credentials() == self._served else self._configuration()
        except BadCertificate as error:
            self._report("certificate_problem", None, Role.ADDRESS, why=str(error))
            return None

    def _report(self, event: str, peer: PartyName | None, role: Role, **facts: Any) -> None:
        """What callers of this kind have caused, as long as their budget lasts."""
        left_out = self._lines.spend((event, peer), BUDGETS[role].log_lines)
        if left_out is not None:
            self._events(event, peer, **facts, **({"left_out": left_out} if left_out else {}))

    # Calls ------------------------------------------------------------------------------------------------------

    def _handler(self, rpc: Rpc) -> Any:
        """Streams of requests, though most bring one: so it is asked who calls before a body is waited for."""
        if rpc.streams:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._talk(self._caller(rpc, context), requests, context)
            )
        return grpc.stream_unary_rpc_method_handler(
            lambda requests, context: self._answer(rpc, self._caller(rpc, context), requests, context)
        )

    def _caller(self, rpc: Rpc, context: Any) -> PartyName:
        """Before any handler runs. `abort` raises."""
        held = context.auth_context()
        pem = _first(held, "x509_pem_cert")
        claims = [value for key, value in context.invocation_metadata() if key == CLAIM]
        try:
            caller = self._roster.identify_caller(rpc, pem, _first(held, "ssl_tls_version").decode(), claims)
        except (Denied, BadInput) as error:
            self._report("denied", None, Role.STRANGER, rpc=rpc.name, why=str(error)[:_LONGEST_REASON])
            self._refuse((Role.STRANGER, ""), context, grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise
        self._connections.claim(context.peer(), (self._roster.role(caller), caller))
        return caller

    def _refuse(self, caller: Caller, context: Any, code: Any, why: str) -> None:
        """`abort` raises. Who is refused and calls on beyond its CPU time is hung up on."""
        self._connections.claim(context.peer(), None if self._cpu.spend(caller, REFUSAL_MS / 1000) else caller)
        context.abort(code, why[:_LONGEST_REASON])

    @contextmanager
    def _counted(self, caller: PartyName, context: Any) -> Iterator[None]:
        """An open call: until its handler has returned, and its answer has left. Too many are refused."""
        role = self._roster.role(caller)
        with self._lock:
            is_room = self._calls[caller] < BUDGETS[role].calls
            self._calls[caller] += is_room
        if not is_room:
            why = f"{caller!r} already has {BUDGETS[role].calls} open calls"
            self._refuse((role, caller), context, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        leave = partial(self._leave, caller, ["handler", "answer"])
        if not context.add_callback(leave):
            leave()
        try:
            yield
        finally:
            leave()

    @contextmanager
    def _charged(self, caller: PartyName) -> Iterator[None]:
        """What it says costs CPU time; beyond its budget it waits."""
        who = (self._roster.role(caller), caller)
        self._over.wait(self._cpu.spend(who))
        with self._cpu.charge(who):
            yield

    def _leave(self, caller: PartyName, still_open: list[str]) -> None:
        with self._lock:
            still_open.pop()
            self._calls[caller] -= not still_open

    def _request(self, requests: Iterator[bytes], context: Any, seconds: float) -> bytes:
        """The first word of a call; one that keeps it to itself is cancelled by the watch."""
        self._awaited[context] = monotonic() + seconds
        try:
            return next(requests, b"")
        finally:
            self._awaited.pop(context, None)

    def _answer(self, rpc: Rpc, caller: PartyName, requests: Iterator[bytes], context: Any) -> bytes:
        with self._counted(caller, context), self._charged(caller):
            request = self._request(requests, context, BODY_SECONDS)
            try:
                return json.dumps(self._desk.answer(rpc, caller, parse_json(b"\x00" + request))).encode()
            except ThinwireError as error:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_LONGEST_REASON])
                raise

    def _talk(self, peer: PartyName, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        with self._counted(peer, context):
            yield from self._converse(peer, requests, context)

    def _converse(self, peer: PartyName, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            with self._charged(peer):
                first = self._request(requests, context, HELLO_SECONDS)
                if not first or first[0] != Record.HELLO:
                    raise Refused("a connection begins with HELLO")
                hello = parse_json(first)
                link = self._desk.admit(peer, hello)
                received, kept = parse_count(hello, "received"), parse_count(hello, "kept")
                attached = link.attach(partial(_hang_up, context), received, kept)
        except ThinwireError as error:
            self._report("refused", peer, Role.FEATURE_PARTY, why=str(error))
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            context.abort(code, str(error)[:_LONGEST_REASON])
            return
        with self._lock:
            self._talking[attached] = (peer, _first(context.auth_context(), "x509_pem_cert"))
        if not context.add_callback(lambda: attached.end("the connection was lost")):
            attached.end("the connection was lost")
        Thread(target=self._read, args=(attached, peer, requests, context), name=f"from {peer}", daemon=True).start()
        try:
            yield json_record(Record.WELCOME, {**self._desk.welcome(peer), **link.describe_state()})
            yield from attached.outgoing()
        finally:
            attached.end("the connection was lost")
            with self._lock:
                self._talking.pop(attached, None)

    def _read(self, attached: Attachment, peer: PartyName, requests: Iterator[bytes], context: Any) -> None:
        why, spent = "the connection was lost", thread_time()
        try:
            for record in requests:
                attached.incoming(record)
                before, spent = spent, thread_time()
                if owed := self._cpu.spend((Role.FEATURE_PARTY, peer), spent - before):
                    self._over.wait(owed)
        except ThinwireError as error:
            why = str(error)
            self._report("damaged", peer, Role.FEATURE_PARTY, why=why)
            context.set_code(grpc.StatusCode.DATA_LOSS)
            context.set_details(why[:_LONGEST_REASON])
        except Exception:  # noqa: BLE001  gRPC raises a bare Exception where a stream breaks
            why = "the connection broke"
        attached.end(why)

    def _watch(self) -> None:
        """Ends connections of peers that are silent, of those whose certificate no longer holds, and surplus ones."""
        problem = None
        while not self._over.wait(max(_SHORTEST_WATCH_SECONDS, self._cpu.spend(_ADDRESSES))):
            self._to_watch.wait(_WATCH_SECONDS)
            self._to_watch.clear()
            self._arrived = 0
            with self._cpu.charge(_ADDRESSES):
                self._connections.trim()
            for context in [context for context, until in list(self._awaited.items()) if monotonic() > until]:
                context.cancel()
            if self._roster.revocations.problem != problem:
                problem = self._roster.revocations.problem
                self._events("certificate_problem", None, why=problem or "the revocation list is valid again")
            with self._lock:
                talking = list(self._talking.items())
            for attached, (peer, pem) in talking:
                refusal = self._roster.revocations.find_refusal(pem)
                if refusal is not None:
                    self._events("denied", peer, why=refusal)
                    attached.end(refusal)
                elif attached.silent_seconds() > SILENCE_SECONDS:
                    attached.end(f"silent for {SILENCE_SECONDS:.0f} s")


def _hang_up(context: Any) -> None:
    if context.code() is None:
        context.cancel()


def _first(held: Any, key: str) -> bytes:
    values = held.get(key) or [b""]
    return bytes(values[0])
