"""Secrets of a run: the context of a sum's masks, a party's noise, and a key for each pair of parties.

Pairs agree through the label party, which learns none of their keys. Every party makes an X25519 key for the run and
signs its public half, bound to the run, the recipe and all parties. The label party passes the signed keys on; each
party checks the others' signatures by itself, under their certificates, so that the label party cannot put keys of
its own between two parties.

    pair key = HKDF(X25519(mine, theirs), run, recipe, both names, both public keys)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from thinwire.base.errors import BadParameter, Malformed, ThinwireError
from thinwire.base.types import PartyName
from thinwire.engine.compress.parameters import check_whole
from thinwire.engine.compress.randomness import Keystream


def ring_modulus(parties: int, top: int) -> int:
    """R = 2^ceil(log2(parties * top + 1)): every sum fits, even if all parties send their largest integer.

    Args:
        parties: number of parties that add.
        top: largest integer of one party.

    Examples:
        >>> tw.privacy.ring_modulus(parties=3, top=4)
        16
    """
    return 1 << (parties * top).bit_length()


def frame_values(*values: int | str) -> bytes:
    """Each value behind its length in 4 bytes: injective for a fixed sequence of types."""
    return b"".join(len(data).to_bytes(4, "big") + data for data in map(_data, values))


def _data(value: int | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if value < 0:
        raise BadParameter(f"a negative number, {value}, where a count or a digest belongs")
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


@dataclass(frozen=True, slots=True)
class Context:
    """Identifies one secure sum: run, recipe, round, rows, parties, and the ring in which integers are added.

    Args:
        run: number of the run.
        recipe: its digest.
        round: from 0.
        attempt: counts restarts.
        rows_digest: of the rows in their order.
        parties: in the job's order, which decides who adds a mask and who subtracts it.
        top: largest integer of one party; for Poisson binomial counts, the trials.
        modulus: as `ring_modulus` returns it.

    Raises:
        BadParameter: a number is out of range, fewer than two parties, or another modulus.

    Examples:
        >>> tw.privacy.Context(1, "d1", 0, 0, 99, ("bank", "shop"), top=4, modulus=16).modulus
        16
    """

    run: int
    recipe: str  # its digest
    round: int
    attempt: int
    rows_digest: int  # of the rows in their order
    parties: tuple[PartyName, ...]  # in the job's order, which says who adds a mask and who subtracts it
    top: int  # the largest integer of one party; for Poisson binomial counts, the trials
    modulus: int

    def __post_init__(self) -> None:
        for name in ("run", "round", "attempt"):
            check_whole(self, name, 0, 2**64 - 1)
        check_whole(self, "rows_digest", 0, 2**256 - 1)
        check_whole(self, "top", 1, 65535)
        check_whole(self, "modulus", 1, 2**32)
        object.__setattr__(self, "parties", tuple(self.parties))
        if not 2 <= len(set(self.parties)) == len(self.parties) <= 65535:
            raise BadParameter(f"Context: parties must be at least two different names, got {self.parties}")
        if self.modulus != (wanted := ring_modulus(len(self.parties), self.top)):
            raise BadParameter(
                f"Context: modulus must be {wanted} for {len(self.parties)} parties of integers up to {self.top}, "
                f"got {self.modulus}"
            )

    def to_bytes(self) -> bytes:
        """Canonical and injective: equal bytes mean equal contexts."""
        numbers = (self.run, self.round, self.attempt, self.rows_digest, self.top, self.modulus)
        return frame_values("thinwire secure sum 1", self.recipe, *numbers, len(self.parties), *self.parties)


KEY_SIZE = 32  # bytes


def require_key(key: bytes, name: str) -> None:
    if not isinstance(key, bytes) or len(key) != KEY_SIZE:
        got = f"{len(key)}" if isinstance(key, bytes) else type(key).__name__
        raise BadParameter(f"{name} must be {KEY_SIZE} secret bytes, got {got}")


def derive_key(key: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 without salt: as secret as `key`, and independent of that of any other `info`."""
    return HKDF(SHA256(), KEY_SIZE, salt=None, info=info).derive(key)


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """A party's own secret behind its privacy noise. Whoever knows it can remove the noise.

    It never depends on the training seed. Keep it in the party's private state, not in a run's events.

    Args:
        secret: 32 bytes.

    Raises:
        BadParameter: not 32 bytes.

    Examples:
        >>> import secrets
        >>> tw.privacy.NoiseKey(secrets.token_bytes(32)).for_round(1, 0, 0, "bank/uplink").uniform(2).shape
        (2,)
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        require_key(self.secret, "NoiseKey: secret")

    def for_round(self, run: int, round: int, attempt: int, stream: str) -> Keystream:
        """The bits to draw one message's noise from; the same arguments give the same bits, for a retry."""
        return Keystream(derive_key(self.secret, frame_values("thinwire noise 1", run, round, attempt, stream)))


