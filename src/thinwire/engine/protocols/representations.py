"""Shared labels: embeddings go up, everyone's embeddings and the top model come down. In message order.

feature party k                          label party
send:     h_k = f_k(x_k[rows])
          EMBEDDING  ----------------->  exchange:  decode h_1 .. h_K
receive:  the others' h_j  <-----------             REPRESENTATIONS: each body as it came
          the top model, frozen  <-----             TOP_MODEL
local:    loss at own exact h_k          local:     loss at the received h_1 .. h_K;
          and the others' received;                 step of the exact top model
          step of f_k

Under secure sum the sum goes down instead of each embedding: a party takes its own share away again, and
puts its exact h_k in that place.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from thinwire.base.errors import Malformed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Identity, Remembers, Symbols
from thinwire.engine.compress.symbols import Counts, LevelSum, UniformGrid
from thinwire.engine.privacy import SecureSum
from thinwire.engine.protocols.bottom import Bottom, Learner
from thinwire.engine.protocols.context import PartyContext, add_prefix, remove_prefix
from thinwire.engine.protocols.ends import FeatureEnd, LabelEnd, LabelSide, Uplink
from thinwire.engine.protocols.sealing import TRAINING, WARM_START, Sealing, unseal
from thinwire.engine.streams import Rows, Stream
from thinwire.engine.wire.buffers import pack_bundle, unpack_bundle

_SUM = "the sum"  # what goes down under secure sum, beside the label party's own embedding
_TOP_ROW = torch.zeros(1, dtype=torch.int64)


def _top_stream(context: PartyContext, top: nn.Module) -> Stream:
    """The top model's parameters as one row of one table."""
    width = max(1, sum(parameter.numel() for parameter in top.parameters()))
    return replace(context, rows=1).stream(context.recipe.top, f"{context.label_party}/top", width)


def _flat(module: nn.Module) -> Tensor:
    parameters = [parameter.detach().reshape(-1).float() for parameter in module.parameters()]
    return torch.cat(parameters).reshape(1, -1) if parameters else torch.zeros(1, 1)


def _unflatten(module: nn.Module, flat: Tensor) -> None:
    start = 0
    with torch.no_grad():
        for parameter in module.parameters():
            piece = flat.reshape(-1)[start : start + parameter.numel()]
            parameter.copy_(piece.reshape(parameter.shape))
            start += parameter.numel()


def _shown(context: PartyContext, widths: Mapping[PartyName, int]) -> dict[PartyName, int]:
    """What goes down, by name and width, in order: everyone's embedding, or their sum."""
    if not isinstance(context.recipe.aggregation, SecureSum):
        return dict(widths)
    own = {context.label_party: widths[context.label_party]} if context.label_party in widths else {}
    return {_SUM: widths[context.feature_parties[0]], **own}


class _Others:
    """The other parties' embeddings as this party knows them: one receiving stream each."""

    def __init__(self, context: PartyContext, widths: Mapping[PartyName, int]) -> None:
        self._context = context
        self._widths = dict(widths)
        self.names = tuple(party for party in widths if party != context.me)
        self._symbols = context.recipe.broadcast == "symbols" or context.me == context.label_party
        self.streams: dict[PartyName, Stream] = {}
        if self._symbols:
            self.streams = {
                party: context.stream(context.recipe.uplink, f"{party}/uplink", widths[party]) for party in self.names
            }

    def receive(
        self, bodies: Mapping[PartyName, bytes | memoryview], rows: Rows, round: Round
    ) -> dict[PartyName, Tensor]:
        """This round's embeddings of the others."""
        if set(bodies) != set(self.names):
            raise Malformed(f"round {round}: embeddings of {sorted(bodies)} came in, expected {sorted(self.names)}")
        return {party: self._receive(party, bodies[party], rows, round) for party in self.names}

    def _receive(self, party: PartyName, body: bytes | memoryview, rows: Rows, round: Round) -> Tensor:
        stream = self.streams.get(party)
        shape = (len(rows), self._widths[party]) if stream is None else stream.message_shape(rows)
        symbols = self._context.decode(body, party, shape)
        if isinstance(symbols, LevelSum | Counts) and symbols.parties != len(self._context.feature_parties):
            raise Malformed(f"round {round}: a sum of {symbols.parties} parties' embeddings")
        return symbols.to_tensor() if stream is None else stream.incoming(rows, symbols, round)

    def estimates(self, rows: Rows) -> dict[PartyName, Tensor]:
        return {party: s.tensors()["surrogate"].index_select(0, rows) for party, s in self.streams.items()}

    def list_streams(self) -> dict[str, Stream]:
        """By the names that a checkpoint has for them."""
        return {f"others.{party}": stream for party, stream in self.streams.items()}


