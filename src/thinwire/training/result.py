"""What a run gave: its evaluations, bytes and models, and whether it reached its goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from thinwire.base.errors import BadInput, Diverged
from thinwire.base.extras import require_extra
from thinwire.base.format import format_bytes, format_number, format_seconds
from thinwire.base.types import PartyName
from thinwire.engine.channel.ledger import Ledger, Traffic
from thinwire.engine.models.losses import Outputs
from thinwire.engine.models.metrics import METRICS, metric
from thinwire.engine.programs.parties import LabelParty
from thinwire.engine.programs.program import Batches, EvaluationOutputs
from thinwire.engine.protocols.evaluation import EvaluationVerdict, HeldOut
from thinwire.job.settings import RunSettings
from thinwire.report.folder import write_report
from thinwire.report.record import (
    BaselineScore,
    ByteCounts,
    CoefficientTable,
    Evaluation,
    Importance,
    Quality,
    RunRecord,
)
from thinwire.training.scorecards import ScorecardRow


def better(metric: str) -> int:
    """1 where higher is better, -1 where lower is."""
    return 1 if metric in METRICS and METRICS[metric].higher_is_better else -1


@dataclass
class Result:
    """What a run leaves behind: its history, its bytes and its models. `tw.train` returns one.

    Args:
        method: the recipe's name.
        evaluations: one for round 0, one per evaluation, one after the last round; `history` has them as dicts.
        ledger: bytes and messages by sender, receiver and kind.
        label_party: its name.
        models: bottom models by party, and the top model under "top".
        seconds: wall-clock time of the run.
        metric: the first metric that the job asks for.
        target: metric and value, where the job has a target.
        interrupted: whether Ctrl-C ended the run.
        stopped_by: "callback" where a callback stopped the run.
        run_dir: the run folder, where one is kept.
        privacy: each party's privacy loss.
        record: what `report` draws.
        delivered_round: the round whose weights the models have; the last one unless given.
        handshake_bytes: bytes sent before the first round.
        quality: ROC curve, calibration and confusion matrix on the test rows.
        baselines: scores of plain models, where the job asks for baselines.
        importance: of parties and columns, where the job asks for it.
        coefficients: tables of a regression, by party.
        scorecards: bins and points, by party.

    Examples:
        >>> result = tw.train(job, callbacks=[])
        >>> result.bytes.total == result.bytes.up + result.bytes.down
        True
        >>> sorted(result.models)
        ['bank', 'top']
    """

    method: str
    evaluations: list[Evaluation]
    ledger: Ledger
    label_party: PartyName
    models: dict[PartyName, nn.Module]  # bottom models by party; the top model under "top"
    seconds: float
    metric: str  # the first one asked for
    target: tuple[str, float] | None = None
    interrupted: bool = False
    stopped_by: str | None = None  # "callback" where one asked for it
    run_dir: Path | None = None
    privacy: list[dict[str, Any]] = field(default_factory=list)
    record: RunRecord | None = None
    delivered_round: int | None = None  # whose weights the models have; the last one unless given
    handshake_bytes: int = 0
    quality: Quality | None = None  # on the test rows
    baselines: list[BaselineScore] = field(default_factory=list)  # where the job asks for them
    importance: Importance | None = None
    coefficients: dict[PartyName, CoefficientTable] = field(default_factory=dict)  # of a regression, by party
    scorecards: dict[PartyName, tuple[ScorecardRow, ...]] = field(default_factory=dict)  # bins and points

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The evaluations, as events.jsonl has them."""
        return [evaluation.to_dict() for evaluation in self.evaluations]

    @property
    def bytes(self) -> Traffic:
        return self.ledger.traffic(self.label_party)

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"Result({self.method}: {facts})"

    def _repr_html_(self) -> str:
        """A notebook's table of the last evaluation."""
        rows = {"method": self.method, **self._facts()}
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
        return f"<table>{''.join(cells)}</table>"

    def _facts(self) -> dict[str, str]:
        """The last evaluation and the whole cost, for people."""
        last, traffic = self.evaluations[-1], self.bytes
        scores = {f"training {name}": x for name, x in last.train.items()}
        scores |= {f"test {name}": x for name, x in last.test.items()}
        return {
            "round": str(last.round),
            "epoch": format_number(last.epoch),
            **{name: "-" if x is None else format_number(x) for name, x in scores.items()},
            "up": format_bytes(traffic.up),
            "down": format_bytes(traffic.down),
            "evaluation": format_bytes(traffic.evaluation),
            "time": format_seconds(self.seconds),
        }

    def best(self) -> dict[str, Any]:
        """The best value of the first metric, and its round; on validation rows where there are any."""
        values = read_curve(self.evaluations, self.metric)
        if not values:
            return {"metric": self.metric, "value": None, "round": None}
        best = max(values, key=lambda at: (better(self.metric) * values[at], at == self.delivered_round))
        return {"metric": self.metric, "value": values[best], "round": best}

    def find_delivered(self) -> Evaluation:
        """The evaluation whose weights the models have."""
        found = (one for one in self.evaluations if one.round == self.delivered_round)
        return next(found, self.evaluations[-1])

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
        last, delivered, traffic = self.evaluations[-1], self.find_delivered(), self.bytes
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
                "handshake": self.handshake_bytes,
                "all": traffic.all + self.handshake_bytes,
            },
            "messages": traffic.messages,
            "train": delivered.train,
            "validation": delivered.validation,
            "test": last.test,
            "target": self.find_target(),
            "best": self.best(),
            "delivered": {
                "round": delivered.round,
                "metric": self.metric,
                "value": delivered.scores.get(self.metric),
            },
            "quality": {} if self.quality is None else self.quality.headline,
            "baselines": [one.model_dump() for one in self.baselines],
            "importance": None if self.importance is None else self.importance.model_dump(mode="json"),
            "privacy": self.privacy,
            "interrupted": self.interrupted,
            "stopped_by": self.stopped_by,
            "run_dir": None if self.run_dir is None else str(self.run_dir),
        }

    def report(self, path: str | Path) -> Path:
        """One self-contained HTML file about the run, written there."""
        if self.record is None:
            raise BadInput("this result holds no record of its run; `thinwire report` creates one from a run folder")
        return write_report([self.record], Path(path))

    def to_pandas(self) -> Any:
        """The history as a data frame: a row an evaluation, columns such as `test.accuracy` and `bytes.up`."""
        pandas = require_extra("pandas", "result.to_pandas()", "pandas")
        return pandas.json_normalize(self.history)


