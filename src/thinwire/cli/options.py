"""Options that several commands have, how their values are read, and what the shell completes them to."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import thinwire
from thinwire.base.errors import BadInput

if TYPE_CHECKING:
    from thinwire.integrations import RunWriter
    from thinwire.job.init_from import InitFrom

# What can be completed. Written out, since to import them is to import torch; a test holds them against the code.
METHOD_NAMES = ("svfl", "fedbcd", "cvfl", "efvfl", "celu", "pbm", "thin")
TEMPLATE_NAMES = ("tabular", "images", "ctr", "series", "private")
TRACKERS = ("tensorboard", "mlflow", "wandb")
EXPORT_FORMATS = ("exported-program", "onnx", "torchscript")
TABLES = ("test", "training", "all")
OBSERVERS = ("label_party", "feature_party", "all_others")


def complete(*values: str) -> Callable[[str], list[str]]:
    """For an option that takes one of these values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def complete_list(*values: str) -> Callable[[str], list[str]]:
    """For an option that takes several of them, separated by commas."""

    def complete_last(incomplete: str) -> list[str]:
        given, comma, last = incomplete.rpartition(",")
        taken = given.split(",")
        return [f"{given}{comma}{value}" for value in values if value.startswith(last) and value not in taken]

    return complete_last


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


JobPath = Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.")]
PartyName = Annotated[
    str,
    typer.Option(
        "--name", metavar="PARTY", help="The name of this party in the job.", autocompletion=complete_parties
    ),
]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a field of the job, such as recipe.compressor.fraction=0.05."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on stdout.")]
OwnFolder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="The run folder of this party (default: runs/<job>/<name>)."),
]
OwnRun = Annotated[
    Path | None,
    typer.Option(
        "--run", metavar="DIR", help="With a job file: the run folder of this party (default: runs/<job>/<name>)."
    ),
]
LogTo = Annotated[
    str | None,
    typer.Option(
        "--log-to",
        metavar="NAMES",
        help="Also log to these trackers, separated by commas: tensorboard, mlflow, wandb.",
        autocompletion=complete_list(*TRACKERS),
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="RUN", help="Start from the weights of an earlier run, whose rows and parties may differ."
    ),
]
Fresh = Annotated[
    list[str],
    typer.Option(
        "--fresh",
        metavar="NAME",
        help="With --from: reinitialise the model of this party, or of the top model if NAME is top.",
        autocompletion=complete_parties,
    ),
]
WithOptimizers = Annotated[
    bool, typer.Option("--with-optimizers", help="With --from: take over the state of the optimizers too.")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="METRIC=VALUE", help="Aim at this test metric (default: the target of the job, if any)."
    ),
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Number of runs at the same time.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def parse_init_from(run: Path | None, fresh: list[str], optimizers: bool) -> InitFrom | None:
    """The earlier run that was named; None where there is none."""
    if run is None:
        if fresh or optimizers:
            raise BadInput("--fresh and --with-optimizers go with --from RUN, the earlier run to begin from")
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
    """A text file, one id a line."""
    try:
        found = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{option} {file} cannot be read as text: {error}") from None
    if not found:
        raise BadInput(f"{option} {file} is empty; write one id a line")
    return found


def parse_seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds: whole numbers with commas between, as in --seeds 0,1,2; got {text!r}") from None


def parse_target(text: str | None) -> list[str]:
    """As settings of a job."""
    if text is None:
        return []
    metric, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        equals = ""
    if not equals:
        raise BadInput(f"--target: write METRIC=VALUE, as in --target accuracy=0.92; got {text!r}")
    return [f"job.target.metric={json.dumps(metric.strip())}", f"job.target.value={number}"]
