"""`thinwire export`: a run's models in formats that others read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.options import EXPORT_FORMATS, AsJson, complete
from thinwire.cli.output import print_result


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of one party's part of it.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Export format: exported-program, onnx or torchscript.",
            autocompletion=complete(*EXPORT_FORMATS),
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="New folder for the exported models, one file each.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write a run's bottom and top models as ExportedProgram, ONNX or TorchScript."""
    from thinwire.predict.export import export_party_models, find_owner
    from thinwire.predict.run import load_run

    files = load_run(run).export(to, out) if find_owner(run) is None else export_party_models(run, to, out)
    lines = [f"  {name}: {file}, the same numbers as the model" for name, file in files.items()]
    facts = {"to": to, "files": {name: str(file) for name, file in files.items()}}
    print_result(facts, as_json, [*lines, f"  what each takes and gives: {out / 'export.json'}"])
