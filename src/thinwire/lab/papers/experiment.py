"""An experiment: what its file may hold, and every setting decided at one of its sizes.

One file is one table or figure of a paper: its data, its models, its settings, a curve for every line of the figure,
and what the paper says about them. `[quick]` and `[full]` are the two sizes; each says what it changes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.data.prepare.settings import Finite
from thinwire.job.messages import within
from thinwire.job.schema import Count, JobFileSection, LinkSection, Positive, Table, Text

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
    lr_factors: list[EpochAndFactor] | None = None  # the learning rate is multiplied by each factor from its epoch on
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
    log: bool = False  # the y axis
    log_x: bool = False  # curves whose ends lie far apart have a logarithmic x axis in any case
    curves: list[Text] | None = None  # all


class ExpectSection(JobFileSection):
    """A claim as a comparison of numbers.

    `measure` of `metric` on `curve`, alone or compared (`form`) with that of the curve `of`, must be `at_least` or
    `at_most` a number. Costs are to the target; a target that some seed does not reach costs infinity. A limit that
    asks for less than `paper_value` is lenient: the claim is met at the paper's value only.
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
    paper_value: Finite | None = None  # what the paper has for the number that is limited
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

    @property
    def is_lenient(self) -> bool:
        """Does the limit ask for less than the paper has?"""
        if self.paper_value is None:
            return False
        if self.at_least is not None:
            return self.at_least < self.paper_value
        return self.at_most is not None and self.at_most > self.paper_value


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


# An experiment: its file, and every setting decided at one of its sizes -------------------------------------------


Size = Literal["quick", "full"]

_DEFAULTS = SettingsSection(epochs=10.0, metrics=["accuracy"], diagnostics=False, effort="small")


def file_name(title: str) -> str:
    """A curve's name or a plot's title as a file or folder may be called."""
    kept = "".join(sign if sign.isalnum() else "-" for sign in title.lower().replace("%", " percent"))
    return "-".join(part for part in kept.split("-") if part)


@dataclass(frozen=True)
class Curve:
    """One line of the figure, with its settings."""

    name: str
    recipe: Mapping[str, Any]
    settings: SettingsSection

    @property
    def folder(self) -> str:
        """The curve's name as a folder may be called."""
        return file_name(self.name)


@dataclass(frozen=True)
class Experiment:
    """What runs: curves by seeds, on these rows."""

    name: str
    size: Size
    about: ExperimentSection
    model: ModelSection
    curves: tuple[Curve, ...]
    seeds: tuple[int, ...]
    target: ExperimentTarget | BestOf | None
    rows: int | None
    test_rows: int | None
    says: str | None  # what this size changes
    file: ExperimentFile

    @property
    def expectations(self) -> list[ExpectSection]:
        """Those of this size whose curves are run."""
        names = {curve.name for curve in self.curves}
        return [
            one
            for one in self.file.expect
            if self.size in one.sizes and one.curve in names and (one.of is None or one.of in names)
        ]


def resolve_size(
    name: str,
    file: ExperimentFile,
    size: Size,
    seeds: tuple[int, ...] | None = None,
    curves: tuple[str, ...] | None = None,
) -> Experiment:
    """The experiment with what this size changes, and with these seeds and curves alone."""
    section = file.quick if size == "quick" else file.full
    if section is None:
        raise BadInput(f"{name}: runs at full size only; leave out --quick")
    settings = _over(_over(_DEFAULTS, file.common), section.settings)
    chosen = _choose_curves(name, file, section, settings, curves)
    return Experiment(
        name=name,
        size=size,
        about=file.experiment,
        model=_model(file.model, section),
        curves=tuple(Curve(one.name, one.recipe, _over(settings, one.settings)) for one in chosen),
        seeds=seeds or tuple(section.seeds or file.experiment.seeds),
        target=settings.target,
        rows=section.rows,
        test_rows=section.test_rows,
        says=section.says,
        file=file,
    )


def _choose_curves(
    name: str, file: ExperimentFile, section: SizeSection, settings: SettingsSection, asked: tuple[str, ...] | None
) -> list[CurveSection]:
    """The curves of this size, or those asked for, in the order of the file."""
    offered = [curve for curve in file.curve if section.curves is None or curve.name in section.curves]
    if asked is None:
        return offered
    names = [curve.name for curve in offered]
    for one in asked:
        if one not in names:
            raise BadInput(f"--curve: {name} has no curve {one!r} at this size; it has {'; '.join(names)}")
    needed = getattr(settings.target, "best_of", None)
    if needed is not None and needed not in asked:
        raise BadInput(f"--curve: {name} takes its target from the curve {needed!r}; add --curve {needed!r}")
    return [curve for curve in offered if curve.name in asked]


def _over(below: SettingsSection, above: SettingsSection) -> SettingsSection:
    """What `above` says, and else what `below` does."""
    return below.model_copy(update={field: getattr(above, field) for field in above.model_fields_set})


def _model(model: ModelSection, section: SizeSection) -> ModelSection:
    bottom = _table(model.bottom, section.bottom)
    label_bottom = None if model.label_bottom is None else _table(model.label_bottom, section.label_bottom)
    top = _table(model.top, section.top)
    return model.model_copy(update={"bottom": bottom, "label_bottom": label_bottom, "top": top})


def _table(model: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """With some arguments changed; or, where a size names a model of its own, that one."""
    return dict(changed) if "name" in changed else {**model, **changed}


# Where experiment files are, and what they say --------------------------------------------------------------------


_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "experiments", _HERE.parents[3] / "experiments")  # installed; a working copy


def find_experiments() -> dict[str, Path]:
    """Every experiment that comes with the package, by name."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.toml"))}


def match_experiments(name: str, size: Size) -> list[str]:
    """The experiment of that name; or those of this size that begin with it: thin-all and thin are every thin-*."""
    known = find_experiments()
    if name in known or name.endswith(".toml"):
        return [name]
    begun = [one for one in known if one.startswith(f"{name.removesuffix('-all')}-")]
    fit = [one for one in begun if size == "full" or not read_experiment(one)[1].experiment.full_size_only]
    return fit or [_path(name).stem]


def read_experiment(name: str) -> tuple[str, ExperimentFile]:
    """The experiment of that name, or of a file of one's own."""
    path = _path(name)
    with within(str(path) if name.endswith(".toml") else name):
        try:
            return path.stem, ExperimentFile.model_validate(tomllib.loads(read_experiment_text(name)))
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"not TOML: {error}") from None
        except ValidationError as error:
            raise BadInput(_format_errors(error)) from None


def read_experiment_text(name: str) -> str:
    """The file as it stands."""
    try:
        return _path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput("the file does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}") from None


def _path(name: str) -> Path:
    known = find_experiments()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise BadInput(f"there is no experiment {name!r}{did_you_mean(name, known)}; `thinwire reproduce` lists them")
    return path


def _format_errors(error: ValidationError) -> str:
    found = []
    for one in error.errors(include_url=False, include_context=False):
        place = ".".join(map(str, one["loc"]))
        found.append(f"{place}: {one['msg'].removeprefix('Value error, ')}" if place else one["msg"])
    return "; ".join(found[:4])
