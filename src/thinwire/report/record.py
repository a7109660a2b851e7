"""What is known of a run, as plain data: from a run that has just ended, or from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

EVALUATION_KINDS = ("EVALUATION", "TEST", "COLUMN", "INFERENCE")

RunState = Literal["running", "finished", "stopped"]


class _Plain(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class PartyInfo(_Plain):
    """A party and what it holds, as far as the run's owner knows."""

    name: str
    role: Literal["feature", "label"]
    columns: str | None = None  # "16", or "28 x 28"
    rows: int | None = None
    validation_rows: int | None = None
    test_rows: int | None = None
    owners: int | None = None  # of its training rows, where several have one in common
    width: int | None = None  # of its embedding
    model: str | None = None
    parameters: int | None = None
    optimizer: str | None = None


class SvflRound(_Plain):
    """What plain split learning sends in a round of these batches, on average; headers included."""

    up: float = 0.0
    down: float = 0.0


class RunInfo(_Plain):
    """What is settled before the first round."""

    method: str
    me: str | None = None  # the party whose folder this is; None where all are simulated in one process
    label_party: str
    parties: tuple[PartyInfo, ...]
    axes: dict[str, str]  # the recipe in words: what travels, when, who sees, where
    recipe_digest: str
    rows: int
    validation_rows: int = 0
    test_rows: int
    batch_size: int | None = None
    rounds: int
    rounds_per_epoch: int
    seed: int
    metrics: tuple[str, ...] = ()
    target: tuple[str, float] | None = None
    loss: str = ""
    better: dict[str, int] = {}  # of the metrics: 1 where higher is better
    who_sees: dict[str, tuple[str, ...]] = {}
    protection: str = ""
    svfl_round: SvflRound = SvflRound()
    environment: dict[str, str] = {}
    started: str = ""  # UTC

    @property
    def metric(self) -> str:
        return self.metrics[0] if self.metrics else "loss"


class ByteCounts(_Plain):
    """So far; up, down and total are of training."""

    up: int = 0
    down: int = 0
    total: int = 0
    evaluation: int = 0

    @property
    def all(self) -> int:
        return self.total + self.evaluation


class Evaluation(_Plain):
    """One evaluation, as events.jsonl has it."""

    round: int
    epoch: float
    train: dict[str, float | None] = {}
    validation: dict[str, float | None] = {}
    test: dict[str, float | None] = {}  # at the end alone, where there are validation rows
    bytes: ByteCounts = ByteCounts()
    seconds: float = 0.0
    link_seconds: float | None = None
    diagnostics: dict[str, Any] = {}

    @property
    def scores(self) -> dict[str, float | None]:
        """On the rows that steer: validation rows, without any test rows, without any training rows."""
        return self.validation or self.test or self.train

    def to_dict(self) -> dict[str, Any]:
        """As events.jsonl and `result.history` have it."""
        unknown: dict[str, Any] = {} if self.validation else {"validation": True}
        if not self.bytes.evaluation:  # as in folders of earlier versions
            unknown["bytes"] = {"evaluation"}
        return self.model_dump(exclude=unknown)

    def value_at(self, place: str) -> float | None:
        """`test.accuracy`, `bytes.up`, `epoch`; None where it is not there, or no number."""
        value: Any = self
        for part in place.split("."):
            value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
        return value if isinstance(value, int | float) and isfinite(value) else None


class LedgerEntry(_Plain):
    """Bytes and messages of one sort."""

    sender: str
    receiver: str
    kind: str
    bytes: int
    messages: int


class PartyTime(_Plain):
    """What a party did since the heartbeat before, in seconds; and its stretches in the last round."""

    spent: dict[str, float] = {}
    stretches: tuple[tuple[str, float, float], ...] = ()


class Heartbeat(_Plain):
    """A sign of life between evaluations."""

    time: str  # UTC
    since: int  # the round of the heartbeat before, or where the process began
    round: int
    rounds: int
    seconds: float
    clock: Literal["link", "real"] = "real"
    parties: dict[str, PartyTime] = {}
    traffic: tuple[tuple[str, str, str, int, int], ...] = ()  # sender, receiver, kind, bytes, messages
    privacy: tuple[dict[str, Any], ...] = ()

    def slim(self) -> Heartbeat:
        """Its times alone."""
        parties = {name: PartyTime(spent=one.spent) for name, one in self.parties.items()}
        return self.model_copy(update={"parties": parties, "traffic": (), "privacy": ()})

    def entries(self) -> tuple[LedgerEntry, ...]:
        names = ("sender", "receiver", "kind", "bytes", "messages")
        return tuple(LedgerEntry.model_validate(dict(zip(names, row, strict=True))) for row in self.traffic)


