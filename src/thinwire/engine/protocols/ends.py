"""What the label party brings to either protocol; what an end is to its party's program, and what all ends do alike.

They agree on keys, compare digests of surrogates that both ends of a stream must hold alike, and save their parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Symbols
from thinwire.engine.compress.randomness import digest_tensors
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.losses import name_loss
from thinwire.engine.models.regression import SubspaceFit
from thinwire.engine.privacy import NoiseKey, SecureSum
from thinwire.engine.privacy.defences import Defence, NoDefence
from thinwire.engine.protocols.bottom import Bottom, Learner
from thinwire.engine.protocols.context import (
    PartyContext,
    Saved,
    add_prefix,
    cast_like,
    collect_tensors,
    load_tensors,
    remove_prefix,
    select_rows,
)
from thinwire.engine.protocols.evaluation import (
    HeldOut,
    HeldOutRows,
    TrackedEmbeddings,
    evaluation_mode,
    receive_held_out,
    receive_held_out_symbols,
    send_held_out,
)
from thinwire.engine.protocols.sealing import TRAINING, Sealing, relay_keys, unseal
from thinwire.engine.schedule import BatchOutcome
from thinwire.engine.streams import ErrorFeedback, OwnedRows, Rows, Stream


@dataclass
class LabelSide:
    """Labels, loss, fusion and the top model; its own features and bottom model, where it has them."""

    top: Learner
    labels: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]  # per row
    fusion: str
    bottom: Bottom | None = None
    weights: Tensor | None = None  # of each row's loss [N]
    regression: SubspaceFit | None = None  # embeddings are directions, and we say what comes of them
    _running: tuple[float, int] = (0.0, 0)  # the batches' losses since the last look: sum and rows

    def own(self, round: Round, rows: Rows) -> list[Tensor]:
        """The label party's own embedding, last in the order; none where it has no features."""
        return [] if self.bottom is None else [self.bottom.embed(round, rows)]

    def losses(self, embeddings: list[Tensor], rows: Rows) -> Tensor:
        """One loss per row; embeddings of any float type, the top model has its own."""
        like = self.like()
        fused = fuse(self.fusion, [cast_like(like, h) for h in embeddings])
        losses = self.weigh(self.loss(self.top.forward(fused), select_rows(self.labels, rows)), rows)
        self._running = (self._running[0] + losses.detach().sum().item(), self._running[1] + len(losses))
        return losses

    def weigh(self, losses: Tensor, rows: Rows) -> Tensor:
        """Each row's loss times its weight."""
        return losses if self.weights is None else losses * select_rows(self.weights, rows).to(losses)

    def measure_losses(self, outputs: Tensor, rows: slice) -> Tensor:
        """One loss per row of these outputs, whatever made them."""
        losses = self.loss(outputs, self.labels[rows])
        return losses if self.weights is None else losses * self.weights[rows].to(losses)

    def derivatives(self, loss: Tensor, embeddings: list[Tensor]) -> list[Tensor]:
        """dL/dh for each embedding; the top model's gradients are then in place.

        Not by backward(): it would copy one derivative for every party, even where all are the same.
        """
        ours = self.top.trained
        found = torch.autograd.grad(loss, [*embeddings, *ours], allow_unused=True)
        for parameter, gradient in zip(ours, found[len(embeddings) :], strict=True):
            parameter.grad = gradient
        pairs = zip(embeddings, found, strict=False)
        return [torch.zeros_like(h) if derivative is None else derivative for h, derivative in pairs]

    def running_loss(self) -> float | None:
        """The mean loss of the batches since the last look; None where there were none."""
        total, rows = self._running
        self._running = (0.0, 0)
        return total / rows if rows else None

    def architecture(self) -> str:
        """The top model, fusion and loss in words: what parties under shared labels must have alike."""
        return f"{self.fusion} fusion, {name_loss(self.loss)}, {self.top.module!r}"

    def like(self) -> Tensor:
        """A tensor where and as the top model computes."""
        held = self.top.trained or list(self.top.module.parameters())
        return held[0].detach() if held else torch.zeros(1)

    def step(self, rows: Rows, own: list[Tensor], derivatives: Sequence[Tensor | None]) -> None:
        """One update of the top model from the gradients that are there, and of our own bottom model from dL/dh."""
        self.top.step()
        for h, derivative in zip(own, derivatives, strict=True):
            if self.bottom is not None:
                self.bottom.learn(rows, h, torch.zeros_like(h) if derivative is None else derivative)

    def begin(self, round: Round) -> None:
        self.top.begin(round)
        if self.bottom is not None:
            self.bottom.begin(round)

    def tensors(self) -> dict[str, Tensor]:
        found = add_prefix("top", self.top.tensors()) | {"running": torch.tensor(self._running, dtype=torch.float64)}
        found |= {} if self.regression is None else add_prefix("regression", self.regression.tensors())
        return found | ({} if self.bottom is None else add_prefix("bottom", self.bottom.tensors()))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.top.load(remove_prefix("top", tensors))
        total, rows = tensors["running"].tolist()
        self._running = (total, int(rows))
        if self.regression is not None:
            self.regression.load(remove_prefix("regression", tensors))
        if self.bottom is not None:
            self.bottom.load(remove_prefix("bottom", tensors))


