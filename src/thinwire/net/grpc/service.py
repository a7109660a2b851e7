"""The service of a label party: who may call what, and how much, and that only a certificate says who calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from thinwire.base.format import printable
from thinwire.base.types import PartyName
from thinwire.engine.channel.base import TransportError
from thinwire.net.pki.certificates import Revocations, read_names

SERVICE = "thinwire.Run"
PROTOCOL = 4  # 3 had no columns given their parents; 2 no validation rows; 1 did not count a log's messages in HELLO
CLAIM = "thinwire-party"  # who a caller says it is; compared with its certificate, never believed


class Role(Enum):
    LABEL_PARTY = "label party"
    FEATURE_PARTY = "feature party"
    CLIENT = "client"  # no party: it may ask for scores
    STRANGER = "stranger"  # a certificate of the same authority, and no part in this run
    ADDRESS = "address"  # no certificate so far


@dataclass(frozen=True, slots=True)
class Rpc:
    """One call of the service."""

    name: str
    streams: bool  # records both ways, as long as the run lasts; otherwise one JSON object each way
    callers: frozenset[Role]

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"


_ALL = frozenset({Role.LABEL_PARTY, Role.FEATURE_PARTY})
RPCS = {
    rpc.name: rpc
    for rpc in (
        Rpc("Talk", streams=True, callers=frozenset({Role.FEATURE_PARTY})),
        Rpc("Status", streams=False, callers=_ALL),
        Rpc("Abort", streams=False, callers=_ALL),
        Rpc("Probe", streams=False, callers=_ALL),  # an echo, for doctor
        Rpc("Score", streams=False, callers=frozenset({Role.LABEL_PARTY, Role.CLIENT})),
        Rpc("Logs", streams=False, callers=_ALL),  # what happened, where the label party shares it
    )
}


@dataclass(frozen=True, slots=True)
class CallerBudget:
    """How much one caller may take up at a time, over all its connections."""

    connections: int
    calls: int  # that are open: not answered, or answered and the answer not taken
    call_bytes: int  # of a request; an answer has as many
    unread_bytes: int  # of frames that the program has not taken yet; then the caller waits
    log_lines: int  # a minute, about each kind of event
    cpu_ms: int  # a second, of the threads that hear it; addresses and strangers have it together


_PARTY = CallerBudget(8, calls=32, call_bytes=1 << 20, unread_bytes=64 << 20, log_lines=120, cpu_ms=500)
BUDGETS = {
    Role.ADDRESS: CallerBudget(32, calls=0, call_bytes=0, unread_bytes=0, log_lines=30, cpu_ms=100),
    Role.STRANGER: CallerBudget(4, calls=0, call_bytes=0, unread_bytes=0, log_lines=30, cpu_ms=100),
    Role.CLIENT: CallerBudget(8, calls=32, call_bytes=1 << 20, unread_bytes=0, log_lines=30, cpu_ms=500),
    Role.FEATURE_PARTY: _PARTY,
    Role.LABEL_PARTY: _PARTY,
}
REFUSAL_MS = 0.5  # of CPU that a call costs which is refused
# Twice as many fit into a caller's budget: the server hears a little late that an answer was taken.
CALLS_PER_CONNECTION = 16
BODY_SECONDS = 30.0  # that a caller has for its request
HELLO_SECONDS = 5.0  # and for its HELLO, where it comes to talk
HANDSHAKE_SECONDS = 10.0


class Denied(TransportError):
    """A caller that is not who it must be."""


class Refused(TransportError):
    """A party that may call, but cannot take part as it is; trying again will not help."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # it may quote a peer


class NotYet(TransportError):
    """A party that may take part, but not now; trying again will help."""


class RunAborted(Refused):
    """A party ended the run for all, for good."""


class AccessList:
    """The parties of a run by the names in their certificates, and clients by theirs."""

    def __init__(
        self,
        label_party: PartyName,
        certificate_names: Mapping[PartyName, str],
        revocations: Revocations,
        clients: Iterable[str] = (),
    ) -> None:
        self.label_party = label_party
        self._clients = frozenset(clients) - set(certificate_names.values())
        self._parties = {name: name for name in self._clients}
        self._parties |= {name: party for party, name in certificate_names.items()}
        self.revocations = revocations

    @property
    def callers(self) -> int:
        """How many there can be."""
        return len(self._parties)

    def role(self, party: PartyName) -> Role:
        if party in self._clients:
            return Role.CLIENT
        return Role.LABEL_PARTY if party == self.label_party else Role.FEATURE_PARTY

    def identify_caller(self, rpc: Rpc, certificate_pem: bytes, tls_version: str, claims: Iterable[str]) -> PartyName:
        """Who calls; raises Denied unless the certificate, and nothing else, allows it."""
        if tls_version != "TLSv1.3":
            raise Denied(f"{tls_version or 'no TLS'}: this service speaks TLS 1.3 only")
        refusal = self.revocations.find_refusal(certificate_pem)
        if refusal is not None:
            raise Denied(refusal)
        names = read_names(certificate_pem)
        found = sorted({self._parties[name] for name in names if name in self._parties})
        if not found:
            raise Denied(
                f"the certificate is of {', '.join(sorted(names)) or 'nobody'}, which is not a party of this run"
            )
        if len(found) > 1:
            raise Denied(f"the certificate names several parties: {', '.join(found)}; each needs one of its own")
        party = found[0]
        for claim in claims:
            if claim != party:
                raise Denied(f"the certificate is of {party!r}, the call says {claim!r}; use the one of {claim!r}")
        if self.role(party) not in rpc.callers:
            raise Denied(f"{party!r} is the {self.role(party).value}; {rpc.name} is not for it")
        return party
