"""What a feature party releases under a guarantee, charged and on record before it leaves; and secure sums of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

import torch
from torch import Tensor

from thinwire.base.errors import BadState, IncompatibleRecipe
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Compressor, Keystream, Symbols
from thinwire.engine.compress.adding import Adding
from thinwire.engine.compress.randomness import digest_tensors
from thinwire.engine.compress.symbols import Masked
from thinwire.engine.privacy import (
    Context,
    KeyAgreement,
    NoiseKey,
    PartyIdentity,
    SecureSum,
    SecureSumSender,
    Subject,
    open_sum,
    ring_modulus,
)
from thinwire.engine.privacy.accounting import PrivacyLedger
from thinwire.engine.protocols.context import PartyContext, Saved, add_prefix, remove_prefix
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import Rows
from thinwire.engine.wire.buffers import pack_bundle, unpack_bundle

# What one round may release: no two of them share noise or masks.
TRAINING, EVALUATION, TEST, WARM_START = "", "/evaluation", "/test", "/warm start"
PREDICTION = "/prediction"  # after the training: rounds are the numbers of the questions
AFTER_TRAINING: Round = 1 << 62  # where a schedule stands then: at its end, whatever the number of the question


class Releases(Saved, Protocol):
    """What a release of embeddings is charged to."""

    def release(self, round: Round, rows: Tensor, use: str) -> None:
        """Before the embeddings of these rows leave; raises BudgetExceeded where they must not."""


class Charges(Protocol):
    """Where charges are written down for good."""

    def record(self, charge: str, spent: Callable[[], dict[str, Any]], draw: str = "") -> None:
        """On disk once this returns; a draw that is already on disk, in a replay, is not written again."""

    def count_draws(self, charge: str, draw: str) -> int:
        """How many draws of noise this charge has, with this one: one, unless a replay came out otherwise."""
        return 1


class NoChargeLog(Charges):
    """For parties in one process: what is sent there is seen by nobody else."""

    def record(self, charge: str, spent: Callable[[], dict[str, Any]], draw: str = "") -> None:
        """Nothing outlives the process but its checkpoints."""


class Spending:
    """One party's ledger: training rows first, validation rows behind them, test rows last."""

    def __init__(self, ledger: PrivacyLedger, rows: int, charges: Charges, validation_rows: int = 0) -> None:
        self.ledger = ledger
        self._charges = charges
        self._first_row = {EVALUATION: rows, TEST: rows + validation_rows}

    def release(self, round: Round, rows: Tensor, use: str) -> None:
        self.ledger.charge_release(rows.numpy() + self._first_row.get(use, 0))
        self._charges.record(f"release {round}{use}", self._figures)

    def step(self, round: Round, step: int, rows: Tensor, draw: str) -> None:
        """Before a noisy gradient step from these rows; `draw` stands for its noise, and tells nothing of it."""
        charge = f"step {round} {step}"
        for _ in range(self._charges.count_draws(charge, draw)):
            self.ledger.charge_step(rows.numpy())
        self._charges.record(charge, self._figures, draw)

    def _figures(self) -> dict[str, Any]:
        """What the worst-off row has lost by now."""
        spent = self.ledger.summary()
        epsilons = {
            one["observer"]: [one["releases_epsilon"], one["end_to_end_epsilon"]] for one in spent["observers"]
        }
        return {**spent["most_uses_of_a_row"], "delta": spent["delta"], "epsilons": epsilons}

    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(counts) for name, counts in self.ledger.state().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            raise BadState(
                "the checkpoint does not record the privacy cost so far: it was written by an older version that "
                "did not count private steps without a secure sum; start a new run in another folder"
            )
        self.ledger.load({name: counts.numpy() for name, counts in tensors.items()})


@dataclass(frozen=True)
class ReleaseMeans:
    """What a feature party's releases need of its own: who it is, a secret, and what they are charged to."""

    identity: PartyIdentity
    secret: bytes = field(repr=False)
    spending: Releases
    nonce: str = ""  # of the run: a signed key serves no other


class Sealing:
    """A feature party's own noise, and the charge for every release; what it sends is seen as it is."""

    def __init__(self, context: PartyContext, means: ReleaseMeans) -> None:
        self._context = context
        self._spending = means.spending
        self._noise_key = NoiseKey(means.secret)

    def agree(self) -> None:
        """There are no keys to agree on."""

    def offer(self) -> bytes | None:
        """This party's signed key; None where nothing is masked."""
        return None

    def take(self, offers: Mapping[PartyName, bytes]) -> None:
        """The others' signed keys; refuses one that its party has not signed."""

    def noise(self, round: Round, message: Tensor, use: str = TRAINING) -> Keystream:
        """The same for the same message, in a replay; another one in its place, after a restore, has other noise."""
        stream = f"{self._context.me}/uplink{use} {digest_tensors(message)}"
        return self._noise_key.for_round(self._context.run, round, 0, stream)

    def seal(self, symbols: Symbols, round: Round, rows: Rows, use: str = TRAINING) -> Symbols:
        """What to send of them; the release is charged by then."""
        self._spending.release(round, rows, use)
        return symbols

    def tensors(self) -> dict[str, Tensor]:
        return add_prefix("spending", self._spending.tensors())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._spending.load(remove_prefix("spending", tensors))


