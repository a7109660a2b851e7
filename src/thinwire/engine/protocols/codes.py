"""One exchange: codes go up, block by block of the rows, and nothing comes back. Both ends, in message order.

feature party                            label party
before the first block:
        EVALUATION: validation codes ->  kept: bottom models do not change
                                  <----  EVALUATION: go on
send:   EMBEDDING: codes of a block -->  exchange: kept; the top model is fitted to all rows so far
                                  <----  EVALUATION: go on, or stop: more rows are not worth their bytes

The label party learns by itself, so labels leave no trace in any message but the verdicts. Where rows have owners in
common, an owner's code is sent with the first of its rows; a block without new owners is an empty body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import Malformed
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Symbols
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.learners import BoostedTrees, TreeFitter
from thinwire.engine.models.tree_nodes import TreeNodes
from thinwire.engine.protocols.bottom import Bottom
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.ends import FeatureEnd, LabelEnd, LabelSide, Uplink
from thinwire.engine.protocols.evaluation import HeldOut, HeldOutRows, compute_outputs
from thinwire.engine.protocols.sealing import TRAINING, Sealing
from thinwire.engine.schedule import BatchOutcome, OneWay
from thinwire.engine.streams import RowOwners, Rows
from thinwire.engine.streams.surrogate import Surrogate


class UnsentOwners:
    """Owners whose codes have not been sent; both ends know which. Rows without a group are sent once anyway."""

    def __init__(self, owners: RowOwners) -> None:
        self._is_sent = None if owners.index is None else torch.zeros(owners.count, dtype=torch.bool)

    def take(self, owners: Rows) -> Rows:
        """Those of these owners; they are sent from here on."""
        if self._is_sent is None:
            return owners
        new = owners[~self._is_sent[owners]]
        self._is_sent[new] = True
        return new

    def tensors(self, name: str) -> dict[str, Tensor]:
        return {} if self._is_sent is None else {name: self._is_sent}

    def load(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        if self._is_sent is not None:
            self._is_sent.copy_(tensors[name])


class CodesFeatureEnd(FeatureEnd):
    """A feature party's end; its bottom model never learns."""

    ANSWER: ClassVar[Kind] = Kind.EVALUATION

    def __init__(self, context: PartyContext, bottom: Bottom, width: int, sealing: Sealing | None = None) -> None:
        super().__init__(context, bottom, Uplink(context, bottom, width, sealing), sealing)
        self._unsent = UnsentOwners(context.owners(context.me))

    def warm_start(self, rows: Rows) -> None:
        """There is nothing to fill: every row is sent once."""

    def send(self, round: Round, rows: Rows) -> None:
        new, body = self._unsent.take(rows), b""
        if len(new):
            with torch.no_grad():
                h = self._bottom.embed(round, new)
            body = self._uplink.body(new, h, round)
        self._context.send(self._context.label_party, Kind.EMBEDDING, round, body)

    def receive(self, round: Round) -> None:
        """Nothing comes."""

    def local(self, round: Round) -> None:
        """Nothing to learn from."""

    def forget(self, kept: set[Round]) -> None:
        """Nothing is kept."""

    def send_held_out(self, kind: Kind, rows: HeldOut, round: Round) -> None:
        """In the first evaluation alone: the codes stay what they are."""
        if kind is not Kind.EVALUATION or round == 0:
            super().send_held_out(kind, rows, round)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | self._unsent.tensors("sent")

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        self._unsent.load("sent", tensors)


