"""A party on the network: who it is, where the parties meet, and the certificates by which they know each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thinwire.base.types import PartyName
from thinwire.net.grpc.client import DialTarget
from thinwire.net.grpc.service import AccessList
from thinwire.net.links.endpoint import Endpoint, choose_dial_address, choose_listen_address
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
        return choose_listen_address(self.listen, self.address)

    def dial_address(self) -> str:
        return choose_dial_address(self.listen, self.address)

    def load_credentials(self) -> Credentials:
        """Read anew each time: they may have been renewed."""
        return load_credentials(self.certificate_files, self.certificate_names[self.me])

    def read_revocations(self) -> Revocations:
        return Revocations(self.certificate_files.revoked)

    def identity(self) -> CertifiedIdentity:
        """Who this party is to the others, where keys are agreed on."""
        return CertifiedIdentity(self.load_credentials, self.certificate_names, self.read_revocations())

    def access_list(self, clients: Iterable[str] = ()) -> AccessList:
        """Who may call the label party."""
        return AccessList(self.label_party, self.certificate_names, self.read_revocations(), clients)

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