class SumSealing(Sealing):
    """The same under masks, for a secure sum. Nothing can be sealed before the parties agreed on keys."""

    def __init__(self, context: PartyContext, means: ReleaseMeans, aggregation: SecureSum) -> None:
        super().__init__(context, means)
        self._aggregation = aggregation
        subject = Subject(context.run, f"{context.recipe.digest()} {means.nonce}", context.feature_parties)
        self._agreement = KeyAgreement(context.me, subject, means.identity, means.secret)
        self._publics: dict[PartyName, bytes] = {}
        self._sender: SecureSumSender | None = None

    def agree(self) -> None:
        """Offers this party's key, and takes the others' where they are signed by their owners."""
        context = self._context
        context.send(context.label_party, Kind.KEYS, 0, self.offer())
        offers = unpack_bundle(context.receive(context.label_party, Kind.KEYS, 0))
        self.take(
            {context.feature_parties[i]: bytes(o) for i, o in offers.items() if i < len(context.feature_parties)}
        )

    def offer(self) -> bytes:
        return self._agreement.offer()

    def take(self, offers: Mapping[PartyName, bytes]) -> None:
        self._open(self._agreement.verify_offers(offers))

    def _open(self, publics: dict[PartyName, bytes]) -> None:
        keys = self._agreement.pair_keys(publics)
        self._publics = publics
        self._sender = self._aggregation.open_party(self._context.me, self._context.feature_parties, keys)

    def seal(self, symbols: Symbols, round: Round, rows: Rows, use: str = TRAINING) -> Masked:
        if self._sender is None:
            raise BadState(f"{self._context.me!r} has not agreed on keys; nothing may be sent without masks")
        charged = super().seal(symbols, round, rows, use)
        adding = _adding(self._context, round, use)
        return self._sender.seal(charged, adding, _sum_context(self._context, adding, round, rows, use))

    def tensors(self) -> dict[str, Tensor]:
        """The others' public keys, and the record of what was sealed; no secrets."""
        if self._sender is None:
            return {}
        publics = {p: torch.frombuffer(bytearray(public), dtype=torch.uint8) for p, public in self._publics.items()}
        record = add_prefix("record", self._sender.state())
        return add_prefix("public", publics) | record | super().tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._open({party: t.numpy().tobytes() for party, t in remove_prefix("public", tensors).items()})
        if self._sender is not None:
            self._sender.load(remove_prefix("record", tensors))
        super().load(tensors)


def open_sealing(context: PartyContext, means: ReleaseMeans) -> Sealing | None:
    """As the recipe wants it; None where releases are not accounted for."""
    aggregation = context.recipe.aggregation
    if isinstance(aggregation, SecureSum):
        return SumSealing(context, means, aggregation)
    return Sealing(context, means) if context.recipe.is_charged else None


def relay_keys(context: PartyContext) -> None:
    """The label party passes the signed keys on; it cannot use them, nor change them unnoticed."""
    offers = {i: context.receive(party, Kind.KEYS, 0) for i, party in enumerate(context.feature_parties)}
    for place, party in enumerate(context.feature_parties):
        context.send(party, Kind.KEYS, 0, pack_bundle({i: offer for i, offer in offers.items() if i != place}))


def unseal(
    context: PartyContext, sealed: Sequence[Symbols], round: Round, rows: Rows, use: str = TRAINING
) -> Symbols:
    """The sum of all parties' integers; nothing else can be read from them."""
    adding = _adding(context, round, use)
    return open_sum(sealed, adding, _sum_context(context, adding, round, rows, use))


def sum_compressor(recipe: Recipe, use: str) -> Compressor:
    """Of one use: what an evaluation or a prediction loses, no later message makes good."""
    compressor = recipe.uplink.compressor
    return compressor.at_once() if use in (EVALUATION, TEST, PREDICTION) else compressor


def _adding(context: PartyContext, round: Round, use: str) -> Adding:
    compressor = sum_compressor(context.recipe, use)
    adding = compressor.adding(AFTER_TRAINING if use == PREDICTION else round)
    if adding is None:
        raise IncompatibleRecipe(f"SecureSum adds integers; {compressor}'s symbols are not additive")
    return adding


def _sum_context(context: PartyContext, adding: Adding, round: Round, rows: Rows, use: str) -> Context:
    return Context(
        run=context.run,
        recipe=context.recipe.digest() + use,
        round=round,
        attempt=0,
        rows_digest=int.from_bytes(sha256(rows.numpy().tobytes()).digest(), "big"),
        parties=context.feature_parties,
        top=adding.top,
        modulus=ring_modulus(len(context.feature_parties), adding.top),
    )