def count_classes(top: nn.Module, width: int) -> int:
    """As many as the top model tells apart; a single output tells two. It must not follow from the labels."""
    like = next(top.parameters(), torch.zeros(1))
    with evaluation_mode(top):
        outputs: Tensor = top(torch.zeros(1, width, dtype=like.dtype, device=like.device))
    return max(2, outputs.shape[-1])


@dataclass(frozen=True, slots=True)
class Guard:
    """A defence, and the label party's own secret behind its noise."""

    defence: Defence
    noise_key: NoiseKey
    run: int
    label_party: PartyName
    fusion: str

    def labels(self, labels: Tensor, classes: int) -> Tensor:
        """The labels to train on: the same ones whenever this run goes on. `classes` must not follow from them."""
        return self.defence.labels(labels, classes, self.noise_key.for_round(self.run, 0, 0, self._named("labels")))

    def protect(self, derivatives: list[Tensor], labels: Tensor, round: Round) -> list[Tensor]:
        """What goes down. Parties that put theirs together must not find more noise draws than one."""
        if isinstance(self.defence, NoDefence):  # nothing is drawn, and a round's key costs as much as a small batch
            return derivatives
        alike = self.fusion != "concat"
        joined = derivatives[0] if alike else torch.cat(derivatives, dim=1)
        noise = self.noise_key.for_round(self.run, round, 0, self._named(f"derivatives {digest_tensors(joined)}"))
        sent = self.defence.protect(joined, labels, noise)
        return [sent] * len(derivatives) if alike else list(sent.split([h.shape[1] for h in derivatives], dim=1))

    def _named(self, what: str) -> str:
        return f"{self.label_party}/{what}"


# What an end of either protocol is to its party's program, and what all ends do alike -----------------------------


class Uplink:
    """A party's own stream to the label party; under secure sum with noise and masks of its own."""

    def __init__(self, context: PartyContext, bottom: Bottom, width: int, sealing: Sealing | None = None) -> None:
        spec = context.recipe.uplink
        noise = None if sealing is None else sealing.noise
        self.stream = context.stream(spec, f"{context.me}/uplink", width, noise, context.owners(context.me).count)
        self._context = context
        self._bottom = bottom
        self._sealing = sealing
        self._whole_table = isinstance(spec, ErrorFeedback) and spec.scope == "table"

    def message(self, h: Tensor) -> Tensor:
        """What is compressed: the embedding of a round's rows, or of all rows."""
        return self._bottom.embed_all() if self._whole_table else h

    def refresh(self, round: Round, rows: Rows) -> bytes:
        """What the surrogates still miss of the embeddings under the weights that the round has led to."""
        with torch.no_grad():
            h = self._bottom.embed_all() if self._whole_table else self._bottom.embed(round, rows)
        return self.body(rows, h, round + 1)  # C^(t+1) in the papers; round 0's is the start of the surrogates

    def compress(self, rows: Rows, message: Tensor, round: Round) -> Symbols:
        return self.stream.outgoing(rows, message, round)

    def body(self, rows: Rows, message: Tensor, round: Round, use: str = TRAINING) -> bytes:
        symbols = self.compress(rows, message, round)
        if self._sealing is not None:
            symbols = self._sealing.seal(symbols, round, rows, use)
        return self._context.encode(symbols)

    def surrogate(self) -> Tensor | None:
        """What the others take this party's embeddings of all rows to be; None where nothing is remembered."""
        return self.stream.tensors().get("surrogate")