class _Sender(Uplink):
    """A party's own uplink: its exact embedding, and the symbols that leave."""

    def __init__(self, context: PartyContext, bottom: Bottom, width: int, sealing: Sealing | None = None) -> None:
        super().__init__(context, bottom, width, sealing)
        self.share = torch.zeros(0)  # of the sum that goes down: what the others have of this embedding
        self._observes = context.recipe.uplink.compressor.remembers is not Remembers.NOTHING

    def forward(self, round: Round, rows: Rows) -> Tensor:
        return self._bottom.embed(round, rows)

    def compress(self, rows: Rows, message: Tensor, round: Round) -> Symbols:
        symbols = super().compress(rows, message, round)
        if self._sealing is not None:
            estimate = self.estimate(rows)
            self.share = estimate if len(estimate) else symbols.to_tensor()
        return symbols

    def estimate(self, rows: Rows) -> Tensor:
        """What the others take this party's embedding to be; itself 0 where nothing is remembered."""
        surrogate = self.surrogate()
        return torch.zeros(0) if surrogate is None else surrogate.index_select(0, rows)

    def observe(self, rows: Rows, derivative: Tensor | None) -> None:
        if self._observes and derivative is not None:
            self.stream.observe(rows, derivative)


def _labels_body(context: PartyContext, side: LabelSide) -> bytes:
    """The labels, and what the top model is, in words: every party builds it from its own job, never from these."""
    labels = side.labels
    if labels.is_floating_point():
        symbols: Symbols = Identity().compress(labels.float(), torch.Generator())
    else:
        symbols = UniformGrid(tuple(labels.shape), labels.cpu().numpy().reshape(-1), 1.0)
    return pack_bundle({0: context.encode(symbols), 1: side.architecture().encode()})


def _labels(context: PartyContext, side: LabelSide, body: bytes | memoryview) -> Tensor:
    parts = unpack_bundle(body)
    if set(parts) != {0, 1}:
        raise Malformed(f"{context.label_party!r} sent {len(parts)} parts where labels and architecture belong")
    theirs, ours = bytes(parts[1]).decode(errors="replace"), side.architecture()
    if theirs != ours:
        raise Malformed(f"{context.label_party!r} trains a different top model: {theirs} there, {ours} here")
    symbols = context.decode(parts[0], context.label_party, (context.rows, *side.labels.shape[1:]))
    return symbols.to_tensor().long() if isinstance(symbols, UniformGrid) else symbols.to_tensor()


