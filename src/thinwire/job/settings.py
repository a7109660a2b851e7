"""How a run is trained: one value, from the job file to the programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch

from thinwire.base.errors import BadParameter
from thinwire.base.format import did_you_mean
from thinwire.engine.models.metrics import metric
from thinwire.engine.models.pretraining import Pretraining
from thinwire.engine.privacy.accounting import Budget
from thinwire.engine.privacy.accounting.ledger import Frozen, TrainedOnRawRows
from thinwire.engine.privacy.dp_bottom import DPBottom, Training
from thinwire.engine.programs.program import Batches
from thinwire.engine.streams import Storage
from thinwire.engine.wire.entropy import Effort, check_effort
from thinwire.job.messages import at


@dataclass(frozen=True)
class RunSettings:
    """How long, how often, until when, and where; refuses what no data could make right."""

    batch_size: int | None = None  # None: all rows
    batches: str = "derived"  # by every party from the seed; or "announced" by the label party
    epochs: float = 10
    seed: int = 0
    eval_every: int | None = None  # in rounds; once an epoch unless given
    metrics: Sequence[str] = ("accuracy",)
    target: tuple[str, float] | None = None
    stop: bool = True  # at the target
    patience: int | None = None  # evaluations without a better validation score, then the run stops
    deliver: str = "best"  # the model of the best evaluation on validation rows; or of the "last" round
    byte_budget: int | None = None  # stop at the first evaluation at or past it
    link_seconds_budget: float | None = None
    diagnostics: bool = False  # gradient norm, distortion and scores on training rows at every evaluation
    baselines: bool = False  # plain models beside this one, trained at the end of the run
    importance: bool = False  # of parties, and of columns that are at hand, at the end; nothing is sent for it
    column_importance: bool = False  # of feature parties' columns over the network: an exchange at the end
    effort: Effort = "small"
    device: str = "cpu"
    storage: Storage = field(default_factory=Storage)
    pretraining: Pretraining | None = None  # of networks, each on its party's own rows, before the first round
    training: Training = TrainedOnRawRows()  # of the bottom models; or Frozen(), DPBottom(clip, noise_multiplier)
    budget: Budget | None = None  # of privacy: no round is begun that would exceed it

    def __post_init__(self) -> None:
        self._check_types()
        check_effort(self.effort)
        with at("metrics"):
            for name in self.metrics:
                metric(name)
        if self.target is not None and self.target[0] not in (*self.metrics, "loss"):
            known = [*self.metrics, "loss"]
            hint = did_you_mean(self.target[0], known)
            raise BadParameter.of("target", f"{self.target[0]!r} is not among the metrics {', '.join(known)}{hint}")
        if self.eval_every is not None and self.eval_every < 1:
            raise BadParameter.of("eval_every", f"must be 1 or more, got {self.eval_every}")
        if self.patience is not None and self.patience < 1:
            raise BadParameter.of("patience", f"must be 1 evaluation or more, got {self.patience}")
        if self.deliver not in ("best", "last"):
            raise BadParameter.of("deliver", f"must be 'best' or 'last', got {self.deliver!r}")
        if self.batches not in ("derived", "announced"):
            raise BadParameter.of("batches", f"must be 'derived' or 'announced', got {self.batches!r}")

    def _check_types(self) -> None:
        if not isinstance(self.training, (TrainedOnRawRows, Frozen, DPBottom)):
            wanted = "tw.privacy.TrainedOnRawRows(), Frozen() or DPBottom(clip, noise_multiplier)"
            raise BadParameter.of("training", f"must be {wanted}, got {self.training!r}")
        if not isinstance(self.budget, (Budget, type(None))):
            raise BadParameter.of(
                "budget", f"must be a tw.privacy.Budget(epsilon, delta) or None, got {self.budget!r}"
            )
        if not isinstance(self.pretraining, (Pretraining, type(None))):
            says = f"must be a tw.learners.Pretraining(...) or None, got {self.pretraining!r}"
            raise BadParameter.of("pretraining", says)
        if self.pretraining is not None and isinstance(self.training, DPBottom):
            raise BadParameter.of("pretraining", f"learns from exact rows, which {self.training} does not cover")
        for name in ("batch_size", "eval_every", "patience", "seed"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise BadParameter.of(name, f"must be an integer, got {value!r}")
        if not 0 <= self.seed < 2**63:
            raise BadParameter.of("seed", f"must be from 0 to 2^63 - 1, got {self.seed}")
        if isinstance(self.epochs, bool) or not isinstance(self.epochs, (int, float)) or not isfinite(self.epochs):
            raise BadParameter.of("epochs", f"must be a number, got {self.epochs!r}")
        if self.target is not None and not (len(self.target) == 2 and isinstance(self.target[1], (int, float))):
            raise BadParameter.of("target", f"must be a pair such as ('accuracy', 0.9), got {self.target!r}")
        try:
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            first = str(error).splitlines()[0]
            raise BadParameter.of("device", f"{self.device!r} is not available here: {first}") from None

    @property
    def measures_importance(self) -> bool:
        return self.importance or self.column_importance

    def divide_rows(self, rows: int) -> Batches:
        """The rounds that all parties derive alike."""
        return Batches(rows, self.batch_size, self.epochs, self.seed, self.batches == "announced")

    def evaluation_interval(self, batches: Batches) -> int:
        """In rounds."""
        return self.eval_every or batches.rounds_per_epoch
