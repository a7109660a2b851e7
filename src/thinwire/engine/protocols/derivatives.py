"""Private labels: embeddings go up, derivatives come down. Both ends, in message order.

feature party                            label party
send:     h = f(x[rows])
          EMBEDDING  ----------------->  exchange:  h_1 .. h_K; loss; dL/dh_k
receive:  h.backward(dL/dh)  <---------             DERIVATIVE; step of the top model
          step; remember                            remember
local:    cached h, dL/dh                local:     cached h_k, dL/dh_k
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Identity, Symbols
from thinwire.engine.models.fusion import fusion_width
from thinwire.engine.privacy import SecureSum
from thinwire.engine.protocols.bottom import Bottom
from thinwire.engine.protocols.context import PartyContext, add_prefix, cast_like, remove_prefix, select_rows
from thinwire.engine.protocols.label_side import Guard, LabelSide, count_classes
from thinwire.engine.protocols.sealing import TRAINING, WARM_START, Sealing, relay_keys, unseal
from thinwire.engine.schedule import BatchOutcome, CachedSteps, CosineTally, ExchangeCache, cosine_weights
from thinwire.engine.streams import Direct, ErrorFeedback, Rows


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What one exchange left behind for cached steps."""

    rows: Rows
    embeddings: list[Tensor]
    derivatives: list[Tensor]


class _Remembering:
    """Exchanges that may be used again, and how alike they still were when they were. Many of them lie in a file."""

    def __init__(self, context: PartyContext) -> None:
        schedule = context.recipe.schedule
        self.xi_degrees = schedule.xi_degrees if isinstance(schedule, CachedSteps) else None
        self.keeps = isinstance(schedule, CachedSteps) and schedule.reuse > 1
        self._shelf = ExchangeCache(context.storage)
        self._cosines = CosineTally()

    def add(self, round: Round, exchange: _Exchange) -> None:
        if self.keeps:
            self._shelf.put(round, [exchange.rows, *exchange.embeddings, *exchange.derivatives])

    def exchange(self, round: Round) -> _Exchange:
        return _put_apart(self._shelf.get(round))

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
            exchange = _put_apart(self._shelf.look(number))
            found[f"{number}.rows"] = exchange.rows
            for name, tensors in (("embedding", exchange.embeddings), ("derivative", exchange.derivatives)):
                found |= {f"{number}.{name}.{index}": tensor for index, tensor in enumerate(tensors)}
        return found

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        if self.xi_degrees is not None:
            self._cosines.load(tensors["cosines"])
        self._shelf.keep(())
        for number in sorted(int(name.split(".")[0]) for name in tensors if name.endswith(".rows")):
            mine = remove_prefix(str(number), tensors)
            listed = [
                [mine[f"{kind}.{i}"].to(device) for i in range(len(remove_prefix(kind, mine)))] for kind in _LISTS
            ]
            self._shelf.put(number, [mine["rows"], *listed[0], *listed[1]])


_LISTS = ("embedding", "derivative")


def _put_apart(tensors: list[Tensor]) -> _Exchange:
    """Rows, then as many embeddings as derivatives."""
    half = 1 + len(tensors) // 2
    return _Exchange(tensors[0], tensors[1:half], tensors[half:])


