"""The label party's side: one port, mutual TLS 1.3, and every caller known by its certificate before it is heard."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, Thread, Timer
from typing import Any, Protocol

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.types import PartyName
from thinwire.net.grpc.client import OPTIONS, grpc, require_configured_grpc
from thinwire.net.grpc.service import CLAIM, RPCS, SERVICE, AccessList, Denied, NotYet, Refused, Rpc, RunAborted
from thinwire.net.links.peer_link import SILENCE_SECONDS, Attachment, Events, LinkProtocol
from thinwire.net.links.records import Record, json_record, parse_count, parse_json
from thinwire.net.pki.certificates import BadCertificate, Credentials

_SERVER_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a coin to be tossed
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
]
_CODES: list[tuple[type[ThinwireError], Any]] = [
    (NotYet, grpc.StatusCode.UNAVAILABLE),
    (RunAborted, grpc.StatusCode.ABORTED),
    (ThinwireError, grpc.StatusCode.FAILED_PRECONDITION),
]
_HELLO_SECONDS = 5.0
_MOST_GREETING = 2
_LONGEST_REASON = 1500  # characters; gRPC sends them in a header


class Desk(Protocol):
    """What the label party answers, once a caller is known."""

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> LinkProtocol:
        """The line of a party that may take part; raises Refused otherwise."""

    def welcome(self, peer: PartyName) -> dict[str, Any]: ...

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        """A small question: Status, Abort, Probe."""


class Listener:
    """Listens for the other parties of a run."""

    def __init__(
        self,
        address: str,
        credentials: Callable[[], Credentials],
        roster: AccessList,
        desk: Desk,
        events: Events,
        parties: int,
    ) -> None:
        require_configured_grpc()
        self._roster = roster
        self._desk = desk
        self._events = events
        self._credentials = credentials
        self._talking: dict[Attachment, tuple[PartyName, bytes]] = {}
        self._greeting: Counter[PartyName] = Counter()  # connections that have not said HELLO
        self._lock = Lock()
        self._over = Event()
        # A talk holds a thread as long as it lasts; a party that reconnects holds two for a while.
        self._server = grpc.server(
            ThreadPoolExecutor(3 * parties + 8, thread_name_prefix="listen"),
            options=[*OPTIONS, *_SERVER_OPTIONS],
        )
        handlers = {rpc.path: self._handler(rpc) for rpc in RPCS.values()}
        self._server.add_generic_rpc_handlers((_Handlers(handlers),))
        secure = grpc.dynamic_ssl_server_credentials(self._configuration(), self._renewed, True)
        try:
            self.port = self._server.add_secure_port(address, secure)
        except RuntimeError as error:
            raise BadInput(
                f"network.listen: cannot listen at {address}: it is in use by another process, or not an address of "
                f"this machine ({str(error).splitlines()[0]})"
            ) from None
        if self.port == 0:
            raise BadInput(f"network.listen: cannot listen at {address}")

    def start(self) -> None:
        self._server.start()
        Thread(target=self._watch, name="watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._server.stop(grace=0.5).wait()

    # Certificates -----------------------------------------------------------------------------------------------

    def _configuration(self) -> Any:
        mine = self._served = self._credentials()
        return grpc.ssl_server_certificate_configuration([(mine.key_pem, mine.certificate_pem)], mine.authority_pem)

    def _renewed(self) -> Any:
        """At every handshake: the certificate may have been renewed; one that cannot be read changes nothing.

        None keeps what is there. Another configuration at every handshake would crash gRPC where two meet.
        """
        try:
            with self._lock:
                return None if self._credentials() == self._served else self._configuration()
        except BadCertificate as error:
            self._events("certificate_problem", None, why=str(error))
            return None

    # Calls ------------------------------------------------------------------------------------------------------

    def _handler(self, rpc: Rpc) -> Any:
        if rpc.streams:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._talk(self._caller(rpc, context), requests, context)
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(rpc, self._caller(rpc, context), request, context)
        )

    def _caller(self, rpc: Rpc, context: Any) -> PartyName:
        """Before any handler runs. `abort` raises."""
        held = context.auth_context()
        pem = _first(held, "x509_pem_cert")
        claims = [value for key, value in context.invocation_metadata() if key == CLAIM]
        try:
            return self._roster.identify_caller(rpc, pem, _first(held, "ssl_tls_version").decode(), claims)
        except (Denied, BadInput) as error:
            self._events("denied", None, rpc=rpc.name, why=str(error))
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error)[:_LONGEST_REASON])
            raise

    def _answer(self, rpc: Rpc, caller: PartyName, request: bytes, context: Any) -> bytes:
        try:
            return json.dumps(self._desk.answer(rpc, caller, parse_json(b"\x00" + request))).encode()
        except ThinwireError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_LONGEST_REASON])
            raise

    def _talk(self, peer: PartyName, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        first = self._first_word(peer, requests, context)
        try:
            if not first or first[0] != Record.HELLO:
                raise Refused("a connection begins with HELLO")
            hello = parse_json(first)
            link = self._desk.admit(peer, hello)
            attached = link.attach(_Call(context), parse_count(hello, "received"), parse_count(hello, "kept"))
        except ThinwireError as error:
            self._events("refused", peer, why=str(error))
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

    def _first_word(self, peer: PartyName, requests: Iterator[bytes], context: Any) -> bytes:
        """HELLO, soon; few may keep it to themselves, or nobody else would find a thread."""
        with self._lock:
            if self._greeting[peer] >= _MOST_GREETING:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many connections wait for their HELLO")
            self._greeting[peer] += 1
        silent = Timer(_HELLO_SECONDS, context.cancel)
        silent.start()
        try:
            return next(requests, b"")
        finally:
            silent.cancel()
            with self._lock:
                self._greeting[peer] -= 1

    def _read(self, attached: Attachment, peer: PartyName, requests: Iterator[bytes], context: Any) -> None:
        why = "the connection was lost"
        try:
            for record in requests:
                attached.incoming(record)
        except ThinwireError as error:
            why = str(error)
            self._events("damaged", peer, why=why)
            context.set_code(grpc.StatusCode.DATA_LOSS)
            context.set_details(why[:_LONGEST_REASON])
        except Exception:  # noqa: BLE001  gRPC raises a bare Exception where a stream breaks
            why = "the connection broke"
        attached.end(why)

    def _watch(self) -> None:
        """Ends connections of peers that are silent, and of those whose certificate no longer holds."""
        problem = None
        while not self._over.wait(0.5):
            if self._roster.problem != problem:
                problem = self._roster.problem
                self._events(
                    "certificate_problem", None, why=problem or "the list of revoked certificates is whole again"
                )
            with self._lock:
                talking = list(self._talking.items())
            for attached, (peer, pem) in talking:
                refusal = self._roster.find_refusal(pem)
                if refusal is not None:
                    self._events("denied", peer, why=refusal)
                    attached.end(refusal)
                elif attached.silent_seconds() > SILENCE_SECONDS:
                    attached.end(f"silent for {SILENCE_SECONDS:.0f} s")


class _Call:
    """gRPC's context as a link's connection."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def end(self, why: str) -> None:
        if self._context.code() is None:
            self._context.cancel()


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def service_name(self) -> str:
        return SERVICE

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


def _first(held: Any, key: str) -> bytes:
    values = held.get(key) or [b""]
    return bytes(values[0])
