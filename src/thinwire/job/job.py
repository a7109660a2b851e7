"""The description of a run, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from thinwire.base.errors import BadInput, BadParameter
from thinwire.base.types import PartyName
from thinwire.engine.channel.link import Link
from thinwire.engine.models.losses import name_loss
from thinwire.engine.models.networks import InteractionTop
from thinwire.engine.models.optimizers import SGD, OptimizerSpec
from thinwire.engine.models.pretraining import Pretraining
from thinwire.engine.models.regression import RegressionTop
from thinwire.engine.privacy.accounting import (
    DEFAULT_DELTA,
    Budget,
    Parties,
    PrivacyLedger,
    compute_privacy_losses,
    list_conditions,
    list_limitations,
)
from thinwire.engine.privacy.accounting.ledger import TrainedOnRawRows
from thinwire.engine.privacy.accounting.renyi import require_delta
from thinwire.engine.privacy.dp_bottom import Training
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.programs.program import Batches
from thinwire.engine.protocols.context import Groups
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import Storage, blocks
from thinwire.engine.wire.entropy import Effort
from thinwire.job.checks import (
    check_batch_norm,
    check_column_importance,
    check_early_stopping,
    check_feature_party,
    check_label_party,
    check_module,
    check_names,
    check_regression_parties,
    check_rows,
    find_embedding_width,
    require_held_out_rows,
)
from thinwire.job.disclosure import Participants
from thinwire.job.init_from import InheritedWeights, InitFrom
from thinwire.job.messages import at
from thinwire.job.privacy_plan import PrivacyPlan
from thinwire.job.settings import RunSettings

_KINDS: list[tuple[str, type | tuple[type, ...], str]] = [
    ("recipe", Recipe, "a Recipe, as tw.methods gives"),
    ("optimizer", OptimizerSpec, "tw.SGD, tw.Adam or tw.AdaGrad"),
    ("link", (Link, type(None)), "a tw.Link or None"),
    ("label_party", LabelParty, "a tw.LabelParty"),
]


@dataclass(eq=False)
class Job:
    """Everything a run needs. `train` uses the given modules with their current weights.

    The fields from `batch_size` to `budget` are those of `RunSettings`, which says what each means.

    Args:
        parties: the feature parties, in the order in which their embeddings are fused.
        label_party: the one with the labels.
        recipe: the method, as `tw.methods` gives it.
        optimizer: of all parties that have none of their own.
        batch_size: rows of a round; None takes all.
        batches: "derived" by every party from the seed, or "announced" by the label party.
        epochs: passes over the training rows; need not be whole.
        seed: of batches, dither and dropout; never of privacy noise.
        eval_every: rounds between evaluations; one evaluation an epoch unless given.
        metrics: such as "accuracy", "auc", "f1"; the first one steers.
        link: a virtual clock for messages; None for no clock.
        target: metric and value at which to stop, on validation rows where there are any.
        stop: False goes on after the target.
        patience: evaluations without a better validation score before the run stops.
        deliver: the "best" model on validation rows, or the "last".
        byte_budget: stop at the first evaluation at or past so many bytes.
        link_seconds_budget: the same for the link's clock.
        diagnostics: gradient norm, distortion and training scores at every evaluation.
        baselines: train plain models on the joined table too, at the end.
        importance: of parties, and of columns that are at hand, at the end.
        column_importance: of feature parties' columns, by an exchange at the end.
        effort: "small" bodies, or "fast" ones.
        device: of all models, such as "cpu" or "cuda".
        storage: where surrogates live.
        encryption_key: a key file; run folders are encrypted with it.
        pretraining: of networks, each on its party's own rows, before the first round.
        training: of bottom models: on raw rows, frozen, or with differential privacy.
        budget: of privacy; no round begins that would exceed it.
        memories: optimisers' states from an earlier run.
        begun_from: what `start_from` took over, for the record.
        noise_secret: for tests; repeatable noise protects nobody.

    Raises:
        BadInput: parties whose rows, names or modules do not go together.
        BadParameter: a setting that no data could make right.

    Examples:
        >>> import torch
        >>> x, y = torch.rand(64, 4), torch.randint(0, 2, (64,))
        >>> job = tw.Job(
        ...     parties=[tw.FeatureParty("bank", features=x, bottom=torch.nn.Linear(4, 2))],
        ...     label_party=tw.LabelParty("shop", labels=y, top=torch.nn.Linear(2, 2)),
        ...     recipe=tw.methods.svfl(), epochs=1, batch_size=32,
        ... )
        >>> tw.train(job, callbacks=[]).summary()["rounds"]
        2
    """

    parties: Sequence[FeatureParty]
    label_party: LabelParty
    recipe: Recipe
    optimizer: OptimizerSpec = SGD(lr=0.1)
    batch_size: int | None = None
    batches: str = "derived"
    epochs: float = 10
    seed: int = 0
    eval_every: int | None = None
    metrics: Sequence[str] = ("accuracy",)
    link: Link | None = None  # None: no clock
    target: tuple[str, float] | None = None
    stop: bool = True
    patience: int | None = None
    deliver: str = "best"
    byte_budget: int | None = None
    link_seconds_budget: float | None = None
    diagnostics: bool = False
    baselines: bool = False
    importance: bool = False
    column_importance: bool = False
    effort: Effort = "small"
    device: str = "cpu"
    storage: Storage = field(default_factory=Storage)
    encryption_key: str | Path | None = None  # a key file: run folders are encrypted with it
    pretraining: Pretraining | None = None
    training: Training = TrainedOnRawRows()
    budget: Budget | None = None
    memories: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # optimisers', from an earlier run
    begun_from: Mapping[str, Any] = field(default_factory=dict)  # what `start_from` took over, for the record
    noise_secret: bytes | None = None  # for tests: repeatable privacy noise protects nobody
    _checked: tuple[Any, dict[PartyName, int]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.parties = list(self.parties)
        for name, kind, wanted in _KINDS:
            if not isinstance(getattr(self, name), kind):
                raise BadParameter(f"{name} must be {wanted}, got {getattr(self, name)!r}")
        for party in self.parties:
            if not isinstance(party, FeatureParty):
                raise BadParameter(f"parties must be tw.FeatureParty, got {type(party).__name__}")
        check_names([*self.names, self.label_party.name])
        modules = [party.bottom for party in self.parties] + [self.label_party.top]
        if len({id(module) for module in modules}) != len(modules):
            raise BadInput("two parties share one module; give each its own model")
        for one in self.everyone:
            check_rows(one, self.label_party)
        if self.link_seconds_budget is not None and self.link is None:
            raise BadParameter("link_seconds_budget needs a link")
        require_held_out_rows(self.settings, self.validation_rows, self.test_rows)
        self.divide_rows()  # by settings that are right

    def __repr__(self) -> str:
        label = self.label_party
        held = [f"{party.name} {list(party.features.shape)}" for party in self.everyone if party.features is not None]
        held.append(f"labels at {label.name} {list(label.labels.shape)}")
        settings = ", ".join(f"{name}={getattr(self, name)}" for name in ("batch_size", "epochs", "seed"))
        return f"Job({self.recipe.name}: {', '.join(held)}; {settings})"

    @property
    def settings(self) -> RunSettings:
        return RunSettings(**{one.name: getattr(self, one.name) for one in fields(RunSettings)})

    @property
    def names(self) -> tuple[PartyName, ...]:
        """Of the feature parties, in order."""
        return tuple(party.name for party in self.parties)

    @property
    def everyone(self) -> list[FeatureParty | LabelParty]:
        return [*self.parties, self.label_party]

    @property
    def roster(self) -> Participants:
        return Participants(
            self.label_party.name,
            self.names,
            self.label_party.features is not None,
            self.test_rows > 0,
            self.validation_rows > 0,
            self.column_importance,
            isinstance(self.label_party.top, RegressionTop),
            getattr(self.label_party.top, "points_to_double_odds", None),
            isinstance(self.label_party.top, InteractionTop),
            grouped={party.name: "group" for party in self.parties if party.group is not None},
        )

    @property
    def owners(self) -> dict[PartyName, Groups]:
        """Of the rows of parties with a group."""
        return {party.name: party.owners for party in self.parties if party.owners is not None}

    @property
    def rows(self) -> int:
        return len(self.label_party.labels)

    @property
    def validation_rows(self) -> int:
        return len(self.label_party.held_out.get(HeldOut.VALIDATION, ()))

    @property
    def test_rows(self) -> int:
        return len(self.label_party.held_out.get(HeldOut.TEST, ()))

    @property
    def all_rows(self) -> int:
        """Training, validation and test rows."""
        return self.rows + self.validation_rows + self.test_rows

    def modules(self) -> dict[str, nn.Module]:
        """Every model by the name of its file: bottom models by party, the top model as "top"."""
        found: dict[str, nn.Module] = {party.name: party.bottom for party in self.parties}
        if self.label_party.bottom is not None:
            found[self.label_party.name] = self.label_party.bottom
        return {**found, "top": self.label_party.top}

    def duplicate(self) -> Job:
        """The same job and tables, with modules of its own: training changes them in place."""
        found = copy(self)
        found.parties = [copy(party) for party in self.parties]
        found.label_party = copy(self.label_party)
        for party in found.everyone:
            party.bottom = deepcopy(party.bottom)
        found.label_party.top = deepcopy(self.label_party.top)
        return found

    def start_from(self, folder: str | Path, fresh: Sequence[str] = (), optimizers: bool = False) -> InheritedWeights:
        """Loads the weights of an earlier run, in place; reports what is reused and what is fresh."""
        earlier = InitFrom(Path(folder), fresh, optimizers)
        earlier.require_no_guarantee(self.recipe, self.training)
        prepared = {party.name: party.preparation for party in self.everyone}
        taken = earlier.take_over(self.modules(), self.check(), self.label_party.fusion, prepared)
        self.memories, self.begun_from = taken.memories, taken.to_record()
        return taken

    def divide_rows(self) -> Batches:
        return self.settings.divide_rows(self.rows)

    def check(self, known: Mapping[PartyName, int] | None = None, from_file: bool = False) -> dict[PartyName, int]:
        """Refuses jobs that cannot run, before anything starts; returns the width of each party's embedding.

        What was checked once is not checked again. Widths that are `known` are not measured; `from_file`: refusals
        name fields of the job file.
        """
        held = [part for party in self.everyone for part in (party.features, getattr(party, "labels", None))]
        key = (self.recipe, self.settings, *map(id, (*self.modules().values(), *held)))
        if self._checked is None or self._checked[0] != key:
            self._checked = (key, self._check(known or {}, from_file))
        return dict(self._checked[1])

    def _check(self, known: Mapping[PartyName, int], from_file: bool) -> dict[PartyName, int]:
        place = at if from_file else lambda _: nullcontext()
        settings, label = self.settings, self.label_party
        with place("recipe"):
            self.recipe.check(len(self.parties), label.fusion, self.batches)
        with place("job"):
            check_early_stopping(self.recipe, settings)
            check_column_importance(self.recipe, settings)
        for name, module in self.modules().items():
            check_module(name, module)
        check_regression_parties(label, self.parties)
        widths = dict(known)
        for party in self.everyone:
            if party.bottom is not None and party.name not in known:
                where = f"party {party.name!r}: the bottom model"
                widths[party.name] = find_embedding_width(where, party.bottom, party.features)
        for party in self.parties:
            where = f"party.{party.name}.model:" if from_file else f"party {party.name!r}: the bottom model"
            check_feature_party(where, party, widths[party.name], self.recipe, settings)
        with place("label_party"):
            check_label_party(label, list(widths.values()), self.recipe, settings)
            for party in self.parties:
                check_batch_norm(party.name, party.bottom, settings, self.rows)
        return widths

    def privacy_plan(self, widths: Mapping[PartyName, int]) -> PrivacyPlan:
        parties = Parties(len(self.parties), self.label_party.features is not None)
        return PrivacyPlan(self.recipe, self.training, self.budget, widths[self.parties[0].name], parties)

    def open_ledgers(self, widths: Mapping[PartyName, int]) -> dict[PartyName, PrivacyLedger]:
        """What each feature party's rows have lost; nothing yet."""
        plan = self.privacy_plan(widths)
        return {name: plan.ledger(name, self.all_rows) for name in self.names}

    def limit_rounds(self, widths: Mapping[PartyName, int]) -> Batches:
        """The rounds that the privacy budget allows; all of them where there is none."""
        evaluated = self.validation_rows or self.test_rows
        return self.privacy_plan(widths).limit(self.settings, self.parties[0].name, self.rows, evaluated)

    def forecast_privacy(self, delta: float = DEFAULT_DELTA) -> dict[str, Any]:
        """What the worst-off row of each feature party will have lost once all rounds are done."""
        widths = self.check()
        plan, planned, batches = self.privacy_plan(widths), self.divide_rows(), self.limit_rounds(widths)
        uses = plan.forecast(self.settings, batches, self.validation_rows or self.test_rows)
        exposure = plan.exposure()
        delta = require_delta("delta", delta) if self.budget is None else self.budget.delta
        budget = None if self.budget is None else {"epsilon": self.budget.epsilon, "observer": self.budget.observer}
        return {
            "method": self.recipe.name,
            "rounds": batches.rounds,
            "planned_rounds": planned.rounds,  # without the budget
            "epochs": batches.epoch(batches.rounds),
            "delta": delta,
            "observers": [loss.to_dict() for loss in compute_privacy_losses(exposure, uses, delta)],
            "budget": budget,
            "not_protected": list_limitations(exposure),
            "holds_only_if": list_conditions(exposure),
        }

    def digests(self) -> dict[str, str]:
        """What must be the same for a run to be resumed, each as a digest or as text; it may go on for longer."""
        data = xxhash.xxh3_64()
        for party in self.everyone:
            held = (getattr(party, name, None) for name in ("labels", "sample_weight", "validation_labels"))
            owners = (getattr(party, name, None) for name in ("group", "test_group", "validation_group"))
            for table in (party.features, party.test_features, party.validation_features, *held, *owners):
                if table is not None:
                    data.update(str(table.shape).encode())
                    for block in blocks(table.contiguous().cpu()):
                        data.update(block.view(torch.uint8).numpy().data)
        specs = (self.optimizer, *(party.optimizer for party in self.everyone))
        return {
            "recipe": self.recipe.digest(),
            "seed": str(self.seed),
            "batches": f"{self.batch_size} {self.batches} {self.eval_every}",
            "optimizers": " ".join("None" if spec is None else spec.describe() for spec in specs),
            "link": repr(self.link),
            "label party": f"{self.label_party.fusion} fusion, {name_loss(self.label_party.loss)}",
            "privacy": f"{self.training} {self.budget}",
            "data": data.hexdigest(),
        }