class DerivativeFeatureEnd:
    """A feature party's end."""

    def __init__(self, context: PartyContext, bottom: Bottom, width: int, sealing: Sealing | None = None) -> None:
        recipe = context.recipe
        self._context = context
        self._bottom = bottom
        self._sealing = sealing
        noise = None if sealing is None else sealing.noise
        self._uplink = context.stream(recipe.uplink, f"{context.me}/uplink", width, noise)
        shared = f"{context.label_party}/downlink" if sealing else f"{context.me}/downlink"
        self._downlink = context.stream(recipe.downlink, shared, width)
        self._whole_table = isinstance(recipe.uplink, ErrorFeedback) and recipe.uplink.scope == "table"
        self._memory = _Remembering(context)
        self._sent: dict[Round, tuple[Rows, Tensor]] = {}  # rows and embeddings that no answer has come to
        self._graph: tuple[Round, Tensor] | None = None  # the embedding made last, where it is of the present weights

    def begin(self) -> None:
        """Labels stay where they are; under secure sum the parties agree on keys."""
        if self._sealing is not None:
            self._sealing.agree()

    def warm_start(self, rows: Rows) -> None:
        """Fills the surrogates with C(h) of all rows; its bytes count."""
        symbols = self._uplink.outgoing(rows, self._bottom.embed_all(), 0)
        if self._sealing is not None:
            symbols = self._sealing.seal(symbols, 0, rows, WARM_START)
        self._context.send(self._context.label_party, Kind.WARM_START, 0, self._context.encode(symbols))

    def send(self, round: Round, rows: Rows) -> None:
        if round in self._sent:  # it went ahead
            return
        ahead = bool(self._sent)  # its answer comes to other weights, so that its graph is of no use
        with torch.set_grad_enabled(not ahead):
            h = self._bottom.embed(round, rows)  # [B, E]
        symbols = self._uplink.outgoing(rows, self._bottom.embed_all() if self._whole_table else h, round)
        if self._sealing is not None:
            symbols = self._sealing.seal(symbols, round, rows)
        self._context.send(self._context.label_party, Kind.EMBEDDING, round, self._context.encode(symbols))
        self._sent[round] = (rows, h.detach())
        self._graph = None if ahead else (round, h)

    def awaits(self, round: Round) -> list[tuple[PartyName, Kind, Round]]:
        return [(self._context.label_party, Kind.DERIVATIVE, round)]

    def has_answer(self, round: Round) -> bool:
        return self._context.channel.ready(self._context.label_party, Kind.DERIVATIVE, round)

    def receive(self, round: Round) -> None:
        rows, h = self._sent.pop(round)
        label_party = self._context.label_party
        symbols = self._context.decode(self._context.receive(label_party, Kind.DERIVATIVE, round), label_party)
        derivative = cast_like(h, self._downlink.incoming(rows, symbols, round))
        self._uplink.observe(rows, derivative)
        now = self._graph[1] if self._graph and self._graph[0] == round else self._bottom.embed(round, rows)
        self._learn(rows, now, derivative)
        self._memory.add(round, _Exchange(rows, [h], [derivative]))

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

    def show_surrogates(self, round: Round) -> None:
        # Under secure sum nobody else holds this surrogate, and its digest could be guessed at.
        if self._sealing is None:
            self._context.show_surrogate(self._uplink, round)

    def estimate(self) -> Tensor | None:
        """The surrogate of all rows, where there is one."""
        return self._uplink.state_dict().get("surrogate")

    def tensors(self) -> dict[str, Tensor]:
        return {
            **add_prefix("learner", self._bottom.tensors()),
            **add_prefix("uplink", self._uplink.state_dict()),
            **add_prefix("downlink", self._downlink.state_dict()),
            **add_prefix("memory", self._memory.tensors()),
            **{f"sent.{round}.rows": rows for round, (rows, _) in self._sent.items()},
            **{f"sent.{round}.embedding": h for round, (_, h) in self._sent.items()},
            **({} if self._sealing is None else add_prefix("sealing", self._sealing.tensors())),
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._bottom.load(remove_prefix("learner", tensors))
        self._uplink.load_state_dict(remove_prefix("uplink", tensors))
        self._downlink.load_state_dict(remove_prefix("downlink", tensors))
        self._memory.load(remove_prefix("memory", tensors), self._bottom.device)
        self._sent.clear()
        ahead = remove_prefix("sent", tensors)
        for round in sorted({int(name.split(".")[0]) for name in ahead}):
            self._sent[round] = (ahead[f"{round}.rows"], ahead[f"{round}.embedding"].to(self._bottom.device))
        if self._sealing is not None:
            self._sealing.load(remove_prefix("sealing", tensors))


class DerivativeLabelEnd:
    """The label party's end."""

    def __init__(self, context: PartyContext, side: LabelSide, widths: Mapping[PartyName, int], guard: Guard) -> None:
        recipe = context.recipe
        self._context = context
        self._side = side
        self._guard = guard
        side.labels = guard.labels(
            side.labels, count_classes(side.top.module, fusion_width(side.fusion, list(widths.values())))
        )
        self._summed = isinstance(recipe.aggregation, SecureSum)
        # Under secure sum there is one embedding, the sum, and one derivative, the same for all.
        owners = (context.label_party,) if self._summed else context.feature_parties
        wide = {p: widths[context.feature_parties[0]] if self._summed else widths[p] for p in owners}
        self._uplinks = {p: context.stream(recipe.uplink, f"{p}/uplink", wide[p]) for p in owners}
        self._downlinks = {p: context.stream(recipe.downlink, f"{p}/downlink", wide[p]) for p in owners}
        self._exact = recipe.downlink == Direct(Identity())
        self._update_first = recipe.order == "update_first"
        self._memory = _Remembering(context)
        self._columns = sum(widths[party] for party in context.feature_parties)
        self._bytes = 0  # of this round's bodies

    def begin(self) -> None:
        """Labels stay where they are; under secure sum the parties' keys pass through."""
        if self._summed:
            relay_keys(self._context)

    def warm_start(self, rows: Rows) -> None:
        for owner, symbols in self._symbols(Kind.WARM_START, 0, rows, WARM_START).items():
            self._uplinks[owner].incoming(rows, symbols, 0)

    def has_embeddings(self, round: Round) -> bool:
        return all(self._context.channel.ready(p, Kind.EMBEDDING, round) for p in self._context.feature_parties)

    def exchange(self, round: Round, rows: Rows) -> BatchOutcome:
        self._bytes = 0
        own = self._side.own(rows)  # while the others' embeddings are on their way
        received = self._received(round, rows)
        like = self._side.like()
        embeddings = [cast_like(like, h).requires_grad_() for h in received]
        ours = [h.detach().requires_grad_() for h in own]
        loss = self._side.losses([*embeddings, *ours], rows).mean()
        # Before the top model's own step, in the order of the parties.
        every = self._side.derivatives(loss, [*embeddings, *ours])
        derivatives = every[: len(embeddings)]
        self._answer(round, rows, self._guard.protect(derivatives, select_rows(self._side.labels, rows), round))
        for h, derivative in zip(own, every[len(embeddings) :], strict=True):  # while the answer is on its way
            if h.requires_grad:
                h.backward(derivative)
        self._step()
        self._memory.add(round, _Exchange(rows, [h.detach() for h in embeddings], derivatives))
        return BatchOutcome(loss.item(), 8 * self._bytes / (2 * len(rows) * self._columns))

    def _received(self, round: Round, rows: Rows) -> list[Tensor]:
        """Each party's embedding in order; under secure sum only their sum."""
        symbols = self._symbols(Kind.EMBEDDING, round, rows, TRAINING)
        before = self._estimates(rows) if self._update_first else None
        after = [self._uplinks[owner].incoming(rows, one, round) for owner, one in symbols.items()]
        return before or after

    def _symbols(self, kind: Kind, round: Round, rows: Rows, use: str) -> dict[PartyName, Symbols]:
        """By the owner of the stream; under secure sum that of the sum is the label party."""
        parties = self._context.feature_parties
        bodies = {party: self._context.receive(party, kind, round) for party in parties}
        self._bytes += sum(map(len, bodies.values()))
        symbols = {party: self._context.decode(body, party) for party, body in bodies.items()}
        if not self._summed:
            return symbols
        return {self._context.label_party: unseal(self._context, list(symbols.values()), round, rows, use)}

    def _estimates(self, rows: Rows) -> list[Tensor]:
        return [uplink.state_dict()["surrogate"].index_select(0, rows) for uplink in self._uplinks.values()]

    def _answer(self, round: Round, rows: Rows, derivatives: list[Tensor]) -> None:
        bodies: list[bytes] = []
        before: Tensor | None = None
        for downlink, derivative in zip(self._downlinks.values(), derivatives, strict=True):
            # A sum has one derivative for all; as it is, it need be encoded only once.
            again = self._exact and derivative is before
            bodies.append(bodies[-1] if again else self._context.encode(downlink.outgoing(rows, derivative, round)))
            before = derivative
        if self._summed:
            bodies = bodies * len(self._context.feature_parties)
        self._bytes += sum(map(len, bodies))
        for party, body in zip(self._context.feature_parties, bodies, strict=True):
            self._context.send(party, Kind.DERIVATIVE, round, body)

    def local(self, round: Round) -> None:
        """Learns from cached embeddings once more."""
        cached = self._memory.exchange(round)
        embeddings = [h.detach().requires_grad_() for h in cached.embeddings]
        losses = self._side.losses([*embeddings, *self._side.own(cached.rows)], cached.rows)
        if self._memory.xi_degrees is None:
            losses.mean().backward()
        else:
            now = torch.autograd.grad(losses.mean(), embeddings, retain_graph=True)
            weights = self._memory.weights(torch.cat(now, dim=1), torch.cat(cached.derivatives, dim=1))
            (weights * losses).mean().backward()  # type: ignore[operator]
        self._step()

    def _step(self) -> None:
        self._side.step()
        self._context.count_update()

    def forget(self, kept: set[Round]) -> None:
        self._memory.forget(kept)

    def compare_surrogates(self, round: Round) -> None:
        if not self._summed:
            for party, uplink in self._uplinks.items():
                self._context.compare_surrogate(party, uplink, round)

    def diagnostics(self) -> dict[str, Any]:
        return self._memory.diagnostics()

    def tensors(self) -> dict[str, Tensor]:
        found = add_prefix("side", self._side.tensors()) | add_prefix("memory", self._memory.tensors())
        for kind, streams in (("uplink", self._uplinks), ("downlink", self._downlinks)):
            for party, stream in streams.items():
                found |= add_prefix(f"{kind}.{party}", stream.state_dict())
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._side.load(remove_prefix("side", tensors))
        self._memory.load(remove_prefix("memory", tensors), self._side.like().device)
        for kind, streams in (("uplink", self._uplinks), ("downlink", self._downlinks)):
            for party, stream in streams.items():
                stream.load_state_dict(remove_prefix(f"{kind}.{party}", tensors))
