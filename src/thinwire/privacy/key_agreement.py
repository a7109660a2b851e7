"""A key for each pair of parties, agreed through the label party, which learns none of them.

Every party makes an X25519 key for the run and signs its public half, bound to the run, the recipe and all
parties. The label party passes the signed keys on; each party checks the others' signatures by itself, under
their certificates, so that the label party cannot put keys of its own between two parties.

    pair key = HKDF(X25519(mine, theirs), run, recipe, both names, both public keys)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from thinwire.errors import Malformed, ThinwireError
from thinwire.privacy.context import framed
from thinwire.privacy.keys import KEY_SIZE, derived_key
from thinwire.types import PartyName

__all__ = ["BadSignature", "Identity", "InProcessIdentity", "KeyAgreement", "Subject", "in_process_identities"]

_MOST_PROOF = 64 << 10  # bytes: a signature and a few certificates


class BadSignature(ThinwireError):
    """A party's key for the secure sum is not signed by that party."""


class Identity(Protocol):
    """Who this party is to the others, and whose signatures it believes."""

    def sign(self, statement: bytes) -> bytes:
        """A proof that this party says so."""

    def verify(self, party: PartyName, statement: bytes, proof: bytes) -> None:
        """Raises a ThinwireError unless `party` itself said so."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the keys are for: one run of one recipe among these parties."""

    run: int
    recipe: str  # its digest
    parties: tuple[PartyName, ...]  # that add, in the job's order

    def to_bytes(self) -> bytes:
        return framed(self.run, self.recipe, len(self.parties), *self.parties)


class KeyAgreement:
    """One party's half. The key follows from the party's secret, so that a restarted process has the same one."""

    def __init__(self, me: PartyName, subject: Subject, identity: Identity, secret: bytes) -> None:
        self._me = me
        self._subject = subject
        self._identity = identity
        info = framed("thinwire x25519 1", me) + subject.to_bytes()
        self._private = X25519PrivateKey.from_private_bytes(derived_key(secret, info))
        self._public = self._private.public_key().public_bytes_raw()

    def offer(self) -> bytes:
        """This party's public key and the proof that it is its own."""
        return self._public + self._identity.sign(self._statement(self._me, self._public))

    def verified(self, offers: Mapping[PartyName, bytes]) -> dict[PartyName, bytes]:
        """The others' public keys; refuses one that its party has not signed."""
        others = [party for party in self._subject.parties if party != self._me]
        if set(offers) != set(others):
            raise Malformed(f"keys of {sorted(offers)} came in, expected {sorted(others)}")
        for party, offer in offers.items():
            if not KEY_SIZE < len(offer) <= KEY_SIZE + _MOST_PROOF:
                raise Malformed(f"a key of {party!r} in {len(offer)} bytes")
            self._identity.verify(party, self._statement(party, offer[:KEY_SIZE]), offer[KEY_SIZE:])
        return {party: offers[party][:KEY_SIZE] for party in others}

    def pair_keys(self, publics: Mapping[PartyName, bytes]) -> dict[PartyName, bytes]:
        """A key for each other party, from public keys that were verified."""
        return {party: self._pair(party, public) for party, public in publics.items()}

    def _pair(self, party: PartyName, public: bytes) -> bytes:
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # a point of small order: the key would be known to all
            raise BadSignature(f"{party!r} offers a key that everybody could guess") from None
        keys = {self._me: self._public, party: public}
        first, second = (name for name in self._subject.parties if name in keys)
        ends = framed("thinwire pair key 1", first, second, keys[first].hex(), keys[second].hex())
        return derived_key(shared, ends + self._subject.to_bytes())

    def _statement(self, party: PartyName, public: bytes) -> bytes:
        return framed("thinwire secure sum key 1", party, public.hex()) + self._subject.to_bytes()


@dataclass(frozen=True, slots=True)
class InProcessIdentity:
    """For parties in one process, which hides nothing from whoever runs it."""

    key: Ed25519PrivateKey
    known: Mapping[PartyName, Ed25519PublicKey]

    def sign(self, statement: bytes) -> bytes:
        return self.key.sign(statement)

    def verify(self, party: PartyName, statement: bytes, proof: bytes) -> None:
        try:
            self.known[party].verify(proof, statement)
        except (InvalidSignature, KeyError):
            raise BadSignature(f"the key of {party!r} is not signed by {party!r}") from None


def in_process_identities(parties: tuple[PartyName, ...]) -> dict[PartyName, InProcessIdentity]:
    keys = {party: Ed25519PrivateKey.generate() for party in parties}
    known = {party: key.public_key() for party, key in keys.items()}
    return {party: InProcessIdentity(key, known) for party, key in keys.items()}
