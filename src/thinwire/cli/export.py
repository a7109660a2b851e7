"""`thinwire export`: a run's models in formats that others read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.shown import AsJson

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of one party's part of it.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="exported-program, onnx or torchscript.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder: a file for each model.")],
    as_json: AsJson = False,
) -> None:
    """Write a run's bottom and top models as ExportedProgram, ONNX or TorchScript."""
    from thinwire.predict import load_run
    from thinwire.predict.export import export_party_models, find_owner

    files = load_run(run).export(to, out) if find_owner(run) is None else export_party_models(run, to, out)
    if as_json:
        typer.echo(json.dumps({"to": to, "files": {name: str(file) for name, file in files.items()}}))
        return
    for name, file in files.items():
        typer.echo(f"  {name}: {file}, the same numbers as the model")
    typer.echo(f"  what each takes and gives: {out / 'export.json'}")
