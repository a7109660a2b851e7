"""Both halves of a prediction: a feature party's embeddings leave as at an evaluation, the label party scores them.

feature party                                        label party
embeddings of the rows, one by one;  ----------->    fused in party order; the top model; probabilities
under secure sum as sealed integers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_bytes

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput, WireError
from thinwire.base.types import PartyName
from thinwire.data.prepare import LabelCoding
from thinwire.engine.channel.base import NoChannel
from thinwire.engine.compress import Hint, Symbols
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.losses import Outputs
from thinwire.engine.privacy import PartyIdentity, SecureSum
from thinwire.engine.privacy.keys import KEY_SIZE
from thinwire.engine.protocols.context import PartyContext, cast_like
from thinwire.engine.protocols.evaluation import evaluation_mode
from thinwire.engine.protocols.sealing import (
    AFTER_TRAINING,
    PREDICTION,
    ReleaseMeans,
    Sealing,
    open_sealing,
    sum_compressor,
    unseal,
)
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import RowOwners, Rows, release_touched_pages
from thinwire.engine.wire.entropy import Effort
from thinwire.job.privacy_plan import PrivacyPlan
from thinwire.predict.charges import PredictionCharges, load_training_charges
from thinwire.predict.errors import PartyFailed
from thinwire.predict.model_store import RunFolder
from thinwire.storage import layout
from thinwire.storage.encryption_key import open_folder
from thinwire.training.program_factory import derive_run_number


@dataclass(frozen=True)
class ScoreFormat:
    """`coding` is how labels were made numbers; None where they were numbers."""

    outputs: Outputs
    coding: LabelCoding | None = None

    @classmethod
    def load(cls, outputs: Outputs, run: Path, label_party: PartyName) -> ScoreFormat:
        """As the run's folder keeps them."""
        file = layout.metadata_file(run, label_party, "labels")
        return cls(outputs, LabelCoding.from_json(open_folder(run).read(file)) if file.exists() else None)

    def name_columns(self, width: int) -> tuple[str, ...]:
        classes = () if self.coding is None else self.coding.classes
        if self.outputs is Outputs.CLASSES and len(classes) == width:
            return tuple(f"probability_{name}" for name in classes)
        if self.outputs is Outputs.PROBABILITY and len(classes) == 2:
            return (f"probability_{classes[1]}",)
        return self.outputs.columns(width)

    def format_scores(self, outputs: Tensor) -> Tensor:
        """Probabilities or values, [rows, columns]; row by row."""
        table = self.outputs.to_predictions(outputs)
        if self.outputs is Outputs.VALUE and self.coding is not None:
            return self.coding.in_units(table)
        return table


@dataclass(frozen=True)
class EmbeddingEncoder:
    """How embeddings leave a feature party: as in an evaluation; under a guarantee charged, with noise and masks.

    What a guarantee needs before the first question: numbers that were not used, and a secure sum's keys.
    """

    context: PartyContext
    sealing: Sealing | None = None
    charges: PredictionCharges | None = None

    def encode(self, h: Tensor, rows: Rows, number: int) -> bytes:
        """The recipe's integers with noise and masks of this question alone, or values as `scoring` rounds them."""
        if self.sealing is None:
            return self.context.encode(self.context.recipe.scoring.compress(h.cpu(), torch.Generator()))
        noise = self.sealing.noise(number, h, PREDICTION)
        symbols = sum_compressor(self.context.recipe, PREDICTION).compress(h.cpu(), noise, Hint(AFTER_TRAINING))
        return self.context.encode(self.sealing.seal(symbols, number, rows, PREDICTION))

    def close(self) -> None:
        if self.charges is not None:
            self.charges.close()

    @property
    def next_number(self) -> int:
        return 0 if self.charges is None else self.charges.next_number


