"""Secure sum in a round: what a feature party seals, what the label party opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from thinwire.compress import Keystream, PoissonBinomial, Symbols
from thinwire.compress.symbols import Counts
from thinwire.conversations.seat import Seat
from thinwire.errors import IncompatibleRecipe
from thinwire.privacy import Context, NoiseKey, SecureSumSender, open_sum, ring_modulus
from thinwire.streams import Rows
from thinwire.types import Round

__all__ = ["Sealing", "opened"]

TRAINING, EVALUATION = "", "/evaluation"


@dataclass(frozen=True)
class Sealing:
    """A feature party's masks, and its own noise."""

    seat: Seat
    sender: SecureSumSender
    noise_key: NoiseKey

    # One message a round and use: the same noise must never cover two different messages.
    def noise(self, round: Round, use: str = TRAINING) -> Keystream:
        return self.noise_key.for_round(self.seat.run, round, 0, f"{self.seat.me}/uplink{use}")

    def seal(self, symbols: Symbols, round: Round, rows: Rows, use: str = TRAINING) -> Counts:
        return self.sender.seal(symbols, _context(self.seat, round, rows, use))


def opened(seat: Seat, sealed: Sequence[Symbols], round: Round, rows: Rows, use: str = TRAINING) -> Counts:
    """The sum of all parties' counts; nothing else can be read from them."""
    return open_sum(sealed, _context(seat, round, rows, use))


def _context(seat: Seat, round: Round, rows: Rows, use: str) -> Context:
    compressor = seat.recipe.uplink.compressor
    if not isinstance(compressor, PoissonBinomial):
        raise IncompatibleRecipe(f"SecureSum adds integers; {compressor}'s symbols are not additive")
    trials = compressor.trials
    return Context(
        run=seat.run,
        recipe=seat.recipe.digest() + use,
        round=round,
        attempt=0,
        rows_digest=xxhash.xxh3_64_intdigest(rows.numpy().tobytes()),
        parties=seat.feature_parties,
        trials=trials,
        modulus=ring_modulus(len(seat.feature_parties), trials),
    )