class LiftDecile(_Plain):
    """A tenth of the rows, highest scores first; rows with the same score share their positives."""

    rows: int
    rate: float  # of positives among them
    lift: float  # that rate over the rate of all rows
    gain: float  # share of all positives in this tenth and those before it


class ThresholdScores(_Plain):
    """What happens if rows above a threshold are flagged."""

    threshold: float  # of the probability; never a row's own
    flagged: float  # share of the rows
    precision: float | None = None  # None where no row is flagged
    recall: float | None = None  # None where no row is positive
    f1: float = 0.0
    specificity: float | None = None  # None where no row is negative


class DecisionThreshold(_Plain):
    """The threshold to use, and how it was chosen."""

    value: float = 0.5
    chosen_by: str | None = None  # the score it is best by, on validation rows; None: not chosen, 0.5
    rows: int = 0  # validation rows that chose it


class ClassScores(_Plain):
    """One class against all others."""

    rows: int
    precision: float
    recall: float
    f1: float


class ErrorDecile(_Plain):
    """A tenth of the rows, lowest predictions first."""

    rows: int
    prediction: float  # their mean
    label: float  # their mean
    rmse: float
    mae: float


class Quality(_Plain):
    """Model quality, counted over the test rows: no value of a single row is in it."""

    task: Literal["classes", "binary", "regression"]
    rows: int
    round: int
    confusion: tuple[tuple[int, ...], ...] = ()  # [label][said]
    classes: tuple[str, ...] = ()  # their names
    class_counts: tuple[int, ...] = ()  # rows by label
    calibration: tuple[tuple[float, float, int], ...] = ()  # mean probability, observed frequency, rows
    calibration_error: float | None = None
    roc: tuple[tuple[float, float], ...] = ()  # false and true positive rate
    auc: float | None = None
    gini: float | None = None  # 2 AUC - 1
    ks: float | None = None  # the largest distance between true and false positive rate
    brier: float | None = None
    log_loss: float | None = None
    lift: tuple[LiftDecile, ...] = ()
    thresholds: tuple[ThresholdScores, ...] = ()
    threshold: DecisionThreshold | None = None
    per_class: tuple[ClassScores, ...] = ()
    macro: dict[str, float] = {}  # accuracy, and macro averages of precision, recall and f1
    residuals: tuple[tuple[float, float, int], ...] = ()  # from, to, rows
    predicted: tuple[tuple[float, float, int], ...] = ()  # mean prediction, mean label, rows
    deciles: tuple[ErrorDecile, ...] = ()
    errors: dict[str, float] = {}  # rmse, mae, r2

    @property
    def headline(self) -> dict[str, float]:
        """The figures to look at first, by name."""
        scores = {name: getattr(self, name) for name in ("auc", "gini", "ks", "brier", "log_loss")}
        return {**{name: value for name, value in scores.items() if value is not None}, **self.macro, **self.errors}


ALL_PARTIES = "all parties"


class BaselineScore(_Plain):
    """What a plain model reaches on the same test rows."""

    name: str  # "boosted_trees", "logistic_regression", "ridge_regression", "class_prior", "mean_label"
    columns: str  # whose: a party's name, or ALL_PARTIES
    metric: str
    value: float | None  # None where it could not be trained
    seconds: float
    rows: int = 0  # that it was trained on
    note: str = ""


class PartyImportance(_Plain):
    """How much of the score hangs on one party."""

    party: str
    lost: float  # of the score, when the rows of its embedding are permuted; above 0: it helps
    permuted: float | None = None  # the score then; runs of earlier versions do not say
    without: float  # the score with its embedding replaced by the mean over the test rows
    worth: float  # of the score, lost without it


class ColumnImportance(_Plain):
    party: str
    column: str
    lost: float  # of the score, when the column is permuted


class ColumnGain(_Plain):
    """Of a party's boosted trees; it costs nothing, and is its owner's to know."""

    party: str
    column: str
    share: float  # of what all its splits gained in training


class Importance(_Plain):
    """Permutation importance, and what each party's data is worth, on the test rows."""

    metric: str
    value: float | None = None  # with everything in place; the label party's to know
    parties: tuple[PartyImportance, ...] = ()
    columns: tuple[ColumnImportance, ...] = ()  # the most important first
    gains: tuple[ColumnGain, ...] = ()  # of trees, the largest first
    note: str = ""


class Coefficient(_Plain):
    """One column of a regression, as its owner knows it."""

    column: str
    coefficient: float  # of the column as it was prepared
    in_units: float | None = None  # of the table's own column, where the preparation is a straight line
    error: float | None = None  # standard error; None where it is not known
    z: float | None = None
    p: float | None = None
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    ratio: float | None = None  # of odds or rates, for one more of the column as it was prepared
    note: str = ""


