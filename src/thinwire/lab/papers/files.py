"""Where experiment files are, and what they say."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.job.messages import within
from thinwire.lab.papers.experiment import Size
from thinwire.lab.papers.schema import ExperimentFile

_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "experiments", _HERE.parents[3] / "experiments")  # installed; a working copy


def experiment_files() -> dict[str, Path]:
    """Every experiment that comes with the package, by name."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.toml"))}


def experiment_names(name: str, size: Size) -> list[str]:
    """The experiment of that name; or those of this size that begin with it: thin-all and thin are every thin-*."""
    known = experiment_files()
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
            raise BadInput(_said(error)) from None


def experiment_text(name: str) -> str:
    """The file as it stands."""
    return _text(_path(name))


def _path(name: str) -> Path:
    known = experiment_files()
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


def _said(error: ValidationError) -> str:
    found = []
    for one in error.errors(include_url=False, include_context=False):
        place = ".".join(map(str, one["loc"]))
        found.append(f"{place}: {one['msg'].removeprefix('Value error, ')}" if place else one["msg"])
    return "; ".join(found[:4])