def read_curve(evaluations: Sequence[Evaluation], metric: str) -> dict[int, float]:
    """A metric by round, on the rows that steer: validation rows, else test rows, else training rows."""
    found = {one.round: one.scores.get(metric) for one in evaluations}
    return {round: value for round, value in found.items() if value is not None}


def meets(evaluation: Evaluation, target: tuple[str, float]) -> bool:
    """Is the target met at this evaluation, on validation rows where there are any, else on test rows?"""
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
        return Evaluation(
            round=evaluated.round,
            epoch=self.batches.epoch(evaluated.round),
            train=dict(train),
            validation=self._score(evaluated) if evaluated.rows is HeldOut.VALIDATION else {},
            test=self._score(evaluated) if evaluated.rows is HeldOut.TEST else {},
            bytes=ByteCounts(up=traffic.up, down=traffic.down, total=traffic.total, evaluation=traffic.evaluation),
            seconds=seconds,
            link_seconds=link_seconds,
            diagnostics=dict(diagnostics),
        )

    def add_test(self, last: Evaluation, tested: EvaluationOutputs) -> Evaluation:
        """The last evaluation with the test scores of the model that is delivered."""
        return last if tested.outputs is None else last.model_copy(update={"test": self._score(tested)})

    def _score(self, evaluated: EvaluationOutputs) -> dict[str, float | None]:
        if evaluated.outputs is None:
            return {}
        labels = self.party.held_out[evaluated.rows]
        return dict(compute_scores(evaluated.outputs, labels, self.party.loss, self.metrics))


def compute_scores(
    outputs: Tensor,
    labels: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    metrics: Sequence[str],
    kind: Outputs | None = None,
) -> dict[str, float]:
    """The mean loss and every metric; the kind of outputs follows from the loss unless it is given."""
    outputs = outputs.cpu()
    mean = require_finite_loss(float(loss(outputs, labels).double().mean()))
    scored = (kind or Outputs.of(loss)).to_scored(outputs)
    return {"loss": mean, **{name: metric(name).compute(scored, labels) for name in metrics}}


def require_finite_loss(loss: float) -> float:
    if not isfinite(loss):
        raise Diverged(f"the loss is {loss}; lower the learning rate, or use a finer compressor")
    return loss


def judge(settings: RunSettings, history: Sequence[Evaluation], keeps_best: bool) -> EvaluationVerdict:
    """Whether the last evaluation is the best so far, and whether to stop there."""
    if not history:
        return EvaluationVerdict()
    since_best = _count_since_best(settings, history)
    out_of_patience = settings.patience is not None and since_best >= settings.patience
    return EvaluationVerdict(meets_goal(settings, history[-1]) or out_of_patience, keeps_best and since_best == 0)


def _count_since_best(settings: RunSettings, history: Sequence[Evaluation]) -> int:
    """Evaluations since the best one; of two with the same score, the one with the lower loss is better."""
    metric = next(iter(settings.metrics), "loss")
    known = [
        (-better(metric) * value, one.validation.get("loss") or 0.0, place)
        for place, one in enumerate(history)
        if (value := one.validation.get(metric)) is not None
    ]
    return len(history) - 1 - min(known)[2] if known else len(history)


def meets_goal(settings: RunSettings, evaluation: Evaluation) -> bool:
    """May the run end before its last round?"""
    if settings.target is not None and settings.stop and meets(evaluation, settings.target):
        return True
    if settings.byte_budget is not None and evaluation.bytes.total >= settings.byte_budget:
        return True
    limit, seconds = settings.link_seconds_budget, evaluation.link_seconds
    return limit is not None and seconds is not None and seconds >= limit
