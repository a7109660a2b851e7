"""A party on the network: who it is, where the parties meet, and the certificates by which they know each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.net.grpc.client import DialTarget
from thinwire.net.grpc.server import Desk, Listener
from thinwire.net.grpc.service import AccessList
from thinwire.net.links.endpoint import Endpoint, is_loopback
from thinwire.net.links.peer_end import Events
from thinwire.net.pki.certificates import CertificateFiles, Credentials, Revocations, load_credentials
from thinwire.net.pki.signing import CertifiedIdentity


@dataclass(frozen=True)
class NetworkParty:
    """All that meeting the others takes; nothing of models, rows or recipes."""

    me: PartyName
    label_party: PartyName
    feature_parties: tuple[PartyName, ...]  # in the job's order
    certificate_files: CertificateFiles
    certificate_names: Mapping[PartyName, str]  # of every party
    listen: str | None
    address: str | None
    wait_seconds: float

    @property
    def is_label_party(self) -> bool:
        return self.me == self.label_party

    @property
    def peers(self) -> tuple[PartyName, ...]:
        """Whom it talks to: feature parties meet at the label party."""
        return self.feature_parties if self.is_label_party else (self.label_party,)

    def listen_address(self) -> str:
        """Where the label party listens. Unless given: at a loopback address, or else everywhere, at that port."""
        if self.listen is not None:
            return self.listen
        if self.address is not None:
            called = Endpoint.parse(self.address)
            return str(called if is_loopback(called.host) else Endpoint("0.0.0.0", called.port))  # noqa: S104
        raise BadInput(
            "network.listen is missing; set the address on which the label party listens, such as listen = "
            '"0.0.0.0:7443"'
        )

    def dial_address(self) -> str:
        """Where feature parties find the label party: where it listens, unless given."""
        if self.address is not None:
            return self.address
        if self.listen is not None and Endpoint.parse(self.listen).is_callable:
            return self.listen
        raise BadInput(
            'network.address is missing; set the address of the label party, such as address = "fl.shop.example:7443"'
        )

    def load_credentials(self) -> Credentials:
        """Read anew each time: they may have been renewed."""
        return load_credentials(self.certificate_files, self.certificate_names[self.me])

    def read_revocations(self) -> Revocations:
        return Revocations(self.certificate_files.revoked)

    def identity(self) -> CertifiedIdentity:
        """Who this party is to the others, where keys are agreed on."""
        return CertifiedIdentity(self.load_credentials, self.certificate_names, self.read_revocations())

    def listener(self, desk: Desk, events: Events, clients: Iterable[str] = ()) -> Listener:
        """The label party's port, for the feature parties and for clients by the names in their certificates."""
        callers = AccessList(self.label_party, self.certificate_names, self.read_revocations(), clients)
        return Listener(self.listen_address(), self.load_credentials, callers, desk, events)

    def target(self) -> DialTarget:
        """The label party; at the label party itself, its own process on this machine."""
        address = self._own_address() if self.is_label_party else self.dial_address()
        return DialTarget(address, self.certificate_names[self.label_party], self.me, self.load_credentials)

    def _own_address(self) -> str:
        place = Endpoint.parse(self.listen_address())
        if place.port == 0:
            return self.dial_address()
        if place.is_callable:
            return str(place)
        return str(Endpoint("::1" if ":" in place.host else "127.0.0.1", place.port))
