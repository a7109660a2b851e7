"""The commands' options: their flags and help out of options.toml, what the shell completes, how values are read."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

import thinwire
from thinwire.base.errors import BadInput
from thinwire.cli.explain import complete_codes

if TYPE_CHECKING:
    from thinwire.integrations import RunWriter
    from thinwire.job.init_from import InitFrom


# The parameters of commands ---------------------------------------------------------------------------------------


def describe_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command's parameters their flags and their help, as options.toml has them; brackets in it are text."""
    table, hints = read_options(), get_type_hints(command)
    own = table.get(command.__name__, {})
    for name in inspect.signature(command).parameters:
        about = own.get(name) or table["every"][name]
        command.__annotations__[name] = Annotated[hints[name], _build_parameter(name, about)]
    command.__doc__ = _escape_brackets(command.__doc__ or "")
    return command


@cache
def read_options() -> dict[str, dict[str, dict[str, Any]]]:
    """By command and parameter; under "every" what several commands have alike."""
    return tomllib.loads(files("thinwire.cli").joinpath("options.toml").read_text(encoding="utf-8"))


def _build_parameter(name: str, about: dict[str, Any]) -> Any:
    given: dict[str, Any] = {key: about[key] for key in ("help", "min", "max") if key in about}
    given["help"] = _escape_brackets(given["help"])
    given["autocompletion"] = _find_completion(about)
    if "argument" in about:
        return typer.Argument(metavar=about["argument"], **given)
    return typer.Option(about.get("flag", f"--{name.replace('_', '-')}"), metavar=about.get("metavar"), **given)


def _escape_brackets(text: str) -> str:
    """Typer takes help for rich's markup, in which `[retention]` is a style."""
    if "[" not in text:
        return text
    from rich.markup import escape

    return escape(text)


# What the shell completes -----------------------------------------------------------------------------------------


def _find_completion(about: dict[str, Any]) -> Callable[..., list[str]] | None:
    """Values are written out in the file, since to import them is to import torch."""
    if "one_of" in about:
        return lambda incomplete: [value for value in about["one_of"] if value.startswith(incomplete)]
    if "some_of" in about:
        return lambda incomplete: _complete_list(about["some_of"], incomplete)
    return _COMPLETIONS[about["complete"]] if "complete" in about else None


def _complete_list(values: list[str], incomplete: str) -> list[str]:
    """One more of them, after a comma."""
    given, comma, last = incomplete.rpartition(",")
    taken = given.split(",")
    return [f"{given}{comma}{value}" for value in values if value.startswith(last) and value not in taken]


def complete_parties(ctx: typer.Context, incomplete: str) -> list[str]:
    """The parties of the job file that stands on the line already; none where it cannot be read."""
    given = [ctx.params.get("job"), ctx.params.get("source"), *ctx.args]  # args: while the line is not whole
    try:
        path = next(Path(str(word)) for word in given if str(word).endswith(".toml"))
        file = tomllib.loads(path.read_text(encoding="utf-8"))
        names = [*(party["name"] for party in file.get("party", [])), file["label_party"]["name"]]
    except (StopIteration, OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [name for name in names if isinstance(name, str) and name.startswith(incomplete)]


def complete_experiments(incomplete: str) -> list[str]:
    """The experiments that come with the package, installed or in a working copy."""
    package = Path(thinwire.__file__).parent
    folders = (package / "lab/papers/experiments", package.parents[1] / "experiments")
    return sorted({path.stem for folder in folders for path in folder.glob(f"{incomplete}*.toml")})


def complete_requests(incomplete: str) -> list[str]:
    """Requests for certificates, and folders that may hold them."""
    found = Path().glob(f"{incomplete}*")
    return sorted(
        f"{path}/" if path.is_dir() else str(path) for path in found if path.is_dir() or path.suffix == ".csr"
    )


_COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "parties": complete_parties,
    "experiments": complete_experiments,
    "codes": complete_codes,
    "requests": complete_requests,
}


# How values are read ----------------------------------------------------------------------------------------------


def parse_init_from(run: Path | None, fresh: list[str], optimizers: bool) -> InitFrom | None:
    """The earlier run that was named; None where there is none."""
    if run is None:
        if fresh or optimizers:
            raise BadInput("--fresh and --with-optimizers need --from RUN, the earlier run to start from")
        return None
    from thinwire.job.init_from import InitFrom

    return InitFrom(run, fresh, optimizers)


def parse_trackers(names: str | None) -> list[RunWriter]:
    """Before anything is read: one that is not installed is said at once."""
    if names is None:
        return []
    from thinwire.integrations import build_writers

    return build_writers(names)


def read_ids(option: str, file: Path) -> list[str]:
    """A text file, one id per line."""
    try:
        found = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{option} {file} cannot be read as text: {error}") from None
    if not found:
        raise BadInput(f"{option} {file} is empty; write one id per line")
    return found


def parse_seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds must be integers separated by commas, as in --seeds 0,1,2; got {text!r}") from None


def parse_target(text: str | None) -> list[str]:
    """As settings of a job."""
    if text is None:
        return []
    from thinwire.lab.tune import Aim

    aim = Aim.parse(text)
    return [f"job.target.metric={json.dumps(aim.metric)}", f"job.target.value={aim.value}"]
