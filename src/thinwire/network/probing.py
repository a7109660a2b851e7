"""What is asked across the network beside a run: who is there, how far away, and does it read the job as we do.

A probe carries sizes and digests; never data, ids or keys.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from statistics import median
from threading import Lock
from time import perf_counter, time
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire.errors import BadInput, Malformed
from thinwire.job.agreement import differences
from thinwire.job.endpoint import Endpoint
from thinwire.job.own_part import OwnPart
from thinwire.job.seating import run_number
from thinwire.transport.certificates import CertificateFiles, Credentials, load_credentials, names_of
from thinwire.transport.errors import TransportError
from thinwire.transport.grpc_channel import Target, Unreached, ask, grpc
from thinwire.transport.peer_link import PeerLink
from thinwire.transport.service import RPCS, Denied, Refused, Rpc
from thinwire.types import PartyName

__all__ = [
    "Brought",
    "Measured",
    "PartyStanding",
    "Rate",
    "Reception",
    "Standing",
    "Trouble",
    "Way",
    "measured",
    "printable",
    "probe_answer",
    "question",
    "read_standing",
    "require_this_run",
    "run_of",
    "shake_hands",
    "target_of",
]

MOST_FILLER = 1_000_000  # characters: a request and an answer may have 1 MiB
_SIZES = (16_000, 64_000, 256_000, MOST_FILLER)
_ROUND_TRIPS = 10
_CONNECT_SECONDS = 4.0
_PROBE_SECONDS = 30.0
_LONG_ENOUGH = 1.0  # seconds that a probe took: a larger one would say no more
_LONGEST_SENTENCE = 1500

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Text = Annotated[str, Field(max_length=4096)]


class Trouble(TransportError):
    """The label party cannot be met; `way_out` says what to look at."""

    def __init__(self, cause: str, way_out: str) -> None:
        self.way_out = way_out
        super().__init__(cause)


def printable(text: Any) -> str:
    """What comes from a peer must not write lines of its own, or steer a terminal."""
    short = str(text)[:_LONGEST_SENTENCE]
    return short if short.isprintable() else ascii(short)


# What a probe says, and what it is answered ---------------------------------------------------------------------


class Brought(BaseModel):
    """A party as it says itself; sizes and digests are left out where its data could not be read."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    party: _Text
    version: _Text
    agreement: dict[str, _Text]
    rows: _Count | None = None
    test_rows: _Count | None = None
    row_ids: _Text | None = None
    test_row_ids: _Text | None = None
    width: Annotated[int, Field(ge=0, le=1 << 20)] = 0  # of its embedding; 0 where it has none, or none is known

    @classmethod
    def read(cls, value: Any) -> Brought:
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(f"probe: brought.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def differences_to(self, other: Brought) -> list[str]:
        """One sentence each; empty where both could take part in one run, as far as is known."""
        me, peer = self.party, other.party
        found = differences(self.agreement, other.agreement, me, peer)
        for field, name in (("rows", "training rows"), ("test_rows", "test rows")):
            here, there = getattr(self, field), getattr(other, field)
            if None not in (here, there) and here != there:
                found.append(f"{me!r} has {here} {name}, {peer!r} has {there}; all parties must hold the same rows")
        for field, name in (("row_ids", "row ids"), ("test_row_ids", "ids of test rows")):
            here, there = getattr(self, field), getattr(other, field)
            if None not in (here, there) and here != there:
                found.append(
                    f"{me!r} and {peer!r} list other {name}, or in another order (digests {here[:12]} and "
                    f"{there[:12]}); bring the rows of both into one order"
                )
        return found


def probe_answer(request: Mapping[str, Any], caller: PartyName, ours: Brought, now: float) -> dict[str, Any]:
    """What the label party, or its doctor, answers to a probe."""
    want = request.get("want", 0)
    if isinstance(want, bool) or not isinstance(want, int) or not 0 <= want <= MOST_FILLER:
        raise Refused(f"probe: want must be from 0 to {MOST_FILLER} characters, got {want!r}")
    answer = {
        "party": ours.party,
        "version": ours.version,
        "time": now,
        "echo": request.get("echo", ""),
        "filler": _filler(want),
    }
    if "brought" in request:
        theirs = Brought.read(request["brought"]).model_copy(update={"party": caller})
        answer["differences"] = theirs.differences_to(ours)
        answer["names_ids"] = ours.row_ids is not None
    return answer


def _filler(count: int) -> str:
    """Nothing that a tunnel on the way could make shorter."""
    return secrets.token_urlsafe(count)[:count]


class Reception:
    """A desk that answers doctors, and turns everybody else away; implements `Desk` for the listener."""

    _NOT_THE_RUN = "this is the doctor, not the run; start again when the label party's `thinwire party` is up"

    def __init__(self, ours: Brought) -> None:
        self._ours = ours
        self._lock = Lock()
        self._seen: dict[PartyName, Brought] = {}
        self._done: dict[PartyName, Brought] = {}
        self._refusals: dict[str, None] = {}

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> PeerLink:
        raise Refused(self._NOT_THE_RUN)

    def welcome(self, peer: PartyName) -> dict[str, Any]:
        raise Refused(self._NOT_THE_RUN)

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        if rpc.name == "Status":
            return {"label_party": self._ours.party, "state": "doctor"}
        if rpc.name != "Probe":
            raise Refused(self._NOT_THE_RUN)
        found = probe_answer(request, caller, self._ours, time())
        if "brought" in request:
            theirs = Brought.read(request["brought"]).model_copy(update={"party": caller})
            with self._lock:
                self._seen[caller] = theirs
                if request.get("done") is True:
                    self._done[caller] = theirs
        return found

    def heard(self, event: str, peer: PartyName | None, **facts: Any) -> None:
        """What the listener reports; refused callers are worth knowing."""
        if event in ("denied", "refused", "certificate_problem"):
            with self._lock:
                self._refusals[printable(facts.get("why", event))] = None

    def seen(self) -> dict[PartyName, Brought]:
        """Who has probed, as it said last."""
        with self._lock:
            return dict(self._seen)

    def done(self) -> dict[PartyName, Brought]:
        """Whose measurements are over."""
        with self._lock:
            return dict(self._done)

    def refusals(self) -> list[str]:
        with self._lock:
            return list(self._refusals)


# Whom to ask -----------------------------------------------------------------------------------------------------


def target_of(own: OwnPart) -> Target:
    """The label party; at the label party itself, its own process on this machine."""

    def credentials() -> Credentials:
        return load_credentials(own.certificate_files, own.certificate_names[own.me])

    address = _own_address(own) if own.is_label_party else own.network.dial_address()
    return Target(address, own.certificate_names[own.label_party], own.me, credentials)


def _own_address(own: OwnPart) -> str:
    place = Endpoint.parse(own.network.listen_address())
    if place.port == 0:
        return own.network.dial_address()
    if place.is_callable:
        return str(place)
    return str(Endpoint("::1" if ":" in place.host else "127.0.0.1", place.port))


def run_of(own: OwnPart) -> str:
    """Which run this job file is about."""
    return f"{run_number(own.recipe, own.settings.seed, own.feature_parties):016x}"


def require_this_run(request: Mapping[str, Any], run: int) -> None:
    """A question that names a run must mean this one: the same parties may have several."""
    asked = request.get("run", f"{run:016x}")
    if asked != f"{run:016x}":
        raise Refused(
            f"the run here is {run:016x}, the question is about {printable(asked)[:40]}: another recipe, seed or "
            "parties. Give the job file that the label party runs"
        )


# The way there ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How gRPC goes to an address: straight, or through an HTTP proxy."""

    address: Endpoint
    proxy: Endpoint | None = None
    variable: str = ""  # of the environment, where the proxy stands
    authorization: str = ""  # for the proxy; never shown

    @classmethod
    def to(cls, address: str, environment: Mapping[str, str]) -> Way:
        """By the rules of gRPC: the first of three variables that is set, unless the host is excepted."""
        place = Endpoint.parse(address)
        variable = next((name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environment.get(name)), "")
        excepted = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
        if not variable or any(_excepts(entry.strip(), place.host) for entry in excepted.split(",")):
            return cls(place)
        parts = urlsplit(environment[variable])
        if parts.scheme != "http" or not parts.hostname:
            return cls(place)  # gRPC takes no notice of it either
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return cls(place, Endpoint(parts.hostname, parts.port or 443), variable, user)

    @property
    def first(self) -> Endpoint:
        """Where the connection goes."""
        return self.proxy or self.address

    def resolve(self) -> list[str]:
        """The first host's addresses."""
        try:
            found = socket.getaddrinfo(self.first.host, self.first.port, type=socket.SOCK_STREAM)
        except OSError as error:
            field = self.variable or "network.address"
            raise Trouble(
                f"no host is called {self.first.host} ({error.strerror})",
                f"{field} names it: is it spelled right, and does this machine know its name server?",
            ) from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def connect(self) -> socket.socket:
        """A connection to the label party's port, as yet without TLS."""
        try:
            made = socket.create_connection((self.first.host, self.first.port), _CONNECT_SECONDS)
        except ConnectionRefusedError:
            raise Trouble(f"nobody listens at {self.first}", self._nobody()) from None
        except OSError as error:
            raise Trouble(
                f"{self.first} cannot be reached ({error.strerror or 'no answer within 4 s'})",
                "look at firewalls on the way, and at the address; only the label party needs an open port",
            ) from None
        if self.proxy is not None:
            self._through_proxy(made)
        return made

    def _nobody(self) -> str:
        if self.proxy is not None:
            return f"the proxy is named by {self.variable}; start it, or unset that variable"
        return (
            "start `thinwire doctor` with --wait, or `thinwire party`, at the label party; or network.address is "
            "another one. --wait SECONDS here keeps trying"
        )

    def _through_proxy(self, made: socket.socket) -> None:
        lines = [f"CONNECT {self.address} HTTP/1.1", f"Host: {self.address}"]
        if self.authorization:
            lines.append(f"Proxy-Authorization: Basic {b64encode(self.authorization.encode()).decode()}")
        try:
            made.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            while b"\r\n\r\n" not in answer and len(answer) < 1 << 14 and (more := made.recv(4096)):
                answer += more
        except OSError:
            answer = b""
        status = answer.partition(b"\r\n")[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            made.close()
            raise Trouble(
                f"the proxy {self.proxy} does not connect to {self.address} ({printable(status) or 'it hung up'})",
                f"ask for a CONNECT to this address there, or except it in no_proxy; {self.variable} names the proxy",
            )


def _excepts(entry: str, host: str) -> bool:
    if not entry:
        return False
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())


def shake_hands(made: socket.socket, credentials: Credentials, files: CertificateFiles, name: str) -> str:
    """TLS 1.3 with both certificates; gives the name that the other side proved."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # names are compared below, as the run does
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=credentials.authority_pem.decode())
    context.load_cert_chain(files.certificate, files.key)
    try:
        with context.wrap_socket(made) as secure:
            held = names_of(ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode())
            if name not in held:
                raise Trouble(
                    f"the certificate there is for {printable(', '.join(sorted(held))) or 'nobody'}, not {name!r}",
                    "is network.address the label party's? Its certificate must carry its name in the job, or "
                    "the certificate_name of its section",
                )
            # What the other side thinks of our certificate is known only by what it says next.
            if not secure.recv(1):
                raise ConnectionResetError
    except ssl.SSLCertVerificationError as error:
        raise Trouble(
            f"the certificate there is not accepted here: {error.verify_message}",
            f"both sides need certificates of one authority that are valid now; ours is {files.authority}",
        ) from None
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise _refused_hands(reason, files) from None
    except (ConnectionError, TimeoutError):
        raise Trouble(
            "whoever is there hangs up on our certificate, or is no thinwire",
            f"compare {files.authority} with the label party's; is {files.certificate} on its list of revoked?",
        ) from None
    return name


def _refused_hands(reason: str, files: CertificateFiles) -> Trouble:
    if "wrong version" in reason or "record layer" in reason:
        return Trouble(
            "what listens there does not speak TLS", "is network.address the label party's, port included?"
        )
    if "alert" in reason:
        return Trouble(
            f"our certificate is not accepted there ({reason})",
            f"both sides need certificates of one authority that are valid now; ours is {files.certificate}",
        )
    return Trouble(f"the TLS handshake fails ({reason})", "is network.address the label party's, port included?")


# How far it is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """How fast a direction carried the largest probe; a short transfer only bounds it from below."""

    mbit: float
    is_bound: bool


@dataclass(frozen=True)
class Measured:
    """A link as probes see it."""

    round_trip_ms: float  # the median
    clock_seconds: float  # how far the other clock is ahead of ours
    up: Rate  # towards the label party
    down: Rate


def measured(target: Target, brought: Brought) -> Measured:
    """About ten small probes, then growing ones; the last one says that we are done."""
    with target.open() as channel:
        call: Any = channel.unary_unary(RPCS["Probe"].path)

        def probe(request: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
            body = json.dumps(request).encode()
            began = perf_counter()
            answer = call(body, timeout=_PROBE_SECONDS, metadata=target.claim)
            took = perf_counter() - began
            return took, json.loads(answer)

        try:
            probe({})  # connects
            trips = list(_round_trips(probe))
            usual = median(took for took, _ in trips)
            up = _rate(usual, lambda size: probe({"filler": _filler(size)})[0])
            down = _rate(usual, lambda size: probe({"want": size})[0])
            probe({"brought": brought.model_dump(), "done": True})
        except grpc.RpcError as error:
            raise Unreached(f"{target.address}: the measurement broke off: {error.code().name}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise Malformed(f"{target.address} answers probes with what cannot be read: {error}") from None
    return Measured(1000 * usual, min(trips)[1], up, down)


def _round_trips(probe: Callable[[Mapping[str, Any]], tuple[float, dict[str, Any]]]) -> Iterator[tuple[float, float]]:
    """Seconds there and back, and how far the other clock is ahead; the fastest one tells it best."""
    for _ in range(_ROUND_TRIPS):
        began = time()
        took, answer = probe({"echo": secrets.token_hex(4)})
        yield took, float(answer["time"]) - (began + took / 2)


def _rate(round_trip: float, seconds_for: Callable[[int], float]) -> Rate:
    """By the largest of growing sizes, or by the first that takes long enough."""
    found = Rate(0.0, is_bound=True)
    for size in _SIZES:
        took = seconds_for(size)
        carried = max(took - round_trip, took / 2)
        # A connection begins slowly: within a few round trips it shows its beginning, not the link.
        found = Rate(8e-6 * size / carried, is_bound=carried < max(0.02, 8 * round_trip))
        if took > _LONG_ENOUGH:
            break
    return found


# How a run stands ------------------------------------------------------------------------------------------------


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class PartyStanding(_Told):
    """A feature party as the label party sees it."""

    connected: bool = False
    away_seconds: float = 0.0
    starts: _Count = 0
    finished: bool = False


class Bytes(_Told):
    up: _Count = 0
    down: _Count = 0
    retransmitted: _Count = 0


class Evaluation(_Told):
    round: _Count
    train: dict[str, float]
    test: dict[str, float]


class Standing(_Told):
    """The answer to Status; a doctor says no more than that it is one."""

    label_party: _Text
    state: _Text
    method: _Text = ""
    round: _Count = 0
    rounds: _Count = 0
    waiting_for: _Text | None = None
    parties: dict[str, PartyStanding] = {}
    bytes: Bytes = Bytes()
    last_event: Evaluation | None = None


def read_standing(answer: Mapping[str, Any]) -> Standing:
    try:
        return Standing.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        place = printable(".".join(map(str, first["loc"])))
        raise Malformed(f"the label party's answer cannot be read: {place}: {first['msg']}") from None


def question(own: OwnPart, rpc: str) -> tuple[Target, dict[str, Any]]:
    """Asks the label party about the run of this job file; whom was asked, and the answer."""
    target = target_of(own)
    try:
        return target, ask(target, RPCS[rpc], {"run": run_of(own)})
    except (Denied, Refused) as error:
        raise BadInput(f"{target.address} refuses to answer {own.me!r}: {printable(error)}") from None