class CodesLabelEnd(LabelEnd):
    """The label party's end; it keeps every code, and learns without anybody."""

    def __init__(
        self,
        context: PartyContext,
        side: LabelSide,
        widths: Mapping[PartyName, int],
        validation_labels: Tensor | None,
    ) -> None:
        super().__init__(context, side)
        wide = self._open_uplinks(widths)
        self._owners = {party: context.owners(party) for party in wide}
        self._unsent = {party: UnsentOwners(owners) for party, owners in self._owners.items()}
        self._tables = {p: Surrogate(self._owners[p].count, width, context.storage) for p, width in wide.items()}
        self._is_here = torch.zeros(context.rows, dtype=torch.bool)
        self._held_out: list[Tensor] = []
        self._validation_labels = validation_labels
        self._widths = widths

    def warm_start(self, rows: Rows) -> None:
        """There is nothing to fill: every row is sent once."""

    def exchange(self, round: Round, rows: Rows) -> BatchOutcome:
        if self._summed:
            symbols, size = self._receive_symbols(Kind.EMBEDDING, round, rows, TRAINING)
            new = dict.fromkeys(symbols, rows)
        else:
            symbols, new, size = self._receive_new(round, rows)
        for party, one in symbols.items():
            self._tables[party].add(new[party], self._uplinks[party].incoming(new[party], one, round))
        self._is_here[rows] = True
        loss = self._fit(round)
        self._context.count_update()
        return BatchOutcome(loss, 8 * size / self._count_values(rows, self._widths))

    def _receive_new(self, round: Round, rows: Rows) -> tuple[dict[PartyName, Symbols], dict[PartyName, Rows], int]:
        """The codes of owners that were not sent before, by party; who they are; and the bytes that came."""
        bodies = self._receive_bodies(Kind.EMBEDDING, round)
        new = {party: self._unsent[party].take(self._owned(party, rows).owners) for party in bodies}
        symbols = {}
        for party, body in bodies.items():
            if bool(body) != bool(len(new[party])):
                says = f"sent {len(body)} bytes for {len(new[party])} owners whose codes are not here"
                raise Malformed(f"round {round}: {party!r} {says}")
            if body:
                shape = self._uplinks[party].message_shape(new[party])
                symbols[party] = self._context.decode(body, party, shape)
        return symbols, new, sum(map(len, bodies.values()))

    def _fit(self, round: Round) -> float:
        held_out = None
        if self._validation_labels is not None and self._held_out:
            held_out = HeldOutCodes(self._list_held_out(), self._validation_labels)
        tables = [table.table for table in self._tables.values()]
        known = KnownCodes(self._is_here.nonzero()[:, 0], tables, list(self._owners.values()), held_out)
        schedule = cast(OneWay, self._context.recipe.schedule)
        if isinstance(self._side.top.module, BoostedTrees):
            return fit_trees(self._side, known, schedule)
        return fit_network(self._side, known, schedule, round, derive_seed(self._context.seed, "passes", round))

    def _list_held_out(self) -> list[Tensor]:
        own = None if self._side.bottom is None else self._side.bottom.embed_held_out(HeldOut.VALIDATION)
        return self._held_out if own is None else [*self._held_out, own]

    def receive_held_out(
        self, kind: Kind, rows: HeldOutRows, widths: Mapping[PartyName, int], round: Round
    ) -> list[Tensor] | None:
        """In the first evaluation alone."""
        if kind is not Kind.EVALUATION:
            return super().receive_held_out(kind, rows, widths, round)
        if round == 0:
            self._held_out = super().receive_held_out(kind, rows, widths, round) or []
        return self._held_out or None

    def local(self, round: Round) -> None:
        """All steps are taken in the exchange."""

    def forget(self, kept: set[Round]) -> None:
        """Codes are kept to the end."""

    def tensors(self) -> dict[str, Tensor]:
        found = super().tensors() | {"is_here": self._is_here}
        found |= {f"codes.{place}": table.table for place, table in enumerate(self._tables.values())}
        for place, unsent in enumerate(self._unsent.values()):
            found |= unsent.tensors(f"sent.{place}")
        return found | {f"held_out.{place}": table for place, table in enumerate(self._held_out)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        self._is_here.copy_(tensors["is_here"])
        for place, (table, unsent) in enumerate(zip(self._tables.values(), self._unsent.values(), strict=True)):
            table.load(tensors[f"codes.{place}"])
            unsent.load(f"sent.{place}", tensors)
        held_out = [name for name in tensors if name.startswith("held_out.")]
        self._held_out = [tensors[f"held_out.{place}"] for place in range(len(held_out))]


# The top model, fitted to codes that are here to stay --------------------------------------------------------------


@dataclass(frozen=True)
class HeldOutCodes:
    """Of validation rows: they end the fitting, and choose its result."""

    embeddings: Sequence[Tensor]
    labels: Tensor

    def measure_loss(self, side: LabelSide) -> float:
        outputs = compute_outputs(side.top.module, side.fusion, self.embeddings)
        return float(side.loss(outputs, self.labels.to(outputs.device)).mean())


@dataclass(frozen=True)
class KnownCodes:
    """What the label party has to learn from."""

    rows: Rows  # whose codes are here
    tables: Sequence[Tensor]  # of all rows, or of all owners of rows, by party
    owners: Sequence[RowOwners]
    held_out: HeldOutCodes | None = None

    def select(self, rows: Rows) -> list[Tensor]:
        pairs = zip(self.tables, self.owners, strict=True)
        return [table.index_select(0, owners.of_rows(rows)) for table, owners in pairs]

    def split(self, size: int, rng: torch.Generator) -> Iterator[Rows]:
        """A pass over all rows. A last single row waits for the next pass: batch normalisation needs two."""
        for batch in self.rows[torch.randperm(len(self.rows), generator=rng)].split(size):
            if len(batch) > 1 or len(self.rows) == 1:
                yield batch


class _Patience:
    """Which pass has the lowest validation loss, and whether more passes are worth it."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._lowest = float("inf")
        self._waited = 0

    def offer(self, loss: float) -> bool:
        """Is it the best so far?"""
        better = loss < self._lowest
        self._lowest, self._waited = (loss, 0) if better else (self._lowest, self._waited + 1)
        return better

    @property
    def is_over(self) -> bool:
        return self._waited >= self._patience


def fit_network(side: LabelSide, known: KnownCodes, schedule: OneWay, round: Round, seed: int) -> float:
    """Further passes of the top model, and of our own bottom model, over all rows; the mean loss of the last one."""
    rng, patience = torch.Generator().manual_seed(seed), _Patience(schedule.patience)
    learners = [one for one in (side.top, side.bottom) if one is not None]
    best: list[dict[str, Tensor]] = []
    side.running_loss()
    mean = 0.0
    for _ in range(schedule.passes):
        for rows in known.split(schedule.batch_rows, rng):
            _take_step(side, known.select(rows), rows, round)
        mean = side.running_loss() or mean
        if known.held_out is None:
            continue
        if patience.offer(known.held_out.measure_loss(side)):
            best = [deepcopy(learner.module.state_dict()) for learner in learners]
        if patience.is_over:
            break
    for learner, weights in zip(learners, best, strict=False):  # none without validation rows
        learner.load_weights(weights)
    return mean


def _take_step(side: LabelSide, embeddings: list[Tensor], rows: Rows, round: Round) -> None:
    own = side.own(round, rows)
    ours = [h.detach().requires_grad_() for h in own]
    loss = side.losses([*embeddings, *ours], rows).mean()
    side.step(rows, own, side.derivatives(loss, ours))


def fit_trees(side: LabelSide, known: KnownCodes, schedule: OneWay) -> float:
    """A tree a pass, from none; what each of them follows is here, so nothing is rounded."""
    trees = cast(BoostedTrees, side.top.module)
    trees.replace(TreeNodes.empty())
    own = [] if side.bottom is None else [side.bottom.embed_all().index_select(0, known.rows)]
    table = fuse(side.fusion, [*known.select(known.rows), *own])
    fitter, patience, best = TreeFitter(trees, table), _Patience(schedule.patience), trees.nodes
    outputs, loss = np.zeros((len(table), trees.width)), 0.0
    for _ in range(schedule.passes):
        z = torch.from_numpy(outputs.astype(np.float32)).requires_grad_()
        losses = side.weigh(side.loss(z, side.labels.index_select(0, known.rows)), known.rows)
        loss = float(losses.detach().mean())
        gradient = torch.autograd.grad(losses.sum(), z)[0].numpy()
        nodes, added = fitter.fit(gradient, trees.derive_curvature(gradient))
        trees.add(nodes)
        outputs = outputs + added
        if known.held_out is None or patience.offer(known.held_out.measure_loss(side)):
            best = trees.nodes
        if patience.is_over:
            break
    trees.replace(best)
    return loss
