"""gRPC as we use it, and a feature party's side: it dials, and dials again.

One long-lived stream of raw records over mutual TLS 1.3. Feature parties only dial out; proxies named in
`grpc_proxy`, `https_proxy` or `http_proxy` are honoured by gRPC itself (HTTP CONNECT).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol

import grpc as grpc  # noqa: PLC0414  others take it from here, after its settings

from thinwire.base.errors import Malformed, ThinwireError
from thinwire.base.format import printable
from thinwire.base.process import GrpcNotConfigured, is_grpc_configured
from thinwire.engine.channel.base import TransportError
from thinwire.net.grpc.service import CLAIM, RPCS, Denied, Refused, Rpc, RunAborted
from thinwire.net.links.peer_end import SILENCE_SECONDS, PeerEnd
from thinwire.net.links.records import CHUNK, MAX_JSON, Record, json_record, parse_count, parse_json
from thinwire.net.pki.certificates import BadCertificate, Credentials

CONTROL_SECONDS = 10.0
_CONNECT_SECONDS = 4.0
_BACK_OFF = (0.1, 0.3, 0.6, 1.0, 1.5, 2.0)
# gRPC's words for two certificates that do not agree; a line that breaks in a handshake is only a broken line.
_OF_TLS = ("CERTIFICATE", "Hostname Verification", "certificate", "UNKNOWN_CA", "WRONG_VERSION")
_OF_LINES = ("reset", "closed", "Broken pipe")
_TELL_SECONDS = 10.0
_PATIENT_WITH_DAMAGE = 3  # connections in a row that broke on bytes that cannot be

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_JSON + CHUNK),
    ("grpc.max_send_message_length", MAX_JSON + CHUNK),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
]
_CLIENT_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.min_reconnect_backoff_ms", int(_CONNECT_SECONDS * 1000)),  # a connection attempt's deadline
    ("grpc.use_local_subchannel_pool", 1),  # every attempt is a connection of its own
    ("grpc.enable_retries", 0),
]


_CONFIGURED = is_grpc_configured()  # as gRPC saw it: it looks when it loads


def require_configured_grpc() -> None:
    """Before the first connection: TLS 1.2 must be off."""
    if not _CONFIGURED:
        raise GrpcNotConfigured


@dataclass(frozen=True)
class DialTarget:
    """Whom to call, as whom, and with which certificate; read anew at every call, so it can be renewed."""

    address: str  # host:port
    name: str  # in the label party's certificate
    me: str
    credentials: Callable[[], Credentials]

    def open(self) -> grpc.Channel:
        require_configured_grpc()
        mine = self.credentials()
        secure = grpc.ssl_channel_credentials(mine.authority_pem, mine.key_pem, mine.certificate_pem)
        options = [*OPTIONS, *_CLIENT_OPTIONS, ("grpc.ssl_target_name_override", self.name)]
        return grpc.secure_channel(self.address, secure, options=options)

    @property
    def claim(self) -> tuple[tuple[str, str], ...]:
        return ((CLAIM, self.me),)


class Unreached(TransportError):
    """Nobody answered; it may help to try again."""


class HandshakeFailed(Unreached):
    """There is somebody, but the two certificates do not agree; or there is no such host."""


def ask(target: DialTarget, rpc: Rpc, request: dict[str, Any], seconds: float = CONTROL_SECONDS) -> dict[str, Any]:
    """One small question and its answer."""
    with target.open() as channel:
        call: Any = channel.unary_unary(rpc.path)
        try:
            answer = call(json.dumps(request).encode(), timeout=seconds, metadata=target.claim)
        except grpc.RpcError as error:
            raise _mapped(error, target) from None
    return parse_json(b"\x00" + answer)


def _mapped(error: grpc.RpcError, target: DialTarget) -> ThinwireError:
    """gRPC's exception as one of ours."""
    code, details = error.code(), printable((error.details() or "").strip())
    match code:
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
            return Denied(details)
        case grpc.StatusCode.ABORTED:
            return RunAborted(details)
        case grpc.StatusCode.FAILED_PRECONDITION:
            return Refused(details)
        case grpc.StatusCode.DATA_LOSS:
            return Malformed(details)
        case grpc.StatusCode.UNAVAILABLE if _says(details, _OF_TLS) and not _says(details, _OF_LINES):
            return HandshakeFailed(
                f"{target.address} answers, but the TLS handshake fails ({details}); both sides need certificates of "
                f"one authority, and the label party's must be for {target.name!r}"
            )
        case grpc.StatusCode.UNAVAILABLE if "DNS" in details or "resol" in details:
            return HandshakeFailed(f"network.address: no host is found for {target.address} ({details})")
        case grpc.StatusCode.UNIMPLEMENTED:
            return Refused(f"{target.address} does not offer what this version asks for: {details}")
    return Unreached(f"{target.address} cannot be reached: {code.name} {details}")


