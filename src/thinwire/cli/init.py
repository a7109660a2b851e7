"""`thinwire init`: a few questions, a look at the files, and a job file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.shown import AsJson
from thinwire.errors import BadInput

__all__ = ["init"]


def init(
    job: Annotated[Path, typer.Argument(metavar="[JOB.toml]", help="The job file to write.")] = Path("job.toml"),
    *,
    template: Annotated[
        str, typer.Option("--template", metavar="NAME", help="tabular, images, ctr, series or private.")
    ] = "tabular",
    party: Annotated[
        list[str], typer.Option("--party", metavar="NAME=FILE", help="A party and its file; once for each.")
    ] = [],  # noqa: B006
    label: Annotated[
        str, typer.Option("--label", metavar="PARTY:COLUMN", help="Who holds the label, and in which column.")
    ] = "",
    id: Annotated[
        list[str],
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="What names the rows; PARTY:COLUMN where names differ. Guessed unless given.",
        ),
    ] = [],  # noqa: B006
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented job file after a look at the parties' files; asks for what was not given."""
    from thinwire.init import TEMPLATES, Asked, written_job
    from thinwire.init.draft import require_free
    from thinwire.job.messages import did_you_mean

    if template not in TEMPLATES:
        raise BadInput(
            f"--template must be one of {', '.join(TEMPLATES)}, got {template!r}{did_you_mean(template, TEMPLATES)}"
        )
    require_free(job, force)
    parties = party or _asked_parties()
    asked = Asked.parsed(template, parties, label or _asked_label(parties), id)
    found = written_job(asked, job, force)
    if as_json:
        typer.echo(json.dumps({**vars(found), "path": str(found.path)}))
        return
    typer.echo(f"{found.path} is written: {found.task}, {found.rows} rows that all parties hold")
    if found.ids is not None:
        how = "as given" if id else "guessed by overlap"
        typer.echo(f"  ids ({how}): {', '.join(f'{name} {column!r}' for name, column in found.ids.items())}")
    typer.echo("next:")
    for line in found.commands:
        typer.echo(f"  {line}")


def _asked_parties() -> list[str]:
    """One for each file that is here, if somebody says so."""
    files = sorted(file.name for kind in ("csv", "parquet", "npz") for file in Path().glob(f"*.{kind}"))
    proposed = " ".join(f"{Path(file).stem}={file}" for file in files)
    if not sys.stdin.isatty():
        raise BadInput(
            "--party is missing: say who takes part, such as "
            + (
                " ".join(f"--party {one}" for one in proposed.split())
                or "--party bank=bank.csv --party shop=shop.csv"
            )
        )
    told: str = typer.prompt("Parties and their files, as name=file", default=proposed or None, err=True)
    return told.split()


def _asked_label(parties: list[str]) -> str:
    if not sys.stdin.isatty():
        raise BadInput(
            f"--label is missing: say who holds the label, such as --label {parties[-1].split('=')[0]}:COLUMN"
        )
    told: str = typer.prompt("Who holds the label, and in which column, as party:column", err=True)
    return told