class CoefficientTable(_Plain):
    """A party's own coefficients; the intercept is the label party's."""

    party: str
    loss: str
    rows: tuple[Coefficient, ...]
    note: str = ""


class _Summary(_Plain):
    """Of result.json, what nothing else says."""

    seconds: float = 0.0
    interrupted: bool = False
    privacy: tuple[dict[str, Any], ...] = ()
    baselines: tuple[BaselineScore, ...] = ()
    importance: Importance | None = None


@dataclass(frozen=True)
class RunRecord:
    """All of it."""

    name: str
    about: RunInfo
    events: tuple[Evaluation, ...]
    ledger: tuple[LedgerEntry, ...]
    heartbeats: tuple[Heartbeat, ...] = ()
    quality: Quality | None = None
    baselines: tuple[BaselineScore, ...] = ()
    importance: Importance | None = None
    coefficients: tuple[CoefficientTable, ...] = ()
    privacy: tuple[dict[str, Any], ...] = ()
    state: RunState = "finished"
    repeat: tuple[str, ...] = ()  # commands
    digests: Mapping[str, str] = field(default_factory=dict)  # of the data
    job_text: str | None = None

    @property
    def rounds(self) -> int:
        last = max((event.round for event in self.events), default=0)
        return max(last, self.heartbeats[-1].round if self.heartbeats else 0)

    @property
    def metric_place(self) -> str:
        """The first metric, on the rows that steer."""
        places = [f"{rows}.{self.about.metric}" for rows in ("validation", "test", "train")]
        known = (place for place in places if any(event.value_at(place) is not None for event in self.events))
        return next(known, places[-1])

    @property
    def training_bytes(self) -> int:
        """Of every message but those of evaluations; of a run that goes on, the last evaluation may know more."""
        sent = sum(entry.bytes for entry in self.ledger if entry.kind not in EVALUATION_KINDS)
        return max(sent, self.events[-1].bytes.total if self.events else 0)

    @property
    def evaluation_bytes(self) -> int:
        sent = sum(entry.bytes for entry in self.ledger if entry.kind in EVALUATION_KINDS)
        return max(sent, self.events[-1].bytes.evaluation if self.events else 0)

    def total_bytes(self, to_target: bool = False) -> int:
        """Of training and evaluation; or up to the first evaluation that meets the target, where one does."""
        met = self.find_target() if to_target else None
        return self.training_bytes + self.evaluation_bytes if met is None else met.bytes.all

    def last(self, place: str, to_target: bool = False) -> float | None:
        """At the last evaluation; or at the first that meets the target, where one does."""
        end = (self.find_target() if to_target else None) or next(reversed(self.events), None)
        return None if end is None else end.value_at(place)

    def find_target(self) -> Evaluation | None:
        """The first evaluation that meets the target, on the rows that steer."""
        name, value = self.about.target or ("", 0.0)
        sign = self.about.better.get(name, -1)
        scores = ((event, event.scores.get(name)) for event in self.events)
        return next((event for event, found in scores if found is not None and sign * found >= sign * value), None)

    def best(self) -> float | None:
        place = self.metric_place
        values = [value for event in self.events if (value := event.value_at(place)) is not None]
        return max(values, key=lambda value: self.about.better.get(self.about.metric, -1) * value, default=None)

    def svfl(self, direction: Literal["up", "down"]) -> float:
        """What plain split learning would have sent in as many rounds."""
        a_round: float = getattr(self.about.svfl_round, direction)
        return self.rounds * a_round

    def times_fewer_bytes(self) -> float | None:
        """Than svfl's, in as many rounds."""
        sent = self.training_bytes
        plain = self.svfl("up") + self.svfl("down")
        return plain / sent if sent and plain and self.about.me in (None, self.about.label_party) else None

    def time(self) -> dict[str, dict[str, float]]:
        """Seconds by party and activity, over the whole run."""
        found: dict[str, dict[str, float]] = {}
        for heartbeat in self.heartbeats:
            for party, one in heartbeat.parties.items():
                mine = found.setdefault(party, {})
                for activity, seconds in one.spent.items():
                    mine[activity] = mine.get(activity, 0.0) + seconds
        return found


def append_heartbeat(heartbeats: list[Heartbeat], new: Heartbeat) -> None:
    """Adds a heartbeat: a process that went on from an earlier round takes back what came after it."""
    while heartbeats and (heartbeats[-1].round > new.since or heartbeats[-1].time == new.time):
        heartbeats.pop()
    heartbeats.append(new)