def _says(details: str, words: tuple[str, ...]) -> bool:
    return any(word in details for word in words)


class Greeter(Protocol):
    """What a feature party says and hears when it connects."""

    def hello(self) -> dict[str, Any]: ...

    def check_welcome(self, welcome: dict[str, Any]) -> None:
        """Looks at the label party's words; raises Refused where it cannot go on with them."""

    def report_no_answer(self, why: str) -> None:
        """Nobody answered; said once, and then now and then."""


class Dialer:
    """Keeps a link connected: dials, talks, and dials again, until closed or refused."""

    def __init__(self, target: DialTarget, link: PeerEnd, greeter: Greeter) -> None:
        self._target = target
        self._link = link
        self._greeter = greeter
        self._closed = Event()
        self._call: Any = None
        self._ever = False  # connected before
        self._met = False  # connected in this attempt
        self._said = ("", 0.0)  # why nobody answered, and after how many seconds
        self._thread = Thread(target=self._run, name="dial", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        attempt, damaged, away_since = 0, 0, monotonic()
        while not self._closed.is_set():
            received = self._link.describe_state()["received"]
            self._met = False
            try:
                self._talk()
            except (Unreached, Denied, BadCertificate) as error:
                if self._closed.is_set():
                    return
                # What never worked will not; a certificate that has expired since may be renewed.
                if not self._ever and (type(error) is not Unreached):
                    self._link.fail(error)
                    return
                self._report(str(error), 0.0 if self._met else monotonic() - away_since)
            except Malformed as error:
                damaged += 1
                if damaged >= _PATIENT_WITH_DAMAGE:
                    self._link.fail(error)
                    return
            except Exception as error:  # noqa: BLE001  the end of a thread: its program must not wait for ever
                unknown = TransportError(f"dialling failed: {type(error).__name__}: {error}")
                self._link.fail(error if isinstance(error, ThinwireError) else unknown)
                return
            if self._link.describe_state()["received"] > received:
                damaged = 0
            if self._met:
                attempt, away_since = 0, monotonic()
            self._closed.wait(_BACK_OFF[min(attempt, len(_BACK_OFF) - 1)])
            attempt += 1

    def _report(self, why: str, seconds: float) -> None:
        said_why, said_at = self._said
        if why != said_why or seconds < said_at or seconds - said_at >= _TELL_SECONDS:
            self._said = (why, seconds)
            self._greeter.report_no_answer(why)

    def _talk(self) -> None:
        """One connection, from its first word to its end."""
        with self._target.open() as channel:
            following: Future[Iterator[bytes]] = Future()  # known only after the answer to HELLO
            records = _greet(json_record(Record.HELLO, self._greeter.hello()), following)
            talk: Any = channel.stream_stream(RPCS["Talk"].path)
            self._call = call = talk(records, metadata=self._target.claim)
            over, began, attached = Event(), monotonic(), None

            def count_silence() -> float:
                return monotonic() - began if attached is None else attached.silent_seconds()

            Thread(target=_watch, args=(call, count_silence, over), name="watch", daemon=True).start()
            try:
                welcome = parse_json(next(call))
                self._greeter.check_welcome(welcome)
                received, kept = parse_count(welcome, "received"), parse_count(welcome, "kept")
                attached = self._link.attach(call.cancel, received, kept)
                following.set_result(attached.outgoing())
                self._ever = self._met = True
                try:
                    for record in call:
                        attached.incoming(record)
                finally:
                    attached.end("the connection was lost")
            except StopIteration:
                raise Unreached(f"{self._target.address} hung up") from None
            except grpc.RpcError as error:
                raise _mapped(error, self._target) from None
            finally:
                over.set()
                if not following.done():
                    following.set_result(iter(()))
                call.cancel()


def _greet(hello: bytes, following: Future[Iterator[bytes]]) -> Iterator[bytes]:
    yield hello
    yield from following.result()


def _watch(call: Any, silent_seconds: Callable[[], float], over: Event) -> None:
    """Ends a call on which nothing is heard: a stalled peer and a dead link look the same."""
    while not over.wait(0.5):
        if silent_seconds() > SILENCE_SECONDS:
            call.cancel()
