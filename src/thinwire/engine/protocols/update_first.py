"""EF-VFL's algorithms as they are written: an update with the surrogates as they are, then what these miss.

feature party k                              label party
private labels, Algorithm 2
update:   h_k = f_k(x_k[rows])               update:   dL/dh_k at G_1 .. G_K
          h_k.backward(dL/dh_k)  <---------            DERIVATIVE; step of the top model
          step
refresh:  h_k again, under the new weights
          C(h_k - G_k): EMBEDDING  ------->  refresh:  G_k += C(h_k - G_k)

shared labels, Algorithm 1
update:   the top model, frozen  <---------  update:   TOP_MODEL
          (broadcast="surrogates":  <------            REPRESENTATIONS: the rows of G_1 .. G_K)
local:    loss at own exact h_k and the      local:    loss at G_1 .. G_K;
          others' G_j; step of f_k                     step of the exact top model
refresh:  C(h_k - G_k): EMBEDDING  ------->  refresh:  G_k += C(h_k - G_k)
          the others' G_j += ...  <--------            (broadcast="symbols": each body as it came)

Differs from the paper: the top model of round t leaves when round t begins, not at the end of round t - 1. It is the
same one, and nothing is sent after the last round that nobody reads.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thinwire.base.types import Kind, Round
from thinwire.engine.protocols.context import cast_like
from thinwire.engine.protocols.derivatives import DerivativeFeatureEnd, DerivativeLabelEnd
from thinwire.engine.protocols.representations import RepresentationFeatureEnd, RepresentationLabelEnd
from thinwire.engine.protocols.sealing import TRAINING
from thinwire.engine.streams import Rows


class UpdateFirstDerivativeFeatureEnd(DerivativeFeatureEnd):
    """A feature party's end; labels stay where they are."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._rows: Rows | None = None  # of this round

    def update(self, round: Round, rows: Rows) -> None:
        h = self._bottom.embed(round, rows)
        self._learn(rows, h, cast_like(h, self._receive_derivative(round, rows)))
        self._rows = rows

    def refresh(self, round: Round) -> None:
        body = self._uplink.refresh(round, _require_rows(self._rows, round))
        self._context.send(self._context.label_party, Kind.EMBEDDING, round, body)


class UpdateFirstDerivativeLabelEnd(DerivativeLabelEnd):
    """The label party's end; labels stay where they are."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._rows: Rows | None = None

    def update(self, round: Round, rows: Rows) -> None:
        own = self._side.own(round, rows)
        self._learn(round, rows, [_take_rows(uplink.tensors(), rows) for uplink in self._uplinks.values()], own)
        self._rows = rows

    def refresh(self, round: Round) -> None:
        rows = _require_rows(self._rows, round)
        for owner, symbols in self._symbols(Kind.EMBEDDING, round, rows, TRAINING).items():
            self._uplinks[owner].incoming(rows, symbols, round + 1)


class UpdateFirstRepresentationFeatureEnd(RepresentationFeatureEnd):
    """A feature party's end; labels are everyone's."""

    def update(self, round: Round, rows: Rows) -> None:
        self._side.top.begin(round)
        if self._context.recipe.broadcast == "surrogates":
            self._received = self._others.receive(self._bundle(Kind.REPRESENTATIONS, round), rows, round)
        else:
            self._received = self._others.estimates(rows)
        self._receive_top(round)
        self._sent = (rows, None)

    def refresh(self, round: Round) -> None:
        rows, _ = self._pending(round)
        body = self._sender.refresh(round, rows)
        self._context.send(self._context.label_party, Kind.EMBEDDING, round, body)
        if self._context.recipe.broadcast == "symbols":
            self._others.receive(self._bundle(Kind.REPRESENTATIONS, round), rows, round + 1)


class UpdateFirstRepresentationLabelEnd(RepresentationLabelEnd):
    """The label party's end; labels are everyone's."""

    def update(self, round: Round, rows: Rows) -> None:
        self._received = self._others.estimates(rows)
        if self._context.recipe.broadcast == "surrogates":
            self._broadcast(Kind.REPRESENTATIONS, self._surrogate_bodies(rows), round)
        self._send_top(round)
        self._rows = rows

    def refresh(self, round: Round) -> None:
        rows = _require_rows(self._rows, round)
        bodies = self._bodies(Kind.EMBEDDING, round, rows, TRAINING)
        self._others.receive(bodies, rows, round + 1)
        if self._own is not None:
            bodies[self._context.me] = self._own.refresh(round, rows)
        if self._context.recipe.broadcast == "symbols":
            self._broadcast(Kind.REPRESENTATIONS, bodies, round)


def _take_rows(stream: dict[str, Tensor], rows: Rows) -> Tensor:
    """These rows of a stream's surrogate."""
    return stream["surrogate"].index_select(0, rows)


def _require_rows(rows: Rows | None, round: Round) -> Rows:
    if rows is None:
        raise RuntimeError(f"round {round}: nothing was learned")
    return rows
