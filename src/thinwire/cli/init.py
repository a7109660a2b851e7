"""`thinwire init`: a few questions, a look at the files, and a job file."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.output import print_result
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from thinwire.job.schema import RosterFile
    from thinwire.job.wizard import WrittenCore, WrittenJob, WrittenPart

_USUAL = "trees"  # of tables: the better scores where both were measured (docs/tabular.md)
_USUAL_OF_ARRAYS = "tabular"
_READING = "reading the tables"


def init(
    job: Path = Path("job.toml"),
    *,
    template: str | None = None,
    model: str | None = None,
    party: list[str] = [],
    label: str = "",
    id: list[str] = [],
    delimiter: list[str] = [],
    encoding: list[str] = [],
    decimal: list[str] = [],
    thousands: list[str] = [],
    core: Path | None = None,
    address: str = "",
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Inspect the parties' files and write a commented job file; ask for what is missing."""
    from thinwire.job.wizard import CoreAnswers, JobAnswers, PartAnswers, write_core, write_job, write_part
    from thinwire.job.wizard.answers import choose_template
    from thinwire.job.wizard.job_writer import read_core, require_free

    template = choose_template(template, model)
    require_free(job, force)
    formats = {"delimiter": delimiter, "encoding": encoding, "decimal": decimal, "thousands": thousands}
    found: WrittenJob | WrittenCore | WrittenPart
    if core is not None:
        roster = read_core(core)
        own = party or [_ask_own(roster)]
        label = label or _ask_own_label(roster, own[0])
        part = PartAnswers.parse(template, core, own, label, id, formats)
        with ProgressLine(_READING, 0) as progress:
            found = write_part(part, job, force, progress.follower)
        lines = _format_part(found, bool(id))
    elif (parties := party or _ask_parties()) and not any("=" in one for one in parties):
        label = label or _ask_label(parties, "Who holds the label")
        template = template or choose_template(None, None if party else _ask_model())
        told = CoreAnswers.parse(template or _USUAL, parties, label)
        found = write_core(replace(told, address=address or _ask_address()), job, force)
        lines = [f"wrote {found.path}: the same file for {', '.join([*found.parties, found.label_party])}"]
    else:
        label = label or _ask_label(parties, "Who holds the label, and in which column, as party:column")
        usual = _USUAL_OF_ARRAYS if any(one.lower().endswith(".npz") for one in parties) else _USUAL
        if not party and usual == _USUAL:
            template = template or choose_template(None, _ask_model())
        whole = JobAnswers.parse(template or usual, parties, label, id, formats)
        with ProgressLine(_READING, 0) as progress:
            found = write_job(whole, job, force, progress.follower)
        lines = _format_job(found, bool(id))
    print_result(asdict(found), as_json, [*lines, "next:", *(f"  {one}" for one in found.commands)])


def _format_job(found: WrittenJob, ids_given: bool) -> list[str]:
    lines = [f"wrote {found.path}: {found.task}, {found.rows} rows that all parties share"]
    if found.ids is not None:
        how = "as given" if ids_given else "guessed by overlap"
        lines.append(f"  ids ({how}): {', '.join(f'{name} {column!r}' for name, column in found.ids.items())}")
    return [*lines, *(f"  {note}" for note in found.notes)]


def _format_part(found: WrittenPart, id_given: bool) -> list[str]:
    task = "" if found.task is None else f"{found.task}, "
    lines = [f"wrote {found.path}: the part of {found.party} next to {found.core}; {task}{found.rows} rows"]
    if found.id is not None:
        how = "as given" if id_given else "guessed from its name and values; override it with --id"
        lines.append(f"  ids ({how}): {found.id!r}")
    return [*lines, *(f"  {note}" for note in found.notes)]


def _find_files() -> list[str]:
    return sorted(file.name for kind in ("csv", "parquet", "npz") for file in Path().glob(f"*.{kind}"))


def _ask(question: str, missing: str, default: str | None = None) -> str:
    """Whoever sits at the terminal; where nobody does, the error says what is missing."""
    if not sys.stdin.isatty():
        raise BadInput(missing)
    answer: str = typer.prompt(question, default=default, err=True)
    return answer


def _ask_parties() -> list[str]:
    """One for each file that is here, if somebody says so."""
    found = [f"{Path(file).stem}={file}" for file in _find_files()]
    example = " ".join(f"--party {one}" for one in found or ["bank=bank.csv", "shop=shop.csv"])
    missing = f"--party is missing; name the parties, such as {example}"
    return _ask("Parties and their files, as name=file", missing, " ".join(found) or None).split()


def _ask_label(parties: list[str], question: str) -> str:
    name, has_file, _ = parties[-1].partition("=")
    example = f"{name}{':COLUMN' if has_file else ''}"
    return _ask(question, f"--label is missing; name the party that holds the label, such as --label {example}")


def _ask_model() -> str:
    return _ask("Model of the tables, boosted_trees or mlp", "", "boosted_trees")


def _ask_address() -> str:
    missing = "--address is missing; give the address of the label party, such as --address fl.example.org:7443"
    return _ask("Where the label party can be reached, as host:port", missing)


def _ask_own(core: RosterFile) -> str:
    """A party of the core whose file seems to be here."""
    names = [*(party.name for party in core.party), core.label_party.name]
    here = [f"{name}={file}" for name in names for file in _find_files() if Path(file).stem == name]
    proposed, which = here[0] if len(here) == 1 else None, ", ".join(names)
    example = proposed or f"{names[0]}=FILE"
    missing = f"--party is missing; name which of {which} this is and its file, as in --party {example}"
    return _ask(f"Which of {which} is this party, and its file, as name=file", missing, proposed)


def _ask_own_label(core: RosterFile, party: str) -> str:
    """Only the label party has one; without a terminal the part itself says what is missing."""
    if party.partition("=")[0] != core.label_party.name or not sys.stdin.isatty():
        return ""
    return _ask("Which column holds the label", "")
