"""The description of a run, checked as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from thinwire.conversations.evaluation import evaluating
from thinwire.errors import BadInput, BadParameter
from thinwire.models.fusion import check_fusion
from thinwire.models.metrics import metric
from thinwire.models.optimizers import SGD, OptimizerSpec
from thinwire.party.batches import Batches
from thinwire.party.description import FeatureParty, LabelParty
from thinwire.recipe import Recipe
from thinwire.surrogates import Storage
from thinwire.transport.link import Link
from thinwire.types import PartyName
from thinwire.wire.entropy import Effort, check_effort

__all__ = ["Job"]


@dataclass(eq=False)
class Job:
    """Everything a run needs. `train` uses exactly the modules it is given, with the weights they have."""

    parties: Sequence[FeatureParty]
    label_party: LabelParty
    recipe: Recipe
    optimizer: OptimizerSpec = field(default_factory=lambda: SGD(lr=0.1))
    batch_size: int | None = None  # None: all rows
    batches_are: str = "derived"  # by every party from the seed; or "announced" by the label party
    epochs: float = 10
    seed: int = 0
    eval_every: int | None = None  # in rounds; once an epoch unless given
    metrics: Sequence[str] = ("accuracy",)
    link: Link | None = None  # None: no clock
    target: tuple[str, float] | None = None
    stop: bool = True  # at the target
    byte_budget: int | None = None  # stop at the first evaluation at or past it
    link_seconds_budget: float | None = None
    diagnostics: bool = True  # gradient norm and distortion at every evaluation
    effort: Effort = "small"
    device: str = "cpu"
    storage: Storage = field(default_factory=Storage)
    noise_secret: bytes | None = None  # for tests: repeatable privacy noise protects nobody

    def __post_init__(self) -> None:
        self.parties = list(self.parties)
        names = [party.name for party in self.parties] + [self.label_party.name]
        if not self.parties:
            raise BadInput("a job needs one feature party at least")
        if len(set(names)) != len(names):
            raise BadInput(f"every party needs a name of its own, got {', '.join(names)}")
        check_effort(self.effort)
        self._check_rows()
        for name in self.metrics:
            metric(name)
        if self.target is not None and self.target[0] not in (*self.metrics, "loss"):
            raise BadParameter(f"target {self.target[0]!r} is not among the metrics {', '.join(self.metrics)}, loss")
        if self.eval_every is not None and self.eval_every < 1:
            raise BadParameter(f"eval_every must be 1 or more, got {self.eval_every}")
        if self.link_seconds_budget is not None and self.link is None:
            raise BadParameter("link_seconds_budget needs a link")
        self.batches()

    def _check_rows(self) -> None:
        rows = len(self.label_party.labels)
        tests = None if self.label_party.test_labels is None else len(self.label_party.test_labels)
        everyone: list[FeatureParty | LabelParty] = [*self.parties, self.label_party]
        for party in everyone:
            if party.features is not None and len(party.features) != rows:
                raise BadInput(
                    f"party {party.name!r} has {len(party.features)} rows, {self.label_party.name!r} has {rows} "
                    "labels; all parties must hold the same rows in the same order"
                )
            if party.features is None:
                continue
            here = None if party.test_features is None else len(party.test_features)
            if here != tests:
                raise BadInput(
                    f"party {party.name!r} has {here or 'no'} test rows, there are {tests or 'no'} test labels"
                )

    @property
    def rows(self) -> int:
        return len(self.label_party.labels)

    def batches(self) -> Batches:
        if self.batches_are not in ("derived", "announced"):
            raise BadParameter(f"batches_are must be 'derived' or 'announced', got {self.batches_are!r}")
        return Batches(self.rows, self.batch_size, self.epochs, self.seed, self.batches_are == "announced")

    def check(self) -> dict[PartyName, int]:
        """Refuses what cannot run, before anything starts; gives the width of each party's embedding."""
        fusion = self.label_party.fusion
        own = 0 if self.label_party.bottom is None else 1
        self.recipe.check(len(self.parties), fusion)
        widths = {party.name: _width(party.name, party.bottom, party.features) for party in self.parties}
        if own and self.label_party.bottom is not None:
            name = self.label_party.name
            widths[name] = _width(name, self.label_party.bottom, self.label_party.features)
        check_fusion(fusion, list(widths.values()))
        self._check_top(widths)
        return widths

    def _check_top(self, widths: dict[PartyName, int]) -> None:
        fused = sum(widths.values()) if self.label_party.fusion == "concat" else next(iter(widths.values()))
        top = self.label_party.top
        like = next(top.parameters(), torch.zeros(1))
        rows = slice(0, min(2, self.rows))
        try:
            with evaluating(top):
                output = top(torch.zeros(min(2, self.rows), fused, dtype=like.dtype, device=like.device))
                losses = self.label_party.loss(output, self.label_party.labels[rows].to(output.device))
        except BadInput:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadInput(
                f"party {self.label_party.name!r}: the top model and loss do not take embeddings of width {fused}: "
                f"{error}"
            ) from error
        if losses.shape != (min(2, self.rows),):
            raise BadInput(f"party {self.label_party.name!r}: the loss must give one value a row, got {losses.shape}")


def _width(name: PartyName, bottom: nn.Module, features: Tensor) -> int:
    like = next(bottom.parameters(), features)
    try:
        with evaluating(bottom):
            h = bottom(features[:2].to(like.device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"party {name!r}: the bottom model does not take features of shape {list(features.shape[1:])}: {error}"
        ) from error
    if not isinstance(h, Tensor) or h.dim() != 2 or len(h) != len(features[:2]):
        shape = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise BadInput(f"party {name!r}: the bottom model must give [rows, width], got {shape}; end it with Flatten")
    return int(h.shape[1])