@dataclass(frozen=True)
class BottomScorer:
    """A feature party's bottom model, its rows, and how embeddings leave."""

    module: nn.Module
    features: Tensor  # [N, ...]
    encoder: EmbeddingEncoder
    owners: RowOwners | None = None  # with a group: which of its rows each row belongs to

    def encode_rows(self, rows: Rows, number: int) -> bytes:
        """The embeddings of these rows, as bytes for the label party; with a group one for each owner of them."""
        if self.owners is not None:
            require_rows(rows, self.owners.rows)
            rows = self.owners.select(rows).owners
        require_rows(rows, len(self.features))
        return self.encoder.encode(run_in_blocks(self.module, _select(self.features, rows), rows), rows, number)


@dataclass(frozen=True)
class TopScorer:
    """The label party's top model, and its own rows where it holds features."""

    context: PartyContext
    top: nn.Module
    fusion: str
    outputs: ScoreFormat
    widths: Mapping[PartyName, int]  # of every party with features
    bottom: nn.Module | None = None
    features: Tensor | None = None
    owners: Mapping[PartyName, RowOwners] = field(default_factory=dict)  # of the rows, at parties with a group

    @property
    def uses_secure_sum(self) -> bool:
        return isinstance(self.context.recipe.aggregation, SecureSum)

    def _decode(self, body: bytes | memoryview, party: PartyName, rows: int) -> Symbols:
        """What a party sent for so many rows; refuses anything else by its name."""
        try:
            return self.context.decode(body, party, (rows, self.widths[party]))
        except WireError as error:
            raise PartyFailed(party, str(error)) from None

    def decode_embedding(self, body: bytes | memoryview, party: PartyName, rows: int) -> Tensor:
        """The same as numbers, where they are no part of a sum; refuses those that are none."""
        return _finite(party, self._decode(body, party, rows))

    def decode_rows(self, body: bytes | memoryview, party: PartyName, rows: Rows) -> Tensor:
        """One embedding for each of these rows, of what a party sent for them or for their owners."""
        if party not in self.owners:
            return self.decode_embedding(body, party, len(rows))
        owned = self.owners[party].select(rows)
        return owned.expand(self.decode_embedding(body, party, len(owned.owners)))

    def combine(self, bodies: Mapping[PartyName, bytes | memoryview], rows: Rows, number: int) -> list[Tensor]:
        """Embeddings of these rows from what all parties sent, in party order; or their sum alone."""
        names = self.context.feature_parties
        if self.uses_secure_sum:
            sealed = [self._decode(bodies[party], party, len(rows)) for party in names]
            return [unseal(self.context, sealed, number, rows, PREDICTION).to_tensor()]
        return [self.decode_rows(bodies[party], party, rows) for party in names]

    def score(self, embeddings: list[Tensor], rows: Rows, own: Tensor | None = None) -> Tensor:
        """The top model's outputs, [rows, ...]; `own` are the label party's own features where not the table's."""
        if self.bottom is not None:
            embeddings = [*embeddings, run_in_blocks(self.bottom, self._own(rows, own), rows)]
        like = next(self.top.parameters(), embeddings[0])
        return run_in_blocks(self.top, fuse(self.fusion, [cast_like(like, h) for h in embeddings]), rows).cpu()

    def score_table(self, embeddings: list[Tensor], rows: Rows, own: Tensor | None) -> tuple[Tensor, tuple[str, ...]]:
        """Probabilities or values of these rows, and the names of their columns."""
        table = self.outputs.format_scores(self.score(embeddings, rows, own))
        return table, self.outputs.name_columns(table.shape[1])

    def _own(self, rows: Rows, own: Tensor | None) -> Tensor:
        if own is not None:
            return own
        if self.features is None:
            raise BadInput(f"{self.context.me!r}: its own features are missing")
        return _select(self.features, rows)


def _select(table: Tensor, rows: Rows) -> Tensor:
    """These rows; pages of a table in a file do not stay in memory."""
    found = table[rows]
    release_touched_pages(table, len(rows))
    return found


def _finite(party: PartyName, symbols: Symbols) -> Tensor:
    h = symbols.to_tensor()
    # NumPy looks at the few values of one row in a quarter of the time.
    finite = np.isfinite(h.numpy()).all() if h.dtype is torch.float32 else torch.isfinite(h).all()
    if not bool(finite):
        raise PartyFailed(party, f"{party!r} sent embeddings that are not finite")
    return h


