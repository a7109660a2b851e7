"""An experiment: its file, and every setting decided at one of its sizes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.job.messages import within
from thinwire.lab.papers.schema import (
    BestOf,
    CurveSection,
    ExpectSection,
    ExperimentFile,
    ExperimentSection,
    ExperimentTarget,
    ModelSection,
    SettingsSection,
    SizeSection,
)

Size = Literal["quick", "full"]

_DEFAULTS = SettingsSection(epochs=10.0, metrics=["accuracy"], diagnostics=False, effort="small")


@dataclass(frozen=True)
class Curve:
    """One line of the figure, with its settings."""

    name: str
    recipe: Mapping[str, Any]
    settings: SettingsSection

    @property
    def folder(self) -> str:
        """The curve's name as a folder may be called."""
        kept = "".join(sign if sign.isalnum() else "-" for sign in self.name.lower().replace("%", " percent"))
        return "-".join(part for part in kept.split("-") if part)


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


def resolve_size(name: str, file: ExperimentFile, size: Size, seeds: tuple[int, ...] | None = None) -> Experiment:
    """The experiment with what this size changes."""
    section = file.quick if size == "quick" else file.full
    if section is None:
        raise BadInput(f"{name}: runs at full size only; leave out --quick")
    settings = _over(_over(_DEFAULTS, file.common), section.settings)
    chosen = [curve for curve in file.curve if section.curves is None or curve.name in section.curves]
    return Experiment(
        name=name,
        size=size,
        about=file.experiment,
        model=_model(file.model, section),
        curves=tuple(_curve(curve, settings) for curve in chosen),
        seeds=seeds or tuple(section.seeds or file.experiment.seeds),
        target=settings.target,
        rows=section.rows,
        test_rows=section.test_rows,
        says=section.says,
        file=file,
    )


def _curve(curve: CurveSection, settings: SettingsSection) -> Curve:
    return Curve(curve.name, curve.recipe, _over(settings, curve.settings))


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
            return path.stem, ExperimentFile.model_validate(tomllib.loads(_text(path)))
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"not TOML: {error}") from None
        except ValidationError as error:
            raise BadInput(_format_errors(error)) from None


def read_experiment_text(name: str) -> str:
    """The file as it stands."""
    return _text(_path(name))


def _path(name: str) -> Path:
    known = find_experiments()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise BadInput(f"there is no experiment {name!r}{did_you_mean(name, known)}; `thinwire reproduce` lists them")
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput("there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}") from None


def _format_errors(error: ValidationError) -> str:
    found = []
    for one in error.errors(include_url=False, include_context=False):
        place = ".".join(map(str, one["loc"]))
        found.append(f"{place}: {one['msg'].removeprefix('Value error, ')}" if place else one["msg"])
    return "; ".join(found[:4])
