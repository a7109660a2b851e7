"""Private labels: embeddings go up, derivatives come down. Both ends, in message order.

feature party                            label party
send:     h = f(x[rows])
          EMBEDDING  ----------------->  exchange:  h_1 .. h_K; loss; dL/dh_k
receive:  h.backward(dL/dh)  <---------             DERIVATIVE; step of the top model
          (a regression's weights <----             WEIGHTS: protocols/regression.py)
          step; remember                            remember
local:    cached h, dL/dh                local:     cached h_k, dL/dh_k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thinwire.base.seeds import derive_seed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Identity, Symbols
from thinwire.engine.models.fusion import fusion_width
from thinwire.engine.protocols.bottom import Bottom, RegressionBottom
from thinwire.engine.protocols.codes import KnownCodes, fit_network
from thinwire.engine.protocols.context import PartyContext, add_prefix, cast_like, remove_prefix, select_rows
from thinwire.engine.protocols.ends import FeatureEnd, Guard, LabelEnd, LabelSide, Uplink, count_classes
from thinwire.engine.protocols.regression import receive_weights, send_weights
from thinwire.engine.protocols.sealing import TRAINING, WARM_START, Sealing
from thinwire.engine.schedule import BatchOutcome, CachedSteps, CosineTally, ExchangeCache, OneWay, cosine_weights
from thinwire.engine.streams import Direct, Rows


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What one exchange left behind for cached steps: as many embeddings as derivatives."""

    rows: Rows
    embeddings: list[Tensor]
    derivatives: list[Tensor]


class _Remembering:
    """Exchanges that may be used again, and how alike they still were when they were. Many of them lie in a file."""

    def __init__(self, context: PartyContext, device: torch.device) -> None:
        schedule = context.recipe.schedule
        self._device = device
        self.xi_degrees = schedule.xi_degrees if isinstance(schedule, CachedSteps) else None
        self.keeps = isinstance(schedule, CachedSteps) and schedule.reuse > 1
        self._shelf = ExchangeCache(context.storage)
        self._cosines = CosineTally()

    def add(self, round: Round, exchange: _Exchange) -> None:
        if self.keeps:
            self._shelf.put(round, [exchange.rows, *exchange.embeddings, *exchange.derivatives])

    def exchange(self, round: Round) -> _Exchange:
        tensors = self._shelf.get(round)
        half = 1 + len(tensors) // 2
        return _Exchange(tensors[0], tensors[1:half], tensors[half:])

    def forget(self, kept: set[Round]) -> None:
        self._shelf.keep(kept)

    def weights(self, now: Tensor, cached: Tensor) -> Tensor | None:
        if self.xi_degrees is None:
            return None
        weights, cosines = cosine_weights(now, cached, self.xi_degrees)
        self._cosines.add(cosines)
        return weights

    def diagnostics(self) -> dict[str, Any]:
        """Quantiles of the cosines since the last look."""
        if not len(self._cosines):
            return {}
        quantiles = self._cosines.quantiles([0.05, 0.25, 0.5, 0.75, 0.95])
        self._cosines.clear()
        return {"cosine_quantiles": quantiles}

    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {} if self.xi_degrees is None else {"cosines": self._cosines.state()}
        for number in self._shelf.rounds():
            held = self._shelf.look(number)
            found |= add_prefix(str(number), dict(zip(_names(len(held)), held, strict=True)))
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        if self.xi_degrees is not None:
            self._cosines.load(tensors["cosines"])
        self._shelf.keep(())
        for number in sorted(int(name.split(".")[0]) for name in tensors if name.endswith(".rows")):
            mine = remove_prefix(str(number), tensors)
            rows, *others = (mine[name] for name in _names(len(mine)))
            self._shelf.put(number, [rows, *(tensor.to(self._device) for tensor in others)])


