"""What a run gave: its evaluations, bytes and models, and whether it reached its goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from thinwire.base.errors import BadInput, Diverged
from thinwire.base.extras import require_extra
from thinwire.base.types import PartyName
from thinwire.engine.channel.ledger import Ledger, Traffic
from thinwire.engine.models.metrics import METRICS, metric
from thinwire.engine.programs.parties import LabelParty
from thinwire.engine.programs.program import Batches, EvaluationOutputs
from thinwire.job.settings import RunSettings
from thinwire.report.folder import write_report
from thinwire.report.record import BaselineScore, ByteCounts, Evaluation, Importance, Quality, RunRecord


def better(metric: str) -> int:
    """1 where higher is better, -1 where lower is."""
    return 1 if metric in METRICS and METRICS[metric].higher_is_better else -1


@dataclass
class Result:
    """History, bytes and models of a run."""

    method: str
    evaluations: list[Evaluation]
    ledger: Ledger
    label_party: PartyName
    models: dict[PartyName, nn.Module]  # bottom models by party; the top model under "top"
    seconds: float
    metric: str  # the first one asked for
    target: tuple[str, float] | None = None
    interrupted: bool = False
    run_dir: Path | None = None
    privacy: list[dict[str, Any]] = field(default_factory=list)
    record: RunRecord | None = None
    quality: Quality | None = None  # on the test rows
    baselines: list[BaselineScore] = field(default_factory=list)  # where the job asks for them
    importance: Importance | None = None

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The evaluations, as events.jsonl has them."""
        return [evaluation.to_dict() for evaluation in self.evaluations]

    @property
    def bytes(self) -> Traffic:
        return self.ledger.traffic(self.label_party)

    def best(self) -> dict[str, Any]:
        """The best value of the first metric, and its round."""
        tested = any(self.metric in one.test for one in self.evaluations)
        found = [(one.test if tested else one.train).get(self.metric) for one in self.evaluations]
        values = {one.round: value for one, value in zip(self.evaluations, found, strict=True) if value is not None}
        if not values:
            return {"metric": self.metric, "value": None, "round": None}
        best = max(values, key=lambda at: better(self.metric) * values[at])
        return {"metric": self.metric, "value": values[best], "round": best}

    def find_target(self) -> dict[str, Any] | None:
        """When and at what cost the target was first met."""
        if self.target is None:
            return None
        name, value = self.target
        found = next((one for one in self.evaluations if meets(one, self.target)), None)
        reached: dict[str, Any] = {"reached_round": None, "bytes": None, "seconds": None, "link_seconds": None}
        if found is not None:
            reached = {
                "reached_round": found.round,
                "bytes": found.bytes.total,
                "seconds": found.seconds,
                "link_seconds": found.link_seconds,
            }
        return {"metric": name, "value": value, **reached}

    def summary(self) -> dict[str, Any]:
        """As `thinwire train --json` prints it."""
        last, traffic = self.evaluations[-1], self.bytes
        return {
            "method": self.method,
            "rounds": last.round,
            "epochs": last.epoch,
            "seconds": self.seconds,
            "link_seconds": last.link_seconds,
            "bytes": {
                "up": traffic.up,
                "down": traffic.down,
                "total": traffic.total,
                "evaluation": traffic.evaluation,
                "retransmitted": traffic.retransmitted,
            },
            "messages": traffic.messages,
            "train": last.train,
            "test": last.test,
            "target": self.find_target(),
            "best": self.best(),
            "quality": {} if self.quality is None else self.quality.headline,
            "baselines": [one.model_dump() for one in self.baselines],
            "importance": None if self.importance is None else self.importance.model_dump(mode="json"),
            "privacy": self.privacy,
            "interrupted": self.interrupted,
            "run_dir": None if self.run_dir is None else str(self.run_dir),
        }

    def report(self, path: str | Path) -> Path:
        """One self-contained HTML file about the run, written there."""
        if self.record is None:
            raise BadInput("this result holds no record of its run; `thinwire report` makes one from a run's folder")
        return write_report([self.record], Path(path))

    def to_pandas(self) -> Any:
        """The history as a data frame: a row an evaluation, columns such as `test.accuracy` and `bytes.up`."""
        pandas = require_extra("pandas", "result.to_pandas()", "pandas")
        return pandas.json_normalize(self.history)


def meets(evaluation: Evaluation, target: tuple[str, float]) -> bool:
    """Is the target met at this evaluation, on test rows where there are any?"""
    name, value = target
    found = evaluation.scores.get(name)
    return found is not None and better(name) * found >= better(name) * value


@dataclass(frozen=True)
class Evaluator:
    """Scores the label party's rows, in the simulator and in its own process."""

    party: LabelParty
    metrics: Sequence[str]
    batches: Batches
    ledger: Ledger

    def evaluate(
        self,
        evaluated: EvaluationOutputs,
        train: Mapping[str, float],
        seconds: float,
        link_seconds: float | None,
        diagnostics: Mapping[str, Any],
    ) -> Evaluation:
        traffic = self.ledger.traffic(self.party.name)
        outputs = evaluated.outputs
        return Evaluation(
            round=evaluated.round,
            epoch=self.batches.epoch(evaluated.round),
            train=dict(train),
            test={} if outputs is None else dict(self._score(outputs)),
            bytes=ByteCounts(up=traffic.up, down=traffic.down, total=traffic.total),
            seconds=seconds,
            link_seconds=link_seconds,
            diagnostics=dict(diagnostics),
        )

    def _score(self, outputs: Tensor) -> dict[str, float]:
        return compute_scores(outputs, self.party.test_labels, self.party.loss, self.metrics)


def compute_scores(
    outputs: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor], metrics: Sequence[str]
) -> dict[str, float]:
    """The mean loss and every metric."""
    outputs = outputs.cpu()
    mean = require_finite_loss(float(loss(outputs, labels).double().mean()))
    return {"loss": mean, **{name: metric(name).compute(outputs, labels) for name in metrics}}


def require_finite_loss(loss: float) -> float:
    if not isfinite(loss):
        raise Diverged(f"the loss is {loss}; use a smaller learning rate, or a finer compressor")
    return loss


def meets_goal(settings: RunSettings, evaluation: Evaluation) -> bool:
    """May the run end before its last round?"""
    if settings.target is not None and settings.stop and meets(evaluation, settings.target):
        return True
    if settings.byte_budget is not None and evaluation.bytes.total >= settings.byte_budget:
        return True
    limit, seconds = settings.link_seconds_budget, evaluation.link_seconds
    return limit is not None and seconds is not None and seconds >= limit
