"""From described parties to programs: the same for parties in one process and for one party on its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.base.seeds import derive_seed
from thinwire.base.types import PartyName, Round
from thinwire.engine.channel.base import TimedChannel
from thinwire.engine.compress import Keystream
from thinwire.engine.models.encoders import Encoder
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.models.regression import Linear, RegressionTop, SubspaceFit
from thinwire.engine.models.scorecard import Scorecard
from thinwire.engine.privacy import Labels, NoiseKey
from thinwire.engine.privacy.accounting.ledger import Frozen
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.programs.program import Batches, Control, FeatureProgram, LabelProgram, Observers
from thinwire.engine.protocols import codes, derivatives, representations, update_first
from thinwire.engine.protocols.bottom import (
    Bottom,
    EncoderBottom,
    FrozenLearner,
    FrozenTrees,
    Learner,
    OwnBottom,
    OwnRows,
    PrivateSteps,
    RegressionBottom,
    ScorecardBottom,
    TreesBottom,
)
from thinwire.engine.protocols.context import Groups, PartyContext, add_prefix
from thinwire.engine.protocols.ends import Guard, LabelSide
from thinwire.engine.protocols.evaluation import ColumnTable, HeldOut, begin_training
from thinwire.engine.protocols.sealing import ReleaseMeans, Spending, open_sealing
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import OneWay
from thinwire.job.settings import RunSettings
from thinwire.training.importance import list_columns
from thinwire.training.ranks.batch_norm import share_batch_norm
from thinwire.training.ranks.rank_share import RankGroup, open_group_bottom, open_sharded_bottom
from thinwire.training.ranks.sharded_learner import ShardedLearner


def derive_run_number(recipe: Recipe, seed: int, feature_parties: tuple[PartyName, ...]) -> int:
    """What frames carry to tell runs apart; it follows from what all parties agreed on."""
    return derive_seed(recipe.digest(), seed, *feature_parties)


@dataclass(frozen=True)
class PartySecrets(ReleaseMeans):
    """What only this feature party has: who it is, its secret, and its privacy ledger, gradient steps included."""

    spending: Spending


@dataclass(frozen=True, slots=True)
class ProtocolEnds:
    """Both ends of a round, for labels that stay and labels that everyone has."""

    private_feature: type[derivatives.DerivativeFeatureEnd]
    private_label: type[derivatives.DerivativeLabelEnd]
    shared_feature: type[representations.RepresentationFeatureEnd]
    shared_label: type[representations.RepresentationLabelEnd]


_EXCHANGE_FIRST = ProtocolEnds(
    derivatives.DerivativeFeatureEnd,
    derivatives.DerivativeLabelEnd,
    representations.RepresentationFeatureEnd,
    representations.RepresentationLabelEnd,
)
_UPDATE_FIRST = ProtocolEnds(
    update_first.UpdateFirstDerivativeFeatureEnd,
    update_first.UpdateFirstDerivativeLabelEnd,
    update_first.UpdateFirstRepresentationFeatureEnd,
    update_first.UpdateFirstRepresentationLabelEnd,
)


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
    group: RankGroup | None = None  # of processes, where the party has several; this is its first
    owners: Mapping[PartyName, Groups] = field(default_factory=dict)  # of rows with an owner in common, by party

    @cached_property
    def run(self) -> int:
        return derive_run_number(self.recipe, self.settings.seed, self.feature_parties)

    @property
    def is_one_way(self) -> bool:
        """Do embeddings go up and nothing come back?"""
        return isinstance(self.recipe.schedule, OneWay)

    @property
    def _ends(self) -> ProtocolEnds:
        return _UPDATE_FIRST if self.recipe.order == "update_first" else _EXCHANGE_FIRST

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
            groups=self.owners,
        )

    def side(self, party: LabelParty) -> LabelSide:
        bottom = None
        if party.bottom is not None:
            bottom = self._own_bottom(party, party.bottom)
        regression = None
        if isinstance(party.top, RegressionTop):
            columns = len(self.feature_parties) + (bottom is not None)
            regression = SubspaceFit(party.top.to(self.settings.device), columns, self.rows)
        return LabelSide(
            top=self._learner(party.name, "top", party.top, party.optimizer),
            labels=party.labels.to(self.settings.device),
            loss=party.loss,
            fusion=party.fusion,
            bottom=bottom,
            weights=self._moved(party.sample_weight),
            regression=regression,
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
        sealing = open_sealing(context, own)
        bottom = self._bottom(party, own)
        end: Any
        if side is not None:
            end = self._ends.shared_feature(context, bottom, side, widths, sealing)
        else:
            kind = codes.CodesFeatureEnd if self.is_one_way else self._ends.private_feature
            end = kind(context, bottom, widths[party.name], sealing)
        if sealing is None and isinstance(self.settings.training, DPBottom):
            end.save_with("spending", own.spending)
        return FeatureProgram(
            context,
            end,
            bottom,
            self.batches,
            held_out=party.held_out,
            eval_every=self.settings.evaluation_interval(self.batches),
            control=control,
            columns=self._columns(party) if self.settings.column_importance else None,
        )

    def _columns(self, party: FeatureParty) -> ColumnTable:
        """None of a party on several processes, where nobody holds all rows."""
        if self.group is not None:
            return ColumnTable(party.features, {})
        return ColumnTable(party.test_features.to(self.settings.device), list_columns(party))

    def label_program(
        self,
        party: LabelParty,
        side: LabelSide,
        context: PartyContext,
        widths: Mapping[PartyName, int],
        control: Control,
        *,
        secret: bytes,
        observers: Observers,
    ) -> LabelProgram:
        """The label party's program; `secret` is its own, behind the noise of a defence."""
        end: Any
        if self.recipe.labels is Labels.SHARED:
            end = self._ends.shared_label(context, side, widths)
        elif self.is_one_way:
            end = codes.CodesLabelEnd(context, side, widths, party.held_out.get(HeldOut.VALIDATION))
        else:
            guard = Guard(self.recipe.defence, NoiseKey(secret), self.run, party.name, party.fusion)
            end = self._ends.private_label(context, side, widths, guard)
        return LabelProgram(
            context,
            end,
            side,
            self.batches,
            widths=widths,
            held_out=party.held_out,
            eval_every=self.settings.evaluation_interval(self.batches),
            control=control,
            observers=observers,
        )

    def _own_bottom(self, party: FeatureParty | LabelParty, model: nn.Module) -> Bottom:
        """Of a bottom model that learns from its owner's rows as they are, or not at all."""
        if isinstance(model, BoostedTrees | Encoder | Linear):
            return self._fitted_bottom(party, model)
        if self.group is not None and self.group.ranks.shards and not isinstance(self.settings.training, Frozen):
            return self._sharded_bottom(self.group, party, model)
        return self._network_bottom(party, self._own_learner(party.name, self._share(model), party.optimizer))

    def _sharded_bottom(self, group: RankGroup, party: FeatureParty | LabelParty, model: nn.Module) -> Bottom:
        device, name = self.settings.device, f"{party.name}/bottom"
        features, held_out = party.features.to(device), self._held_out_features(party)

        def learn(module: nn.Module) -> ShardedLearner:
            spec, seed = party.optimizer or self.optimizer, self.settings.seed
            return ShardedLearner(name, begin_training(module.to(device)), spec, seed, self.batches.rounds)

        share = group.select_first(features, held_out)
        bottom = open_sharded_bottom(group, learn, model, self.batches, share)
        bottom.load(add_prefix("module", model.state_dict()) | dict(self.memories.get(party.name, {})))
        return bottom

    def _fitted_bottom(self, party: FeatureParty | LabelParty, model: nn.Module) -> Bottom:
        """In this process alone."""
        features, held_out = party.features.to(self.settings.device), self._held_out_features(party)
        if isinstance(model, BoostedTrees):
            boosted = FrozenTrees if isinstance(self.settings.training, Frozen) else TreesBottom
            seed = derive_seed(self.settings.seed, party.name, "trees")
            return boosted(model, features, held_out, len(self.feature_parties) + 1, seed)
        if isinstance(model, Encoder):
            frozen = FrozenLearner(f"{party.name}/bottom", model.to(self.settings.device), self.settings.seed, 1)
            return EncoderBottom(frozen, features, held_out, self._own_rows(party))
        learner = Learner(f"{party.name}/bottom", model.to(self.settings.device), None, self.settings.seed, 1)
        kind = ScorecardBottom if isinstance(model, Scorecard) else RegressionBottom
        return kind(learner, features, held_out)

    def _bottom(self, party: FeatureParty, own: PartySecrets) -> Bottom:
        dp = self.settings.training
        if isinstance(party.bottom, BoostedTrees | Linear | Encoder) or not isinstance(dp, DPBottom):
            return self._own_bottom(party, party.bottom)
        return self._network_bottom(party, self._private_learner(party, own, dp))

    def _network_bottom(self, party: FeatureParty | LabelParty, learner: Learner) -> Bottom:
        features, held_out = party.features.to(self.settings.device), self._held_out_features(party)
        if self.group is None:
            return OwnBottom(learner, features, held_out, self._own_rows(party))
        return open_group_bottom(self.group, learner, self.batches, self.group.select_first(features, held_out))

    def _share(self, model: nn.Module) -> nn.Module:
        """Where the party has several processes, they normalise a batch together."""
        return model if self.group is None else share_batch_norm(model, self.group.ranks)

    def _own_rows(self, party: FeatureParty | LabelParty) -> OwnRows:
        rows, seed = party.all_rows.to(self.settings.device), derive_seed(self.settings.seed, party.name, "own rows")
        return OwnRows(rows, seed, self.settings.pretraining)

    def _private_learner(self, party: FeatureParty, own: PartySecrets, dp: DPBottom) -> Learner:
        begin_training(party.bottom.to(self.settings.device))
        noise, run = NoiseKey(own.secret), self.run

        def begin(round: Round, step: int, rows: Tensor, digest: str) -> Keystream:
            draw = noise.for_round(run, round, step, f"{party.name}/charge {digest}").words(2).tobytes().hex()
            own.spending.step(round, step, rows, draw)
            return noise.for_round(run, round, step, f"{party.name}/gradient {digest}")

        name, spec, rounds = f"{party.name}/bottom", party.optimizer or self.optimizer, self.batches.rounds
        return Learner(name, party.bottom, spec, self.settings.seed, rounds, PrivateSteps(dp, begin))

    def _own_learner(self, party: PartyName, module: nn.Module, spec: OptimizerSpec | None) -> Learner:
        """Of a bottom model that learns from its owner's rows as they are, or not at all."""
        if not isinstance(self.settings.training, Frozen):
            return self._learner(party, "bottom", module, spec)
        moved = module.to(self.settings.device)
        return FrozenLearner(f"{party}/bottom", moved, self.settings.seed, self.batches.rounds)

    def _learner(self, party: PartyName, part: str, module: nn.Module, spec: OptimizerSpec | None) -> Learner:
        begin_training(module.to(self.settings.device))
        learner = Learner(f"{party}/{part}", module, spec or self.optimizer, self.settings.seed, self.batches.rounds)
        learner.remember(self.memories.get("top" if part == "top" else party, {}))
        return learner

    def _held_out_features(self, party: FeatureParty | LabelParty) -> dict[HeldOut, Tensor]:
        tables = {which: getattr(party, f"{which}_features") for which in HeldOut}
        return {which: table.to(self.settings.device) for which, table in tables.items() if table is not None}

    def _moved(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(self.settings.device)


_log = logging.getLogger(__name__)


@contextmanager
def keep_threads(saved: int | None) -> Iterator[None]:
    """As many as the run had when it was saved, whatever this process was given; older checkpoints do not say."""
    given = torch.get_num_threads()
    if saved is None or saved == given:
        yield
        return
    _log.warning("using %d threads, as before, instead of %d, so that the run resumes bit for bit", saved, given)
    torch.set_num_threads(saved)
    try:
        yield
    finally:
        torch.set_num_threads(given)