def require_rows(rows: Rows, count: int) -> None:
    """Row numbers that a peer asks for are looked at before they are used."""
    if len(rows) == 0 or int(rows.min()) < 0 or int(rows.max()) >= count:
        raise BadInput(f"rows must be from 0 to {count - 1}, at least one of them")


@dataclass(frozen=True)
class LedgerRows:
    """Where a table's rows stand in the ledger: among the run's own, or in one of their own."""

    of: str = "rows"  # the run's training rows, test rows behind them; otherwise the digest of another table
    offset: int = 0
    rows: int = 0  # in that ledger


@dataclass(frozen=True)
class PrivacySource:
    """What a guarantee needs: the run's folder, which remembers what was spent, and who this party is."""

    folder: RunFolder
    plan: PrivacyPlan
    counted: LedgerRows
    identity: PartyIdentity


def open_encoder(context: PartyContext, means: PrivacySource | None) -> EmbeddingEncoder:
    """Plain embeddings, or charged ones where the recipe says so."""
    if not context.recipe.is_charged or means is None:
        return EmbeddingEncoder(context)
    folder, counted = means.folder, means.counted
    ledger = means.plan.ledger(context.me, counted.rows)
    if counted.of == LedgerRows.of:
        load_training_charges(folder.tensors(context.me, context.run), ledger, context.me)
    log = folder.charges(context.me)
    charges = PredictionCharges(log, folder.private, ledger, counted.of, counted.offset)
    # Fresh, and kept nowhere: a folder that was restored or copied would use a number's noise for other rows again.
    secret = token_bytes(KEY_SIZE)
    releases = ReleaseMeans(means.identity, secret, charges, f"{folder.run} prediction")
    return EmbeddingEncoder(context, open_sealing(context, releases), charges)


def make_silent_context(
    me: PartyName, label_party: PartyName, features: tuple[PartyName, ...], recipe: Recipe, seed: int, effort: Effort
) -> PartyContext:
    """A context of which only the names, the recipe and the codec are used: questions have a way of their own."""
    run = derive_run_number(recipe, seed, features)
    return PartyContext(me, label_party, features, NoChannel(), recipe, rows=1, seed=seed, run=run, effort=effort)


# Models row by row: what a row comes to does not depend on the rows it is computed with ---------------------------
#
# A matrix product rounds by how many rows there are, and by where a row lies in memory. So rows are computed in
# blocks of one size, short ones filled up, and row r always lies at place r mod BLOCK: whoever asks, alone or with
# others, gets the same floats to the bit.


BLOCK = 16
_ONE_ROW = torch.zeros(BLOCK, dtype=torch.long)


def run_in_blocks(module: nn.Module, values: Tensor, rows: Rows) -> Tensor:
    """module(values) where values[i] belongs to row rows[i]; row by row the same, whatever else is asked for."""
    slots, source = _slots(rows)
    like = next(module.parameters(), values)
    values = values.to(like.device)
    if values.is_floating_point() and like.is_floating_point():
        values = values.to(like.dtype)
    filled = values[source.to(values.device)]
    with evaluation_mode(module):
        parts = [module(block) for block in filled.split(BLOCK)]
    for part in parts:
        if len(part) != BLOCK:
            raise BadInput(f"a model gives {len(part)} rows for {BLOCK}; it must give one for each")
    together = parts[0] if len(parts) == 1 else torch.cat(parts)
    return together[slots.to(together.device)]


def _slots(rows: Rows) -> tuple[Tensor, Tensor]:
    """Where each row goes in the blocks, and which row stands at each of their places."""
    places = rows.numpy() % BLOCK
    if len(places) == 1:  # what a server is asked for most often
        return torch.from_numpy(places), _ONE_ROW
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.searchsorted(ordered, ordered)  # of the rows with the same place
    block = np.empty(len(places), np.int64)
    block[order] = np.arange(len(places)) - first
    slots = block * BLOCK + places
    # Filled up with copies of a row that is there: nothing a model might choke on.
    source = np.zeros((int(block.max()) + 1) * BLOCK, np.int64)
    source[slots] = np.arange(len(places))
    return torch.from_numpy(slots), torch.from_numpy(source)
