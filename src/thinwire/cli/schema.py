"""`thinwire schema`: what a job file may hold, for editors and other programs."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from thinwire.base.errors import BadInput


def schema(out: Path | None = None) -> None:
    """Print the JSON schema of job files, for completion and validation in editors."""
    from thinwire.job.schema import job_schema

    text = json.dumps(job_schema(), indent=2, sort_keys=True)
    if out is None:
        typer.echo(text)
        return
    try:
        out.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--out {out}: {error.strerror or error}") from None
    typer.echo(f"wrote {out}", err=True)
