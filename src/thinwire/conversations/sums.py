"""Secure sum in a round: what a feature party seals, what the label party opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import torch
from torch import Tensor

from thinwire.compress import Compressor, Keystream, Symbols
from thinwire.compress.adding import Adding
from thinwire.compress.symbols import Masked
from thinwire.conversations.learner import prefixed, unprefixed
from thinwire.conversations.seat import Seat
from thinwire.conversations.spending import EVALUATION, PREDICTION, TRAINING, Releases
from thinwire.errors import BadState, IncompatibleRecipe
from thinwire.privacy import (
    Context,
    Identity,
    KeyAgreement,
    NoiseKey,
    SecureSum,
    SecureSumSender,
    Subject,
    open_sum,
    ring_modulus,
)
from thinwire.recipe import Recipe
from thinwire.streams import Rows
from thinwire.types import Kind, PartyName, Round
from thinwire.wire.bundle import pack_bundle, unpack_bundle

__all__ = ["Sealing", "opened", "relay_keys", "sum_compressor"]


class Sealing:
    """A feature party's masks, and its own noise. Nothing can be sealed before the parties agreed on keys."""

    def __init__(
        self,
        seat: Seat,
        aggregation: SecureSum,
        identity: Identity,
        secret: bytes,
        spending: Releases,
        nonce: str = "",
    ) -> None:
        self._seat = seat
        self._spending = spending
        self._aggregation = aggregation
        self._noise_key = NoiseKey(secret)
        subject = Subject(seat.run, f"{seat.recipe.digest()} {nonce}", seat.feature_parties)
        self._agreement = KeyAgreement(seat.me, subject, identity, secret)
        self._publics: dict[PartyName, bytes] = {}
        self._sender: SecureSumSender | None = None

    def agree(self) -> None:
        """Offers this party's key, and takes the others' where they are signed by their owners."""
        seat = self._seat
        seat.send(seat.label_party, Kind.KEYS, 0, self.offer())
        offers = unpack_bundle(seat.receive(seat.label_party, Kind.KEYS, 0))
        self.take({seat.feature_parties[i]: bytes(o) for i, o in offers.items() if i < len(seat.feature_parties)})

    def offer(self) -> bytes:
        """This party's signed key."""
        return self._agreement.offer()

    def take(self, offers: Mapping[PartyName, bytes]) -> None:
        """The others' signed keys; refuses one that its party has not signed."""
        self._open(self._agreement.verified(offers))

    def _open(self, publics: dict[PartyName, bytes]) -> None:
        keys = self._agreement.pair_keys(publics)
        self._publics = publics
        self._sender = self._aggregation.open_party(self._seat.me, self._seat.feature_parties, keys)

    # One message a round and use: the same noise must never cover two different messages.
    def noise(self, round: Round, use: str = TRAINING) -> Keystream:
        return self._noise_key.for_round(self._seat.run, round, 0, f"{self._seat.me}/uplink{use}")

    def seal(self, symbols: Symbols, round: Round, rows: Rows, use: str = TRAINING) -> Masked:
        if self._sender is None:
            raise BadState(f"{self._seat.me!r} has agreed on no keys; nothing may be sent without masks")
        self._spending.release(round, rows, use)
        adding = _adding(self._seat, round, use)
        return self._sender.seal(symbols, adding, _context(self._seat, adding, round, rows, use))

    def tensors(self) -> dict[str, Tensor]:
        """The others' public keys, and the record of what was sealed; no secrets."""
        if self._sender is None:
            return {}
        publics = {f"public.{party}": _bytes_tensor(public) for party, public in self._publics.items()}
        record = prefixed("record", self._sender.state())
        return publics | record | prefixed("spending", self._spending.tensors())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._open({party: t.numpy().tobytes() for party, t in unprefixed("public", tensors).items()})
        if self._sender is not None:
            self._sender.load(unprefixed("record", tensors))
        self._spending.load(unprefixed("spending", tensors))


def _bytes_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def relay_keys(seat: Seat) -> None:
    """The label party passes the signed keys on; it cannot use them, nor change them unnoticed."""
    offers = {i: seat.receive(party, Kind.KEYS, 0) for i, party in enumerate(seat.feature_parties)}
    for place, party in enumerate(seat.feature_parties):
        seat.send(party, Kind.KEYS, 0, pack_bundle({i: offer for i, offer in offers.items() if i != place}))


def opened(seat: Seat, sealed: Sequence[Symbols], round: Round, rows: Rows, use: str = TRAINING) -> Symbols:
    """The sum of all parties' integers; nothing else can be read from them."""
    adding = _adding(seat, round, use)
    return open_sum(sealed, adding, _context(seat, adding, round, rows, use))


def sum_compressor(recipe: Recipe, use: str) -> Compressor:
    """Of one use: what an evaluation or a prediction loses, no later message makes good."""
    compressor = recipe.uplink.compressor
    return compressor.at_once() if use in (EVALUATION, PREDICTION) else compressor


def _adding(seat: Seat, round: Round, use: str) -> Adding:
    compressor = sum_compressor(seat.recipe, use)
    adding = compressor.adding(round)
    if adding is None:
        raise IncompatibleRecipe(f"SecureSum adds integers; {compressor}'s symbols are not additive")
    return adding


def _context(seat: Seat, adding: Adding, round: Round, rows: Rows, use: str) -> Context:
    return Context(
        run=seat.run,
        recipe=seat.recipe.digest() + use,
        round=round,
        attempt=0,
        rows_digest=int.from_bytes(sha256(rows.numpy().tobytes()).digest(), "big"),
        parties=seat.feature_parties,
        top=adding.top,
        modulus=ring_modulus(len(seat.feature_parties), adding.top),
    )
