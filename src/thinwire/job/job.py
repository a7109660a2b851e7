"""The description of a run, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from thinwire.conversations.evaluation import evaluating
from thinwire.errors import BadInput, BadParameter, IncompatibleRecipe
from thinwire.job.init_from import InheritedWeights, InitFrom
from thinwire.job.privacy_plan import PrivacyPlan, is_noisy
from thinwire.models.fusion import check_fusion
from thinwire.models.metrics import metric
from thinwire.models.optimizers import SGD, OptimizerSpec
from thinwire.party.batches import Batches
from thinwire.party.parties import FeatureParty, LabelParty
from thinwire.privacy import Labels
from thinwire.privacy.accounting import Budget, Parties
from thinwire.privacy.dp_bottom import (
    DPBottom,
    Frozen,
    TrainedOnRawRows,
    Training,
    require_row_gradients,
    require_separate_rows,
)
from thinwire.recipe import Recipe
from thinwire.streams import Storage
from thinwire.transport.link import Link
from thinwire.types import PartyName
from thinwire.wire.entropy import Effort, check_effort

__all__ = ["Job", "embedding_width"]


@dataclass(eq=False)
class Job:
    """Everything a run needs. `train` uses exactly the modules it is given, with the weights they have."""

    parties: Sequence[FeatureParty]
    label_party: LabelParty
    recipe: Recipe
    optimizer: OptimizerSpec = field(default_factory=lambda: SGD(lr=0.1))
    batch_size: int | None = None  # None: all rows
    batches: str = "derived"  # by every party from the seed; or "announced" by the label party
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
    encryption_key: str | Path | None = None  # a key file: run folders are encrypted with it
    training: Training = TrainedOnRawRows()  # of the bottom models; or Frozen(), DPBottom(clip, noise_multiplier)
    budget: Budget | None = None  # of privacy: no round is begun that would exceed it
    memories: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # optimisers', from an earlier run
    begun_from: Mapping[str, Any] = field(default_factory=dict)  # what `start_from` took over, for the record
    noise_secret: bytes | None = None  # for tests: repeatable privacy noise protects nobody

    def __post_init__(self) -> None:
        self.parties = list(self.parties)
        self._check_types()
        names = [party.name for party in self.parties] + [self.label_party.name]
        if not self.parties:
            raise BadInput("a job needs one feature party at least")
        if len(set(names)) != len(names):
            raise BadInput(f"every party needs a name of its own, got {', '.join(names)}")
        modules = [party.bottom for party in self.parties] + [self.label_party.top]
        if len({id(module) for module in modules}) != len(modules):
            raise BadInput("two parties share one module; give each a model of its own")
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
        self.batching()

    def _check_types(self) -> None:
        kinds: list[tuple[str, type | tuple[type, ...], str]] = [
            ("recipe", Recipe, "a Recipe, as tw.methods gives"),
            ("optimizer", OptimizerSpec, "tw.SGD, tw.Adam or tw.AdaGrad"),
            ("link", (Link, type(None)), "a tw.Link or None"),
            ("label_party", LabelParty, "a tw.LabelParty"),
            (
                "training",
                (TrainedOnRawRows, Frozen, DPBottom),
                "tw.privacy.TrainedOnRawRows(), Frozen() or DPBottom(clip, noise_multiplier)",
            ),
            ("budget", (Budget, type(None)), "a tw.privacy.Budget(epsilon, delta) or None"),
        ]
        for name, kind, wanted in kinds:
            if not isinstance(getattr(self, name), kind):
                raise BadParameter(f"{name} must be {wanted}, got {getattr(self, name)!r}")
        for name in ("batch_size", "eval_every", "seed"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise BadParameter(f"{name} must be a whole number, got {value!r}")
        if isinstance(self.epochs, bool) or not isinstance(self.epochs, (int, float)) or not isfinite(self.epochs):
            raise BadParameter(f"epochs must be a number, got {self.epochs!r}")
        for party in self.parties:
            if not isinstance(party, FeatureParty):
                raise BadParameter(f"parties must be tw.FeatureParty, got {type(party).__name__}")
        if self.target is not None and not (len(self.target) == 2 and isinstance(self.target[1], (int, float))):
            raise BadParameter(f"target must be a pair such as ('accuracy', 0.9), got {self.target!r}")
        try:
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError, TypeError) as error:
            raise BadParameter(
                f"device {self.device!r} is not to be had here: {str(error).splitlines()[0]}"
            ) from None

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

    def modules(self) -> dict[str, nn.Module]:
        """Every model by the name of its file: bottom models by party, the top model as "top"."""
        found: dict[str, nn.Module] = {party.name: party.bottom for party in self.parties}
        if self.label_party.bottom is not None:
            found[self.label_party.name] = self.label_party.bottom
        return {**found, "top": self.label_party.top}

    def start_from(self, folder: str | Path, fresh: Sequence[str] = (), optimizers: bool = False) -> InheritedWeights:
        """Takes over the weights of an earlier run's folder, in place; says what was taken and what is fresh."""
        beginning = InitFrom(Path(folder), fresh, optimizers)
        beginning.require_no_guarantee(self.recipe, self.training)
        taken = beginning.take_over(self.modules(), self.check(), self.label_party.fusion)
        self.memories, self.begun_from = taken.memories, taken.recorded()
        return taken

    def batching(self) -> Batches:
        if self.batches not in ("derived", "announced"):
            raise BadParameter(f"batches must be 'derived' or 'announced', got {self.batches!r}")
        return Batches(self.rows, self.batch_size, self.epochs, self.seed, self.batches == "announced")

    def check(self) -> dict[PartyName, int]:
        """Refuses what cannot run, before anything starts; gives the width of each party's embedding."""
        fusion = self.label_party.fusion
        self.recipe.check(len(self.parties), fusion, self.batches)
        self._check_names()
        bottoms = [(party.name, party.bottom, party.features) for party in self.parties]
        if self.label_party.bottom is not None:
            bottoms.append((self.label_party.name, self.label_party.bottom, self.label_party.features))
        widths = {
            name: embedding_width(f"party {name!r}: the bottom model", bottom, features)
            for name, bottom, features in bottoms
        }
        check_fusion(fusion, list(widths.values()))
        self._check_top(widths)
        self._check_batch_norm()
        for party in self.parties:
            self.check_separate_rows(f"party {party.name!r}: the bottom model", party, widths[party.name])
        self._check_guarantee(widths)
        return widths

    def _check_names(self) -> None:
        for name, module in self.modules().items():
            if "_orig_mod" in dict(module.named_children()):
                raise BadParameter(
                    f"{name}: the model is wrapped by torch.compile, and its weights would be saved under names that "
                    "the model itself does not know; call model.compile() and give the model"
                )

    def check_separate_rows(self, where: str, party: FeatureParty, width: int) -> None:
        """Where a guarantee is made for single rows, each must be computed by itself."""
        if not is_noisy(self.recipe) and not isinstance(self.training, DPBottom):
            return
        looked_at = () if party.preparation is None else party.preparation.looked_at
        if looked_at:
            raise IncompatibleRecipe(
                f"party {party.name!r}: column {looked_at[0]!r} is prepared by what all rows hold, which a guarantee "
                "for single rows does not cover; say in prepare.known what is public about it, such as its range, or "
                "leave it out"
            )
        like = next(party.bottom.parameters(), party.features)
        few = party.features[:3].to(like.device)
        require_separate_rows(where, party.bottom, few)
        if isinstance(self.training, DPBottom):
            require_row_gradients(where, self.training, party.bottom, few, width)

    def _check_guarantee(self, widths: Mapping[PartyName, int]) -> None:
        """What shared labels add: everyone computes with the top model, and the label party's embedding travels."""
        if self.recipe.labels is not Labels.SHARED:
            return
        if isinstance(self.training, DPBottom):
            fused = sum(widths.values()) if self.label_party.fusion == "concat" else next(iter(widths.values()))
            like = next(self.label_party.top.parameters(), torch.zeros(1))
            rng = torch.Generator().manual_seed(0)
            few = torch.randn(3, fused, generator=rng).to(like)
            require_separate_rows(
                "the top model, through which DPBottom's derivatives come,", self.label_party.top, few
            )
        if is_noisy(self.recipe) and self.label_party.features is not None:
            raise IncompatibleRecipe(
                f"{self.recipe.uplink.compressor} protects inside a sum, and with shared labels the label party's "
                "own embedding travels by itself; use labels='private', or a label party without features"
            )

    def privacy_plan(self, widths: Mapping[PartyName, int]) -> PrivacyPlan:
        holds = self.label_party.features is not None
        parties = Parties(len(self.parties), holds)
        return PrivacyPlan(self.recipe, self.training, self.budget, widths[self.parties[0].name], parties)

    def limited_batching(self, widths: Mapping[PartyName, int]) -> Batches:
        """The rounds that the privacy budget allows; all of them where there is none."""
        batches = self.batching()
        tests = 0 if self.label_party.test_labels is None else len(self.label_party.test_labels)
        plan = self.privacy_plan(widths)
        plan.ledger(self.parties[0].name, 1)  # refuses a budget that nothing bounds
        return plan.limited(batches, self.eval_every or batches.rounds_per_epoch, tests)

    def _check_batch_norm(self) -> None:
        rounds = self.batching()
        last = len(rounds.rows(rounds.rounds_per_epoch - 1))
        modules = [(party.name, party.bottom) for party in self.parties] + [
            (self.label_party.name, self.label_party.top)
        ]
        for name, module in modules:
            if last == 1 and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
                raise BadInput(
                    f"party {name!r}: batch normalisation cannot train on the last batch, which has one row; "
                    f"use another batch_size than {self.batch_size}"
                )

    def digests(self) -> dict[str, str]:
        """What must be the same for a run to be resumed, each as a digest or as text; it may go on for longer."""
        data = xxhash.xxh3_64()
        everyone: list[FeatureParty | LabelParty] = [*self.parties, self.label_party]
        for party in everyone:
            for table in (party.features, party.test_features, getattr(party, "labels", None)):
                if table is not None:
                    data.update(str(table.shape).encode())
                    data.update(table.contiguous().cpu().flatten().view(torch.uint8).numpy().data)
        return {
            "recipe": self.recipe.digest(),
            "seed": str(self.seed),
            "batches": f"{self.batch_size} {self.batches} {self.eval_every}",
            "optimizers": " ".join(repr(spec) for spec in (self.optimizer, *(p.optimizer for p in everyone))),
            "link": repr(self.link),
            "privacy": f"{self.training} {self.budget}",
            "data": data.hexdigest(),
        }

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


def embedding_width(where: str, bottom: nn.Module, features: Tensor) -> int:
    """The width of a bottom model's embedding; `where` names the model in a refusal."""
    like = next(bottom.parameters(), features)
    try:
        with evaluating(bottom):
            h = bottom(features[:2].to(like.device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(f"{where} does not take features of shape {list(features.shape[1:])}: {error}") from error
    if not isinstance(h, Tensor) or h.dim() != 2 or len(h) != len(features[:2]):
        shape = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise BadInput(f"{where} must give [rows, width], got {shape}; end it with Flatten")
    return int(h.shape[1])
