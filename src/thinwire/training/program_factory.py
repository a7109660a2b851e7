"""From described parties to programs: the same for parties in one process and for one party on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from thinwire.base.seeds import derive_seed
from thinwire.base.types import PartyName, Round
from thinwire.engine.channel.base import TimedChannel
from thinwire.engine.compress import Keystream
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.privacy import Labels, NoiseKey, PartyIdentity, SecureSum
from thinwire.engine.privacy.accounting.exposure import Frozen, TrainedOnRawRows
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.programs.feature_program import FeatureProgram
from thinwire.engine.programs.label_program import EvaluationOutputs, LabelProgram
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.programs.program import Batches, Control
from thinwire.engine.protocols import derivatives, representations
from thinwire.engine.protocols.bottom import Bottom, Learner, NoOptimizer, OwnBottom, PrivateLearner
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.label_side import Guard, LabelSide
from thinwire.engine.protocols.sealing import Sealing, Spending
from thinwire.engine.recipe import Recipe
from thinwire.job.settings import RunSettings
from thinwire.training.ranks.parallel_bottom import GroupBottom, RankModel
from thinwire.training.ranks.rank_share import RankGroup


def derive_run_number(recipe: Recipe, seed: int, feature_parties: tuple[PartyName, ...]) -> int:
    """What frames carry to tell runs apart; it follows from what all parties agreed on."""
    return derive_seed(recipe.digest(), seed, *feature_parties)


@dataclass(frozen=True)
class PartySecrets:
    """What only this feature party has: who it is, its secret, and its privacy ledger."""

    identity: PartyIdentity
    secret: bytes = field(repr=False)
    spending: Spending
    nonce: str = ""  # of the run: a signed key serves no other


@dataclass(frozen=True)
class ProgramFactory:
    """What every program of a run is built from."""

    feature_parties: tuple[PartyName, ...]  # in the job's order
    label_party: PartyName
    recipe: Recipe
    optimizer: OptimizerSpec
    settings: RunSettings
    batches: Batches
    rows: int
    memories: Mapping[str, Mapping[str, Tensor]] = field(
        default_factory=dict
    )  # of optimisers, by model: to begin with
    group: RankGroup | None = None  # of processes, where a feature party has several; this is its first

    @cached_property
    def run(self) -> int:
        return derive_run_number(self.recipe, self.settings.seed, self.feature_parties)

    def context(self, me: PartyName, channel: TimedChannel) -> PartyContext:
        return PartyContext(
            me=me,
            label_party=self.label_party,
            feature_parties=self.feature_parties,
            channel=channel,
            recipe=self.recipe,
            rows=self.rows,
            seed=self.settings.seed,
            run=self.run,
            effort=self.settings.effort,
            storage=self.settings.storage,
            stopwatch=channel.stopwatch,
        )

    def side(self, party: LabelParty) -> LabelSide:
        bottom = None
        if party.bottom is not None:
            bottom = self._learner(party.name, "bottom", party.bottom, party.optimizer)
        return LabelSide(
            top=self._learner(party.name, "top", party.top, party.optimizer),
            labels=party.labels.to(self.settings.device),
            loss=party.loss,
            fusion=party.fusion,
            bottom=bottom,
            features=self._moved(party.features),
        )

    def feature_program(
        self,
        party: FeatureParty,
        context: PartyContext,
        widths: Mapping[PartyName, int],
        control: Control,
        *,
        own: PartySecrets,
        side: LabelSide | None = None,
    ) -> FeatureProgram:
        """A feature party's program; under shared labels `side` is what it knows of the label party's."""
        sealing = None
        if isinstance(self.recipe.aggregation, SecureSum):
            sealing = Sealing(context, self.recipe.aggregation, own.identity, own.secret, own.spending, own.nonce)
        bottom = self._bottom(party, own, widths[party.name])
        end: Any
        if side is not None:
            end = representations.RepresentationFeatureEnd(context, bottom, side, widths, sealing)
        else:
            end = derivatives.DerivativeFeatureEnd(context, bottom, widths[party.name], sealing)
        return FeatureProgram(
            context,
            end,
            bottom,
            self.batches,
            eval_every=self.settings.evaluation_interval(self.batches),
            control=control,
            sealing=sealing,
        )

    def label_program(
        self,
        party: LabelParty,
        side: LabelSide,
        context: PartyContext,
        widths: Mapping[PartyName, int],
        control: Control,
        *,
        secret: bytes,
        at_rest: Callable[[EvaluationOutputs], bool],
        on_round: Callable[[int], None] | None = None,
    ) -> LabelProgram:
        """The label party's program; `secret` is its own, behind the noise of a defence."""
        end: Any
        if self.recipe.labels is Labels.SHARED:
            end = representations.RepresentationLabelEnd(context, side, widths)
        else:
            guard = Guard(self.recipe.defence, NoiseKey(secret), self.run, party.name, party.fusion)
            end = derivatives.DerivativeLabelEnd(context, side, widths, guard)
        test = None
        if party.test_labels is not None:
            test = (party.test_labels, self._moved(party.test_features))
        return LabelProgram(
            context,
            end,
            side,
            self.batches,
            test=test,
            eval_every=self.settings.evaluation_interval(self.batches),
            control=control,
            at_evaluation=at_rest,
            on_round=on_round,
        )

    def _bottom(self, party: FeatureParty, own: PartySecrets, width: int) -> Bottom:
        learner = self._bottom_learner(party, own)
        features, tests = party.features.to(self.settings.device), self._moved(party.test_features)
        if self.group is None:
            return OwnBottom(learner, features, tests)
        part = RankModel(learner, 0, self.group.shares, features, tests)
        return GroupBottom(self.group.ranks, part, self.batches, width, self.group.test_shares)

    def _bottom_learner(self, party: FeatureParty, own: PartySecrets) -> Learner:
        name, spec = f"{party.name}/bottom", party.optimizer or self.optimizer
        match self.settings.training:
            case TrainedOnRawRows():
                return self._learner(party.name, "bottom", party.bottom, party.optimizer)
            case Frozen():
                party.bottom.requires_grad_(False).to(self.settings.device).eval()  # running averages are frozen too
                return Learner(name, party.bottom, NoOptimizer(), self.settings.seed, self.batches.rounds)
            case DPBottom() as dp:
                party.bottom.to(self.settings.device).train()
                noise, run = NoiseKey(own.secret), self.run

                def drawn(round: Round, step: int) -> Keystream:
                    return noise.for_round(run, round, step, f"{party.name}/gradient")

                return PrivateLearner(
                    name,
                    party.bottom,
                    spec,
                    self.settings.seed,
                    self.batches.rounds,
                    dp=dp,
                    noise=drawn,
                    charge=own.spending.step,
                )

    def _learner(self, party: PartyName, part: str, module: nn.Module, spec: OptimizerSpec | None) -> Learner:
        module.to(self.settings.device).train()
        learner = Learner(f"{party}/{part}", module, spec or self.optimizer, self.settings.seed, self.batches.rounds)
        learner.remember(self.memories.get("top" if part == "top" else party, {}))
        return learner

    def _moved(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(self.settings.device)
