"""`thinwire init`: a few questions, a look at the files, and a job file."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from thinwire.cli.shown import AsJson
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from thinwire.init import WrittenCore, WrittenJob, WrittenPart
    from thinwire.job.schema import RosterFile

__all__ = ["init"]

_USUAL = "tabular"


def init(
    job: Annotated[Path, typer.Argument(metavar="[JOB.toml]", help="The job file to write.")] = Path("job.toml"),
    *,
    template: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--template", metavar="NAME", help="tabular, which is usual, images, ctr, series or private."),
    ] = None,
    party: Annotated[
        list[str],
        typer.Option(
            "--party",
            metavar="NAME=FILE",
            help="A party and its file; once for each. Names alone: the core of a job, which names no file.",
        ),
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
    core: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--core", metavar="CORE.toml", help="Write one party's own part, beside this core of a job."),
    ] = None,
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="Of a core: where the label party can be reached.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented job file after a look at the parties' files; asks for what was not given."""
    from thinwire.init import TEMPLATES, CoreAnswers, JobAnswers, PartAnswers, write_core, write_job, write_part
    from thinwire.init.job_writer import require_free
    from thinwire.init.split_files import read_core
    from thinwire.job.messages import did_you_mean

    if template is not None and template not in TEMPLATES:
        raise BadInput(
            f"--template must be one of {', '.join(TEMPLATES)}, got {template!r}{did_you_mean(template, TEMPLATES)}"
        )
    require_free(job, force)
    found: WrittenJob | WrittenCore | WrittenPart
    if core is not None:
        roster = read_core(core)
        own = party or [_asked_own(roster)]
        label = label or _asked_own_label(roster, own[0])
        found = write_part(PartAnswers.parsed(template, core, own, label, id), job, force)
        lines = _of_part(found, bool(id))
    elif (parties := party or _asked_parties()) and not any("=" in one for one in parties):
        label = label or _asked_label(parties, "Who holds the label")
        told = CoreAnswers.parsed(template or _USUAL, parties, label)
        found = write_core(replace(told, address=address or _asked_address()), job, force)
        lines = [f"{found.path} is written: the same file for {', '.join([*found.parties, found.label_party])}"]
    else:
        label = label or _asked_label(parties, "Who holds the label, and in which column, as party:column")
        found = write_job(JobAnswers.parsed(template or _USUAL, parties, label, id), job, force)
        lines = _of_job(found, bool(id))
    if as_json:
        typer.echo(json.dumps(asdict(found), default=str))
        return
    for line in [*lines, "next:", *(f"  {one}" for one in found.commands)]:
        typer.echo(line)


def _of_job(found: WrittenJob, ids_given: bool) -> list[str]:
    lines = [f"{found.path} is written: {found.task}, {found.rows} rows that all parties hold"]
    if found.ids is not None:
        how = "as given" if ids_given else "guessed by overlap"
        lines.append(f"  ids ({how}): {', '.join(f'{name} {column!r}' for name, column in found.ids.items())}")
    return lines


def _of_part(found: WrittenPart, id_given: bool) -> list[str]:
    task = "" if found.task is None else f"{found.task}, "
    lines = [f"{found.path} is written: the part of {found.party} beside {found.core}; {task}{found.rows} rows"]
    if found.id is not None:
        how = "as given" if id_given else "guessed by its name and its values; say otherwise by --id"
        lines.append(f"  ids ({how}): {found.id!r}")
    return lines


def _files_here() -> list[str]:
    return sorted(file.name for kind in ("csv", "parquet", "npz") for file in Path().glob(f"*.{kind}"))


def _asked_parties() -> list[str]:
    """One for each file that is here, if somebody says so."""
    proposed = " ".join(f"{Path(file).stem}={file}" for file in _files_here())
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


def _asked_label(parties: list[str], question: str) -> str:
    if not sys.stdin.isatty():
        name, has_file, _ = parties[-1].partition("=")
        column = ":COLUMN" if has_file else ""
        raise BadInput(f"--label is missing: say who holds the label, such as --label {name}{column}")
    told: str = typer.prompt(question, err=True)
    return told


def _asked_address() -> str:
    if not sys.stdin.isatty():
        raise BadInput(
            "--address is missing: say where the label party can be reached, such as --address fl.example.org:7443"
        )
    told: str = typer.prompt("Where the label party can be reached, as host:port", err=True)
    return told


def _asked_own(core: RosterFile) -> str:
    """A party of the core whose file seems to be here."""
    names = [*(party.name for party in core.party), core.label_party.name]
    here = [f"{name}={file}" for name in names for file in _files_here() if Path(file).stem == name]
    if not sys.stdin.isatty():
        proposed = here[0] if len(here) == 1 else f"{names[0]}=FILE"
        raise BadInput(
            f"--party is missing: say which of {', '.join(names)} this is, and its file, as in --party {proposed}"
        )
    told: str = typer.prompt(
        f"Which of {', '.join(names)} this is, and its file, as name=file",
        default=here[0] if len(here) == 1 else None,
        err=True,
    )
    return told


def _asked_own_label(core: RosterFile, party: str) -> str:
    """Only the label party has one; without a terminal the part itself says what is missing."""
    if party.partition("=")[0] != core.label_party.name or not sys.stdin.isatty():
        return ""
    told: str = typer.prompt("Which column holds the label", err=True)
    return told
