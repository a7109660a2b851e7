"""CLI: the command line: one file a command, the only place that prints.

Importing it must not import torch. May import every floor.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Annotated

import typer

from thinwire import __version__
from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.process import allow_open_files, configure_grpc, share_memory_pool
from thinwire.cli.abort import abort
from thinwire.cli.align import align
from thinwire.cli.audit import audit
from thinwire.cli.certs import certs
from thinwire.cli.check import check
from thinwire.cli.clean import clean
from thinwire.cli.compare import compare
from thinwire.cli.compressors import compressors, methods
from thinwire.cli.dashboard import dashboard
from thinwire.cli.demo import demo
from thinwire.cli.diagnose import diagnose
from thinwire.cli.doctor import doctor
from thinwire.cli.explain import explain
from thinwire.cli.export import export
from thinwire.cli.forget import forget
from thinwire.cli.init import init
from thinwire.cli.key import key
from thinwire.cli.kit import kit
from thinwire.cli.logs import logs
from thinwire.cli.options import describe_parameters
from thinwire.cli.party import party
from thinwire.cli.predict import predict
from thinwire.cli.privacy import privacy
from thinwire.cli.report import report
from thinwire.cli.reproduce import reproduce
from thinwire.cli.schema import schema
from thinwire.cli.serve import serve
from thinwire.cli.status import status
from thinwire.cli.sweep import sweep
from thinwire.cli.train import train
from thinwire.cli.tune import tune

__all__ = ["app", "main"]

_LINKED = {"align", "doctor", "party", "predict", "serve"}  # do not simulate: gRPC's threads keep pools of their own

app = typer.Typer(
    name="thinwire",
    help="Train one model across organisations that hold different columns of the same rows, sending few bytes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_MOVED = {"bench": "suite.py", "load-test": "load_test.py URL"}
PANELS = {
    "Start": (demo, init, check, train, predict),
    "Run across organisations": (kit, certs, doctor, align, party, status, logs, abort, serve),
    "Inspect results": (report, dashboard, compare, diagnose, audit, privacy),
    "Research": (sweep, tune, reproduce, methods, compressors),
    "Housekeeping": (export, clean, forget, key, schema, explain),
}


def _tell_where(context: typer.Context) -> None:
    """Moved: run it in a checkout of thinwire."""
    name = str(context.info_name)
    raise BadInput(f"`thinwire {name}` has moved: run `python benchmarks/{_MOVED[name]}` in a checkout of thinwire")


for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(describe_parameters(command))
for moved in _MOVED:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(moved, hidden=True, context_settings=anything)(_tell_where)


_STATED = ("torch", "numpy", "pyarrow", "grpcio", "lightgbm", "scikit-learn", "constriction")


def _version(asked: bool) -> None:
    """The version, and below it what a bug report needs."""
    if asked:
        typer.echo(f"thinwire {__version__}")
        typer.echo(f"Python {platform.python_version()} ({platform.python_implementation()})")
        typer.echo(f"{platform.platform()}, {os.cpu_count()} CPUs")
        typer.echo(", ".join(f"{name} {_find_version(name)}" for name in _STATED))
        raise typer.Exit


def _find_version(package: str) -> str:
    """Read from its metadata: importing torch takes seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@app.callback()
def _options(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_version, is_eager=True, help="Print version and environment, and exit."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command; `main` takes --debug out, wherever it stands."""


def _require_one_process(arguments: list[str]) -> None:
    """torchrun starts several of the same command: only a party can be several."""
    if (
        int(os.environ.get("WORLD_SIZE", "1")) > 1
        and "TORCHELASTIC_RUN_ID" in os.environ
        and "party" not in arguments
    ):
        raise BadInput("torchrun works only with `thinwire party`; run this command without it")


def main() -> None:
    """Runs a command. Exit code 0: done; 1: failed while running; 2: wrong input, nothing was started."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        _require_one_process(arguments)
        configure_grpc()
        allow_open_files()
        if not _LINKED.intersection(arguments[:1]):
            share_memory_pool()
        app(arguments)
    except ThinwireError as error:
        if debug:
            raise
        typer.echo(f"thinwire: {error} [{error.code()}]", err=True)
        raise SystemExit(2 if isinstance(error, BadInput) else 1) from None
    except KeyboardInterrupt:
        typer.echo("thinwire: stopped", err=True)
        raise SystemExit(130) from None
    except Exception as error:
        if debug:
            raise
        typer.echo(f"thinwire: {type(error).__name__}: {error} (--debug shows the traceback)", err=True)
        raise SystemExit(1) from None