class ProtocolEnd(ABC):
    """One party's end; what it saves stands in `_saved` under the names of its parts."""

    def __init__(self, context: PartyContext, saved: Mapping[str, Saved]) -> None:
        self._context = context
        self._saved = dict(saved)

    @abstractmethod
    def begin(self) -> None:
        """What is said before the first round."""

    @abstractmethod
    def warm_start(self, rows: Rows) -> None:
        """Fills the surrogates with C(h) of all rows; its bytes count."""

    @abstractmethod
    def local(self, round: Round) -> None:
        """Learns once more from what was exchanged in that round."""

    def update(self, round: Round, rows: Rows) -> None:
        """Where the update comes first: learns from the surrogates of these rows, or gets ready to."""
        raise RuntimeError(f"round {round}: {type(self).__name__} sends before it learns")

    def refresh(self, round: Round) -> None:
        """Where the update comes first: brings the surrogates of the round's rows nearer to the new embeddings."""
        raise RuntimeError(f"round {round}: {type(self).__name__} sends before it learns")

    def refine(self, level: int) -> None:  # noqa: B027
        """Sends at this level of precision from here on."""

    @abstractmethod
    def forget(self, kept: set[Round]) -> None: ...

    def diagnostics(self) -> dict[str, Any]:
        return {}

    def _track(self, parties: Sequence[PartyName]) -> dict[PartyName, TrackedEmbeddings]:
        """Validation embeddings of these parties, where only their changes travel."""
        step = self._context.recipe.evaluation_step
        found = {} if step is None else {party: TrackedEmbeddings(step) for party in parties}
        self._saved |= {f"tracked.{party}": tracked for party, tracked in found.items()}
        return found

    def save_with(self, name: str, part: Saved) -> None:
        """What must be in this party's checkpoints too."""
        self._saved[name] = part

    def tensors(self) -> dict[str, Tensor]:
        return collect_tensors(self._saved)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        load_tensors(self._saved, tensors)


class FeatureEnd(ProtocolEnd):
    """A feature party's end of either protocol."""

    ANSWER: ClassVar[Kind]  # the last message of the label party's answer

    def __init__(self, context: PartyContext, bottom: Bottom, uplink: Uplink, sealing: Sealing | None) -> None:
        sealed: dict[str, Saved] = {} if sealing is None else {"sealing": sealing}
        super().__init__(context, {"learner": bottom, "uplink": uplink.stream, **sealed})
        self._tracked = self._track([context.me]).get(context.me)
        self._bottom = bottom
        self._uplink = uplink
        self._sealing = sealing

    def begin(self) -> None:
        """Under secure sum the parties agree on keys."""
        if self._sealing is not None:
            self._sealing.agree()

    def refine(self, level: int) -> None:
        self._uplink.stream.level = level

    @abstractmethod
    def send(self, round: Round, rows: Rows) -> None: ...

    def awaits(self, round: Round) -> list[tuple[PartyName, Kind, Round]]:
        return [(self._context.label_party, self.ANSWER, round)]

    def has_answer(self, round: Round) -> bool:
        return self._context.channel.ready(*self.awaits(round)[0])

    @abstractmethod
    def receive(self, round: Round) -> None: ...

    def send_held_out(self, kind: Kind, rows: HeldOut, round: Round) -> None:
        """The embeddings of all validation or test rows, or what changed in those of validation rows."""
        h = self._bottom.embed_held_out(rows)
        if self._tracked is None or rows is not HeldOut.VALIDATION or h is None:
            send_held_out(self._context, kind, h, round, self._sealing)
            return
        body = self._context.encode(self._tracked.outgoing(h))
        self._context.send(self._context.label_party, kind, round, body)

    def show_surrogates(self, round: Round) -> None:
        """Under error feedback: tells the label party what our end of the stream holds, as a digest."""
        # Under secure sum nobody else holds this surrogate, and its digest could be guessed at.
        digest = self._uplink.stream.digest() if self._sealing is None else None
        if digest is not None:
            self._context.send(self._context.label_party, Kind.SURROGATE_DIGEST, round, digest.to_bytes(8, "little"))

    def estimate(self) -> Tensor | None:
        """The surrogate of all rows, where there is one."""
        return self._uplink.surrogate()