class RepresentationFeatureEnd(FeatureEnd):
    """A feature party's end."""

    ANSWER: ClassVar[Kind] = Kind.TOP_MODEL

    def __init__(
        self,
        context: PartyContext,
        bottom: Bottom,
        side: LabelSide,
        widths: Mapping[PartyName, int],
        sealing: Sealing | None = None,
    ) -> None:
        self._sender = _Sender(context, bottom, widths[context.me], sealing)
        super().__init__(context, bottom, self._sender, sealing)
        shown = _shown(context, widths)
        self._others = _Others(context, shown)
        self._shown = tuple(shown)
        self._side = LabelSide(
            top=Learner(f"{context.me}/top", copy.deepcopy(side.top.module), None, context.seed, 1),
            labels=side.labels[:0],  # they come with the first message
            loss=side.loss,
            fusion=side.fusion,
        )
        for parameter in self._side.top.module.parameters():
            parameter.requires_grad_(False)
        self._top = _top_stream(context, side.top.module)
        self._saved |= {**self._others.list_streams(), "top": self._top}
        self._received: dict[PartyName, Tensor] = {}
        self._sent: tuple[Rows, Tensor | None] | None = None

    def begin(self) -> None:
        """Shared labels travel once, before the first round."""
        super().begin()
        body = self._context.receive(self._context.label_party, Kind.LABELS, 0)
        labels = _labels(self._context, self._side, body)
        self._side.labels = labels.to(self._side.labels.device)

    def warm_start(self, rows: Rows) -> None:
        body = self._sender.body(rows, self._sender.message(self._bottom.embed_all()), 0, WARM_START)
        self._context.send(self._context.label_party, Kind.WARM_START, 0, body)
        if self._context.recipe.broadcast == "symbols":
            self._others.receive(self._bundle(Kind.WARM_START, 0), rows, 0)

    def send(self, round: Round, rows: Rows) -> None:
        h = self._sender.forward(round, rows)
        body = self._sender.body(rows, self._sender.message(h), round)
        self._context.send(self._context.label_party, Kind.EMBEDDING, round, body)
        self._sent = (rows, h)

    def receive(self, round: Round) -> None:
        rows, _ = self._pending(round)
        self._side.top.begin(round)
        self._received = self._others.receive(self._bundle(Kind.REPRESENTATIONS, round), rows, round)
        self._receive_top(round)

    def _receive_top(self, round: Round) -> None:
        body = self._context.receive(self._context.label_party, Kind.TOP_MODEL, round)
        symbols = self._context.decode(body, self._context.label_party, self._top.message_shape(_TOP_ROW))
        _unflatten(self._side.top.module, self._top.incoming(_TOP_ROW, symbols, round))

    def _bundle(self, kind: Kind, round: Round) -> dict[PartyName, bytes | memoryview]:
        bodies = unpack_bundle(self._context.receive(self._context.label_party, kind, round))
        if any(index >= len(self._shown) for index in bodies):
            raise Malformed(f"round {round}: a body of a party that does not exist")
        return {self._shown[index]: body for index, body in bodies.items()}

    def local(self, round: Round) -> None:
        rows, h = self._pending(round)
        # The first step's embedding was computed for the message already.
        h = self._sender.forward(round, rows) if h is None else h
        own = h.detach().requires_grad_()
        self._side.losses(self._embeddings(own), rows).mean().backward()
        derivative = torch.zeros_like(own) if own.grad is None else own.grad
        self._sender.observe(rows, derivative)
        self._bottom.learn(rows, h, derivative)
        self._context.count_update()
        self._sent = (rows, None)

    def _embeddings(self, h: Tensor) -> list[Tensor]:
        """What is fused: this party's exact embedding, and what it received of the others."""
        if self._sealing is None:
            return [h if party == self._context.me else self._received[party] for party in self._shown]
        others = dict(self._received)
        rest = others.pop(_SUM) - self._sender.share
        return [h, rest, *others.values()]

    def _pending(self, round: Round) -> tuple[Rows, Tensor | None]:
        if self._sent is None:
            raise RuntimeError(f"round {round}: nothing was sent")
        return self._sent

    def forget(self, kept: set[Round]) -> None:
        self._sent = None
        self._received = {}

    def tensors(self) -> dict[str, Tensor]:
        buffers = dict(self._side.top.module.named_buffers())  # they do not come down with the weights
        return {**super().tensors(), "labels": self._side.labels, **add_prefix("buffers", buffers)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._side.labels = tensors["labels"].to(self._side.labels.device)
        saved = remove_prefix("buffers", tensors)
        for name, buffer in self._side.top.module.named_buffers():
            buffer.copy_(saved.get(name, buffer))
        super().load(tensors)


class RepresentationLabelEnd(LabelEnd):
    """The label party's end; it forwards every body as it came, never re-encoded."""

    def __init__(self, context: PartyContext, side: LabelSide, widths: Mapping[PartyName, int]) -> None:
        super().__init__(context, side)
        shown = _shown(context, widths)
        self._shown = tuple(shown)  # its own name last, where it has features
        self._others = _Others(context, shown)
        self._uplinks = self._others.streams
        self._top = _top_stream(context, side.top.module)
        self._saved |= {**self._others.list_streams(), "top": self._top}
        self._own: _Sender | None = None
        if side.bottom is not None:
            self._own = _Sender(context, side.bottom, widths[context.me])
            self._saved["own"] = self._own.stream
        self._rows: Rows | None = None
        self._h: Tensor | None = None  # its own embedding, until the first local step has used it
        self._received: dict[PartyName, Tensor] = {}

    def begin(self) -> None:
        super().begin()
        body = _labels_body(self._context, self._side)
        for party in self._context.feature_parties:
            self._context.send(party, Kind.LABELS, 0, body)

    def warm_start(self, rows: Rows) -> None:
        bodies = self._bodies(Kind.WARM_START, 0, rows, WARM_START)
        self._others.receive(bodies, rows, 0)
        if self._own is not None:
            with torch.no_grad():
                bodies[self._context.me] = self._own.body(rows, self._own.message(self._own.forward(0, rows)), 0)
        if self._context.recipe.broadcast == "symbols":
            self._broadcast(Kind.WARM_START, bodies, 0)

    def exchange(self, round: Round, rows: Rows) -> None:
        bodies = self._bodies(Kind.EMBEDDING, round, rows, TRAINING)
        self._received = self._others.receive(bodies, rows, round)
        if self._own is not None:
            self._h = self._own.forward(round, rows)
            bodies[self._context.me] = self._own.body(rows, self._own.message(self._h), round)
        if self._context.recipe.broadcast == "surrogates":
            bodies = self._surrogate_bodies(rows)
        self._broadcast(Kind.REPRESENTATIONS, bodies, round)
        self._send_top(round)
        self._rows = rows

    def _surrogate_bodies(self, rows: Rows) -> dict[PartyName, bytes | memoryview]:
        """What the label party itself learns from this round goes down, not the symbols."""
        shown = dict(self._received)
        if self._own is not None:
            shown[self._context.me] = self._own.estimate(rows)
        exact, none = Identity(), torch.Generator()
        return {party: self._context.encode(exact.compress(h, none)) for party, h in shown.items()}

    def _send_top(self, round: Round) -> None:
        top = self._context.encode(self._top.outgoing(_TOP_ROW, _flat(self._side.top.module), round))
        for party in self._context.feature_parties:
            self._context.send(party, Kind.TOP_MODEL, round, top)

    def _bodies(self, kind: Kind, round: Round, rows: Rows, use: str) -> dict[PartyName, bytes | memoryview]:
        """What came up, by the name it goes down under."""
        bodies = self._receive_bodies(kind, round)
        if not self._summed:
            return bodies
        sealed = list(self._decode_bodies(bodies, rows).values())
        return {_SUM: self._context.encode(unseal(self._context, sealed, round, rows, use))}

    def _broadcast(self, kind: Kind, bodies: Mapping[PartyName, bytes | memoryview], round: Round) -> None:
        for receiver in self._context.feature_parties:
            others = {self._shown.index(p): body for p, body in bodies.items() if p != receiver}
            self._context.send(receiver, kind, round, pack_bundle(others))

    def local(self, round: Round) -> None:
        if self._rows is None:
            raise RuntimeError(f"round {round}: nothing was exchanged")
        own = self._side.own(round, self._rows) if self._h is None else [self._h]
        ours = [h.detach().requires_grad_() for h in own]
        embeddings = [self._received[party] for party in self._others.names]
        loss = self._side.losses([*embeddings, *ours], self._rows).mean()
        if loss.requires_grad:  # a top model may have nothing to learn
            loss.backward()
        if self._own is not None and self._h is not None:
            self._own.observe(self._rows, ours[0].grad if self._h.requires_grad else None)
        self._h = None
        self._side.step(self._rows, own, [h.grad for h in ours])
        self._context.count_update()

    def forget(self, kept: set[Round]) -> None:
        self._rows = None
        self._received = {}