def _names(count: int) -> list[str]:
    """Of so many tensors of an exchange in a checkpoint."""
    return ["rows", *(f"{kind}.{i}" for kind in ("embedding", "derivative") for i in range(count // 2))]


class DerivativeFeatureEnd(FeatureEnd):
    """A feature party's end; labels stay where they are."""

    ANSWER: ClassVar[Kind] = Kind.DERIVATIVE

    def __init__(self, context: PartyContext, bottom: Bottom, width: int, sealing: Sealing | None = None) -> None:
        super().__init__(context, bottom, Uplink(context, bottom, width, sealing), sealing)
        shared = f"{context.label_party}/downlink" if sealing else f"{context.me}/downlink"
        self._downlink = context.stream(context.recipe.downlink, shared, width, rows=context.owners(context.me).count)
        self._memory = _Remembering(context, bottom.device)
        self._saved |= {"downlink": self._downlink, "memory": self._memory}
        self._sent: dict[Round, tuple[Rows, Tensor]] = {}  # rows and embeddings that no answer has come to
        self._graph: tuple[Round, Tensor] | None = None  # the embedding made last, where it is of the present weights

    def warm_start(self, rows: Rows) -> None:
        owners = self._context.owners(self._context.me).select(rows).owners
        body = self._uplink.body(owners, self._bottom.embed_all(), 0, WARM_START)
        self._context.send(self._context.label_party, Kind.WARM_START, 0, body)

    def send(self, round: Round, rows: Rows) -> None:
        if round in self._sent:  # it went ahead
            return
        ahead = bool(self._sent)  # its answer comes to other weights, so that its graph is of no use
        with torch.set_grad_enabled(not ahead):
            h = self._bottom.embed(round, rows)  # [B, E]
        body = self._uplink.body(rows, self._uplink.message(h), round)
        self._context.send(self._context.label_party, Kind.EMBEDDING, round, body)
        self._sent[round] = (rows, h.detach())
        self._graph = None if ahead else (round, h)

    def receive(self, round: Round) -> None:
        rows, h = self._sent.pop(round)
        derivative = cast_like(h, self._receive_derivative(round, rows))
        self._uplink.stream.observe(rows, derivative)
        if isinstance(self._bottom, RegressionBottom):
            receive_weights(self._context, self._bottom, round)
        now = self._graph[1] if self._graph and self._graph[0] == round else self._bottom.embed(round, rows)
        self._learn(rows, now, derivative)
        self._memory.add(round, _Exchange(rows, [h], [derivative]))

    def _receive_derivative(self, round: Round, rows: Rows) -> Tensor:
        label_party = self._context.label_party
        body = self._context.receive(label_party, Kind.DERIVATIVE, round)
        symbols = self._context.decode(body, label_party, self._downlink.message_shape(rows))
        return self._downlink.incoming(rows, symbols, round)

    def local(self, round: Round) -> None:
        """Learns from a cached derivative once more."""
        cached = self._memory.exchange(round)
        (then,), (derivative,) = cached.embeddings, cached.derivatives
        now = self._bottom.embed(round, cached.rows)
        weights = self._memory.weights(now.detach(), then)
        self._learn(cached.rows, now, derivative if weights is None else weights[:, None] * derivative)

    def _learn(self, rows: Rows, h: Tensor, derivative: Tensor) -> None:
        self._bottom.learn(rows, h, derivative)
        self._graph = None
        self._context.count_update()

    def forget(self, kept: set[Round]) -> None:
        self._memory.forget(kept)

    def diagnostics(self) -> dict[str, Any]:
        return self._memory.diagnostics()

    def tensors(self) -> dict[str, Tensor]:
        found = super().tensors()
        for round, (rows, h) in self._sent.items():
            found |= {f"sent.{round}.rows": rows, f"sent.{round}.embedding": h}
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        self._sent.clear()
        ahead = remove_prefix("sent", tensors)
        for round in sorted({int(name.split(".")[0]) for name in ahead}):
            self._sent[round] = (ahead[f"{round}.rows"], ahead[f"{round}.embedding"].to(self._bottom.device))


class DerivativeLabelEnd(LabelEnd):
    """The label party's end; labels stay where they are."""

    def __init__(self, context: PartyContext, side: LabelSide, widths: Mapping[PartyName, int], guard: Guard) -> None:
        super().__init__(context, side)
        recipe = context.recipe
        self._guard = guard
        side.labels = guard.labels(
            side.labels, count_classes(side.top.module, fusion_width(side.fusion, list(widths.values())))
        )
        # Under secure sum there is one derivative, the same for all.
        wide = self._open_uplinks(widths)
        self._downlinks = {
            p: context.stream(recipe.downlink, f"{p}/downlink", wide[p], rows=context.owners(p).count) for p in wide
        }
        self._exact = recipe.downlink == Direct(Identity())
        self._memory = _Remembering(context, side.like().device)
        self._saved["memory"] = self._memory
        self._saved |= {f"downlink.{party}": stream for party, stream in self._downlinks.items()}
        self._widths = widths
        self._bytes = 0  # of this round's bodies

    def warm_start(self, rows: Rows) -> None:
        for owner, symbols in self._symbols(Kind.WARM_START, 0, rows, WARM_START).items():
            self._uplinks[owner].incoming(self._owned(owner, rows).owners, symbols, 0)
        passes = self._context.recipe.warm_passes
        if passes:
            known = KnownCodes(
                rows,
                [uplink.tensors()["surrogate"] for uplink in self._uplinks.values()],
                [self._context.owners(party) for party in self._uplinks],
            )
            fit_network(self._side, known, OneWay(passes), 0, derive_seed(self._context.seed, "passes", 0))

    def refine(self, level: int) -> None:
        for downlink in self._downlinks.values():
            downlink.level = level

    def exchange(self, round: Round, rows: Rows) -> BatchOutcome:
        self._bytes = 0
        own = self._side.own(round, rows)  # while the others' embeddings are on their way
        received = self._received(round, rows)
        return self._learn(round, rows, received, own)

    def _learn(self, round: Round, rows: Rows, received: list[Tensor], own: list[Tensor]) -> BatchOutcome:
        """Answers with the derivatives at these embeddings, and takes a step."""
        if self._side.regression is not None:
            parts = self._side.regression.extend([*received, *own], self._side.measure_losses, round)
            received, own = parts[: len(received)], parts[len(received) :]
        like = self._side.like()
        embeddings = [cast_like(like, h).requires_grad_() for h in received]
        ours = [h.detach().requires_grad_() for h in own]
        loss = self._side.losses([*embeddings, *ours], rows).mean()
        # Before the top model's own step, in the order of the parties.
        every = self._side.derivatives(loss, [*embeddings, *ours])
        derivatives = every[: len(embeddings)]
        self._answer(round, rows, self._guard.protect(derivatives, select_rows(self._side.labels, rows), round))
        if self._side.regression is not None:
            send_weights(self._context, self._side, self._side.regression, round)
        self._step(rows, own, every[len(embeddings) :])  # while the answer is on its way
        self._memory.add(round, _Exchange(rows, [h.detach() for h in embeddings], derivatives))
        return BatchOutcome(loss.item(), 8 * self._bytes / (2 * self._count_values(rows, self._widths)))

    def _received(self, round: Round, rows: Rows) -> list[Tensor]:
        """Each party's embedding in order, a row for each of these; under secure sum only their sum."""
        symbols = self._symbols(Kind.EMBEDDING, round, rows, TRAINING)
        found = []
        for party, one in symbols.items():
            owned = self._owned(party, rows)
            found.append(owned.expand(self._uplinks[party].incoming(owned.owners, one, round)))
        return found

    def _symbols(self, kind: Kind, round: Round, rows: Rows, use: str) -> dict[PartyName, Symbols]:
        symbols, size = self._receive_symbols(kind, round, rows, use)
        self._bytes += size
        return symbols

    def _answer(self, round: Round, rows: Rows, derivatives: list[Tensor]) -> None:
        bodies: list[bytes] = []
        before: Tensor | None = None
        for (party, downlink), derivative in zip(self._downlinks.items(), derivatives, strict=True):
            owned = self._owned(party, rows)
            sent = owned.add_up(derivative)
            # A sum has one derivative for all; as it is, it need be encoded only once.
            again = self._exact and sent is before
            bodies.append(bodies[-1] if again else self._context.encode(downlink.outgoing(owned.owners, sent, round)))
            before = sent
        if self._summed:
            bodies = bodies * len(self._context.feature_parties)
        self._bytes += sum(map(len, bodies))
        for party, body in zip(self._context.feature_parties, bodies, strict=True):
            self._context.send(party, Kind.DERIVATIVE, round, body)

    def local(self, round: Round) -> None:
        """Learns from cached embeddings once more."""
        cached = self._memory.exchange(round)
        embeddings = [h.detach().requires_grad_() for h in cached.embeddings]
        own = self._side.own(round, cached.rows)
        ours = [h.detach().requires_grad_() for h in own]
        losses = self._side.losses([*embeddings, *ours], cached.rows)
        if self._memory.xi_degrees is None:
            losses.mean().backward()
        else:
            now = torch.autograd.grad(losses.mean(), embeddings, retain_graph=True)
            weights = self._memory.weights(torch.cat(now, dim=1), torch.cat(cached.derivatives, dim=1))
            (weights * losses).mean().backward()  # type: ignore[operator]
        self._step(cached.rows, own, [h.grad for h in ours])

    def _step(self, rows: Rows, own: list[Tensor], derivatives: Sequence[Tensor | None]) -> None:
        self._side.step(rows, own, derivatives)
        self._context.count_update()

    def forget(self, kept: set[Round]) -> None:
        self._memory.forget(kept)

    def diagnostics(self) -> dict[str, Any]:
        return self._memory.diagnostics()