class LabelEnd(ProtocolEnd):
    """The label party's end of either protocol."""

    def __init__(self, context: PartyContext, side: LabelSide) -> None:
        super().__init__(context, {"side": side})
        self._tracked = self._track(context.feature_parties)
        self._side = side
        self._summed = isinstance(context.recipe.aggregation, SecureSum)
        self._uplinks: dict[PartyName, Stream] = {}  # under secure sum that of the sum alone

    def begin(self) -> None:
        """Under secure sum the parties' keys pass through."""
        if self._summed:
            relay_keys(self._context)

    def awaits(self, round: Round) -> list[tuple[PartyName, Kind, Round]]:
        return [(party, Kind.EMBEDDING, round) for party in self._context.feature_parties]

    def has_embeddings(self, round: Round) -> bool:
        return all(self._context.channel.ready(*awaited) for awaited in self.awaits(round))

    @abstractmethod
    def exchange(self, round: Round, rows: Rows) -> BatchOutcome | None: ...

    def _open_uplinks(self, widths: Mapping[PartyName, int]) -> dict[PartyName, int]:
        """The width of each stream by its owner; under secure sum there is one embedding, the sum, and it is ours."""
        context = self._context
        owners = (context.label_party,) if self._summed else context.feature_parties
        wide = {p: widths[context.feature_parties[0]] if self._summed else widths[p] for p in owners}
        self._uplinks = {
            p: context.stream(context.recipe.uplink, f"{p}/uplink", wide[p], rows=context.owners(p).count)
            for p in owners
        }
        self._saved |= {f"uplink.{party}": stream for party, stream in self._uplinks.items()}
        return wide

    def _receive_symbols(
        self, kind: Kind, round: Round, rows: Rows, use: str
    ) -> tuple[dict[PartyName, Symbols], int]:
        """By the owner of the stream; and the bytes that came."""
        bodies = self._receive_bodies(kind, round)
        symbols = self._decode_bodies(bodies, rows)
        if self._summed:
            symbols = {self._context.label_party: unseal(self._context, list(symbols.values()), round, rows, use)}
        return symbols, sum(map(len, bodies.values()))

    def receive_held_out(
        self, kind: Kind, rows: HeldOutRows, widths: Mapping[PartyName, int], round: Round
    ) -> list[Tensor] | None:
        """Embeddings of held-out rows, as `send_held_out` of the others sends them."""
        if not self._tracked or rows.which is not HeldOut.VALIDATION:
            return receive_held_out(self._context, kind, rows, widths, round)
        symbols = receive_held_out_symbols(self._context, kind, rows, widths, round)
        tracked = {party: self._tracked[party].incoming(one, party) for party, one in symbols.items()}
        return [rows.expand(self._context, party, h) for party, h in tracked.items()] or None

    def _receive_bodies(self, kind: Kind, round: Round) -> dict[PartyName, bytes | memoryview]:
        return {party: self._context.receive(party, kind, round) for party in self._context.feature_parties}

    def _decode_bodies(self, bodies: Mapping[PartyName, bytes | memoryview], rows: Rows) -> dict[PartyName, Symbols]:
        """What each party sent of these rows; under secure sum all of one shape, that of the sum."""
        streams = self._uplinks if not self._summed else dict.fromkeys(bodies, next(iter(self._uplinks.values())))
        shapes = {p: streams[p].message_shape(self._owned(p, rows).owners) for p in bodies}
        return {p: self._context.decode(body, p, shapes[p]) for p, body in bodies.items()}

    def _owned(self, party: PartyName, rows: Rows) -> OwnedRows:
        """As the party sees these rows."""
        return self._context.owners(party).select(rows)

    def _count_values(self, rows: Rows, widths: Mapping[PartyName, int]) -> int:
        """Of the embeddings of these rows, at all feature parties."""
        return sum(len(self._owned(p, rows).owners) * widths[p] for p in self._context.feature_parties)

    def compare_surrogates(self, round: Round) -> None:
        """Stops the run where a party's end of its stream holds something else than ours."""
        for party, uplink in {} if self._summed else self._uplinks.items():
            if uplink.digest() is not None:
                body = self._context.receive(party, Kind.SURROGATE_DIGEST, round)
                uplink.verify(int.from_bytes(body[:9], "little"), round)  # a ninth byte is one too many
