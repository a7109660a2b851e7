"""What an experiment file may hold.

One file is one table or figure of a paper: its data, its models, its settings, a curve for every line of the figure,
and what the paper says about them. `[quick]` and `[full]` are the two sizes; each says what it changes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from thinwire.job.schema import Count, Finite, JobFileSection, LinkSection, Positive, Table, Text

Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]
Formula = Literal["efvfl", "cvfl", "pbm"]
EpochAndFactor = Annotated[list[Positive], Field(min_length=2, max_length=2)]
Axis = Literal["epoch", "round", "bytes.total", "bytes.up", "paper_bytes", "link_seconds"]


class ExperimentSection(JobFileSection):
    """Which table or figure, what it claims, on which data, with embeddings how wide."""

    paper: Text
    figure: Text
    title: Text
    claim: Text
    data: Text
    split: str | Table | None = None  # the data set's usual one
    seeds: Seeds
    width: Count  # of every feature party's embedding; the run is refused where it is another
    label_width: Count | None = None  # of the label party's own
    formula: Formula | None = None  # how the paper counts bytes
    full_size_only: bool = False
    notes: list[Text] = []


class ModelSection(JobFileSection):
    """The same bottom model at every feature party; sizes that follow from the data may be left out."""

    bottom: Table
    label_bottom: Table | None = None
    top: Table
    fusion: Literal["sum", "mean", "concat"] = "sum"
    loss: str = "cross_entropy"
    class_weights: list[float] | None = None


class ExperimentTarget(JobFileSection):
    """A value of a test metric that curves are to reach."""

    metric: Text
    value: Finite


class BestOf(JobFileSection):
    """As `Target`, the value being a curve's best (mean over seeds), less a little."""

    metric: Text
    best_of: Text
    less: Annotated[Finite, Field(ge=0)] = 0.0


class SettingsSection(JobFileSection):
    """How each curve is trained; what is left out holds as in a job file."""

    epochs: Positive | None = None
    batch_size: Count | None = None
    eval_every: Count | None = None
    optimizer: Table | None = None
    lr_factors: list[EpochAndFactor] | None = None  # the step size is multiplied by each factor from its epoch on
    metrics: list[str] | None = None
    target: ExperimentTarget | BestOf | None = None
    link: LinkSection | None = None
    diagnostics: bool | None = None
    effort: Literal["small", "fast"] | None = None


class SizeSection(JobFileSection):
    """What one size changes, and why that may be."""

    says: Text | None = None
    rows: Count | None = None  # all
    test_rows: Count | None = None
    seeds: Seeds | None = None
    curves: list[Text] | None = None  # all
    settings: SettingsSection = SettingsSection()
    bottom: Table = {}
    label_bottom: Table = {}
    top: Table = {}


class CurveSection(JobFileSection):
    """One line of the figure."""

    name: Text
    recipe: Table
    settings: SettingsSection = SettingsSection()


class PlotSection(JobFileSection):
    """One of the figure's plots; without any, every metric by epoch, bytes and link time."""

    title: Text
    x: Axis
    y: Text  # a place in an evaluation, such as "test.accuracy"
    log: bool = False
    curves: list[Text] | None = None  # all


class ExpectSection(JobFileSection):
    """A claim as a comparison of numbers.

    `measure` of `metric` on `curve`, alone or compared (`form`) with that of the curve `of`, must be `at_least` or
    `at_most` a number. Costs are to the target; a target that some seed does not reach costs infinity.
    """

    claim: Text
    paper: Text | None = None  # the paper's own number, in words
    curve: Text
    measure: Literal["final", "best", "cost", "reached"]
    metric: Text | None = None  # "test.accuracy"; for a cost "round", "bytes.total", "bytes.up", "link_seconds"
    form: Literal["value", "ratio", "difference", "gap"] = "value"  # a, a / b, a - b, |a - b| / |b|
    of: Text | None = None
    of_metric: Text | None = None  # the same
    at_least: Finite | None = None
    at_most: Finite | None = None
    sizes: list[Literal["quick", "full"]] = ["quick", "full"]

    @model_validator(mode="after")
    def _whole(self) -> ExpectSection:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("needs at_least or at_most, and not both")
        if (self.form == "value") != (self.of is None):
            raise ValueError("form = 'value' stands alone; every other form needs `of`, the curve to compare with")
        if (self.metric is None) != (self.measure == "reached"):
            raise ValueError("needs a metric, unless it measures what share of the seeds reached the target")
        return self


class ExperimentFile(JobFileSection):
    """A whole experiment."""

    experiment: ExperimentSection
    model: ModelSection
    common: SettingsSection
    quick: SizeSection | None = None
    full: SizeSection = SizeSection()
    curve: Annotated[list[CurveSection], Field(min_length=1)]
    plot: list[PlotSection] = []
    expect: Annotated[list[ExpectSection], Field(min_length=1)]

    @model_validator(mode="after")
    def _names(self) -> ExperimentFile:
        names = [curve.name for curve in self.curve]
        if len(set(names)) < len(names):
            raise ValueError("two curves have the same name")
        if self.experiment.full_size_only != (self.quick is None):
            raise ValueError("needs a [quick] size, unless experiment.full_size_only is true")
        for place, asked in self._asked():
            if asked not in names:
                raise ValueError(f"{place}: there is no curve {asked!r}")
        return self

    def _asked(self) -> list[tuple[str, str]]:
        """Every name of a curve, and where it stands."""
        found: list[tuple[str, Any]] = []
        for i, expect in enumerate(self.expect):
            found += [(f"expect.{i}.curve", expect.curve), (f"expect.{i}.of", expect.of)]
        for i, plot in enumerate(self.plot):
            found += [(f"plot.{i}.curves", name) for name in plot.curves or []]
        for size in ("quick", "full"):
            section = getattr(self, size)
            for settings in (section.settings,) if section else ():
                found.append((f"{size}.settings.target.best_of", getattr(settings.target, "best_of", None)))
            found += [(f"{size}.curves", name) for name in (section.curves or [] if section else [])]
        found.append(("common.target.best_of", getattr(self.common.target, "best_of", None)))
        return [(place, name) for place, name in found if name is not None]