_MOST_PROOF = 64 << 10  # bytes: a signature and a few certificates


class BadSignature(ThinwireError):
    """A party's key for the secure sum is not signed by that party."""


class PartyIdentity(Protocol):
    """Who this party is to the others, and whose signatures it believes."""

    def sign(self, statement: bytes) -> bytes:
        """A proof that this party says so."""

    def verify(self, party: PartyName, statement: bytes, proof: bytes) -> None:
        """Raises a ThinwireError unless `party` itself said so."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What keys are for: one run of one recipe among these parties.

    Args:
        run: number of the run.
        recipe: its digest.
        parties: those that add, in the job's order.

    Examples:
        >>> tw.privacy.Subject(1, "d1", ("bank", "shop")).parties
        ('bank', 'shop')
    """

    run: int
    recipe: str  # its digest
    parties: tuple[PartyName, ...]  # that add, in the job's order

    def to_bytes(self) -> bytes:
        return frame_values(self.run, self.recipe, len(self.parties), *self.parties)


class KeyAgreement:
    """One party's half of a key agreement.

    The key is derived from the party's secret, so a restarted process has the same one.

    Args:
        me: this party.
        subject: what the keys are for.
        identity: signs this party's offer and verifies the others'.
        secret: 32 bytes that only this party knows.

    Examples:
        >>> parties = ("bank", "shop")
        >>> subject = tw.privacy.Subject(1, "d1", parties)
        >>> who = tw.privacy.in_process_identities(parties)
        >>> ends = {name: tw.privacy.KeyAgreement(name, subject, who[name], bytes(32)) for name in parties}
        >>> bank = ends["bank"].pair_keys(ends["bank"].verify_offers({"shop": ends["shop"].offer()}))
        >>> shop = ends["shop"].pair_keys(ends["shop"].verify_offers({"bank": ends["bank"].offer()}))
        >>> bank["shop"] == shop["bank"]
        True
    """

    def __init__(self, me: PartyName, subject: Subject, identity: PartyIdentity, secret: bytes) -> None:
        self._me = me
        self._subject = subject
        self._identity = identity
        info = frame_values("thinwire x25519 1", me) + subject.to_bytes()
        self._private = X25519PrivateKey.from_private_bytes(derive_key(secret, info))
        self._public = self._private.public_key().public_bytes_raw()

    def offer(self) -> bytes:
        """This party's public key and the proof that it is its own."""
        return self._public + self._identity.sign(self._statement(self._me, self._public))

    def verify_offers(self, offers: Mapping[PartyName, bytes]) -> dict[PartyName, bytes]:
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
            raise BadSignature(f"{party!r} offers a key that anyone could guess") from None
        keys = {self._me: self._public, party: public}
        first, second = (name for name in self._subject.parties if name in keys)
        ends = frame_values("thinwire pair key 1", first, second, keys[first].hex(), keys[second].hex())
        return derive_key(shared, ends + self._subject.to_bytes())

    def _statement(self, party: PartyName, public: bytes) -> bytes:
        return frame_values("thinwire secure sum key 1", party, public.hex()) + self._subject.to_bytes()


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
    """Fresh signing keys for parties in one process; each knows the others' public keys.

    Args:
        parties: their names.

    Examples:
        >>> sorted(tw.privacy.in_process_identities(("bank", "shop")))
        ['bank', 'shop']
    """
    keys = {party: Ed25519PrivateKey.generate() for party in parties}
    known = {party: key.public_key() for party, key in keys.items()}
    return {party: InProcessIdentity(key, known) for party, key in keys.items()}
