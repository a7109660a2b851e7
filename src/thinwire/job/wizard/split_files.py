"""A job between organisations: the core that all of them share, and one party's part beside it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadColumn, BadInput
from thinwire.base.format import did_you_mean
from thinwire.data.readers.tables import select_columns
from thinwire.job.job_file import build_text, inline, read_text
from thinwire.job.messages import within
from thinwire.job.party_view import build_party_view, read_roster
from thinwire.job.schema import RosterFile
from thinwire.job.wizard.answers import CoreAnswers, PartAnswers
from thinwire.job.wizard.file_inspection import Arrays, InspectedTable, guess_own_id, inspect_file
from thinwire.job.wizard.job_writer import (
    METRICS,
    TEST_SHARE,
    build_top,
    format_comment,
    job_section,
    optimizer_section,
    party_section,
    recipe_section,
    require_free,
    save_file,
)
from thinwire.job.wizard.sections import (
    DraftSection,
    LabelChoice,
    TableIds,
    array_labels,
    array_section,
    relative,
    require_for_arrays,
    require_parties,
    table_labels,
    table_section,
)
from thinwire.job.wizard.templates import TEMPLATES, Template

_BATCH_SIZE = 64


@dataclass(frozen=True)
class WrittenCore:
    """Where the core is, whom it names, and what each of them does next."""

    path: Path
    parties: list[str]
    label_party: str
    commands: list[str]


def write_core(asked: CoreAnswers, path: Path, force: bool = False) -> WrittenCore:
    require_free(path, force)
    require_parties(asked.template, len(asked.parties))
    text = _core_text(asked, path)
    read_roster(build_text(path, tomllib.loads(text)))  # what is written can be read, and could run
    save_file(path, text)
    every = [*asked.parties, asked.label_party]
    certs = f"thinwire certs certs {' '.join(f'--party {name}' for name in every)}"
    return WrittenCore(path, list(asked.parties), asked.label_party, [certs, *_parts(asked, path)])


def _core_text(asked: CoreAnswers, path: Path) -> str:
    template = TEMPLATES[asked.template]
    head = [
        f"The core of a job for {template.title}: the same file at every organisation.",
        "It names no data and no code. Each writes its own part beside it, after a look at its own file alone:",
        *(f"  {line}" for line in _parts(asked, path)),
    ]
    parts = [
        format_comment(head),
        job_section(template, {"batch_size": _BATCH_SIZE}, 0.0 if template.arrays else TEST_SHARE),
    ]
    parts += [recipe_section(template), optimizer_section(), _network(asked.address)]
    parts += [party_section("[[party]]", DraftSection(name, (), {})) for name in asked.parties]
    fusion = {} if template.fusion == "sum" else {"fusion": template.fusion}
    parts.append(party_section("[label_party]", DraftSection(asked.label_party, _about_widths(template), fusion)))
    return "\n\n".join(parts) + "\n"


def _parts(asked: CoreAnswers, path: Path) -> list[str]:
    """A command for each organisation."""
    template = "" if asked.template == "tabular" else f" --template {asked.template}"
    begun = {
        name: f"thinwire init {name}.toml --core {path.name} --party {name}=FILE{template}"
        for name in (*asked.parties, asked.label_party)
    }
    begun[asked.label_party] += " --label COLUMN"
    return list(begun.values())


def _network(address: str) -> str:
    said = format_comment(
        ["Certificates are looked for in certs/ beside each part: `thinwire certs` makes them, once."]
    )
    return f"{said}\n[network]\naddress = {inline(address)}  # where the label party can be reached"


def _about_widths(template: Template) -> tuple[str, ...]:
    if template.fusion == "concat":
        return ()
    return (f"Embeddings are added up, so all bottom models are of one width: {template.model['width']} here.",)


@dataclass(frozen=True)
class WrittenPart:
    """Where the part is, what was found, and what to do next."""

    path: Path
    core: Path
    party: str
    rows: int
    id: str | None  # the column or key
    task: str | None  # at the label party
    commands: list[str]


@dataclass(frozen=True)
class _Draft:
    section: DraftSection
    rows: int
    id: str | None
    labels: LabelChoice | None


def read_core(path: Path) -> RosterFile:
    """What all parties share, judged before anybody's own file is looked at."""
    with within(str(path)):
        text = read_text(path)
    with text.locate_errors():
        return read_roster(text)


def write_part(asked: PartAnswers, path: Path, force: bool = False) -> WrittenPart:
    """Looks at the party's file, then writes its part."""
    require_free(path, force)
    if path.resolve() == asked.core.resolve():
        raise BadInput(f"{path} is the core itself; give the part a name of its own, such as {asked.party}.toml")
    core = read_core(asked.core)
    _require_role(asked, core)
    template = asked.template or _template_for(core)
    look = inspect_file(asked.file)
    draft = (
        _of_table(asked, look, template, path.parent)
        if isinstance(look, InspectedTable)
        else _of_arrays(asked, look, template, core, path.parent)
    )
    commands = _commands(asked.party, draft.section, path)
    text = _part_text(asked, draft, core, path, commands)
    read = build_text(path, tomllib.loads(text), me=asked.party)
    with read.locate_errors():
        build_party_view(read, asked.party)  # what is written can be read, and could run
    save_file(path, text)
    task = None if draft.labels is None else draft.labels.task
    return WrittenPart(path, asked.core, asked.party, draft.rows, draft.id, task, commands)


def _require_role(asked: PartAnswers, core: RosterFile) -> None:
    features, label_party = [party.name for party in core.party], core.label_party.name
    if asked.party not in (*features, label_party):
        known = [*features, label_party]
        raise BadInput(
            f"--party: {asked.core} has no party {asked.party!r}; there are {', '.join(known)}"
            f"{did_you_mean(asked.party, known)}"
        )
    if asked.party == label_party and asked.label is None:
        raise BadInput(f"--label is missing: {asked.party!r} holds the label; say in which column, --label COLUMN")
    if asked.party != label_party and asked.label is not None:
        raise BadInput(f"--label {asked.label}: the label is held by {label_party!r}, not by {asked.party!r}")


def _template_for(core: RosterFile) -> str:
    """Private training needs columns of which nothing is fitted."""
    training = core.job.training
    name = training.get("name") if isinstance(training, dict) else training
    return "private" if name == "DPBottom" else "tabular"


def _of_table(asked: PartAnswers, table: InspectedTable, template: str, folder: Path) -> _Draft:
    labels = None if asked.label is None else table_labels(table, asked.label, folder)
    column = asked.id or guess_own_id(table, asked.label)
    select_columns(table.file, table.cells.names, [column])
    about = f"{table.file.name}: {table.rows} rows, named by {column!r}"
    ids = TableIds(column, about, {"alignment": f"{asked.party}.alignment"})
    section = table_section(asked.party, table, ids, TEMPLATES[template], folder, asked.label)
    return _Draft(section, table.rows, column, labels)


def _of_arrays(asked: PartAnswers, look: Arrays, template: str, core: RosterFile, folder: Path) -> _Draft:
    require_for_arrays(template)
    if core.job.split is not None and asked.id is None:
        raise BadColumn(
            f"{look.file}: {asked.core} keeps rows back by their ids (job.split); say which array holds them by --id "
            f"KEY, it holds {look.names_text}"
        )
    labels = None if asked.label is None else array_labels(look, asked.label, folder)
    section = array_section(asked.party, look, asked.label, template, folder)
    named = section.keys["features"] if labels is None else labels.keys["labels"]
    if core.job.split is not None:  # test rows come from the same arrays
        section = replace(section, keys=_of_training(section.keys))
        labels = None if labels is None else replace(labels, keys=_of_training(labels.keys))
    if asked.id is not None:
        has_tests = bool({"test_features", "test_labels"} & {*section.keys, *(() if labels is None else labels.keys)})
        section = section.after(_array_ids(asked.party, asked.id, look, has_tests, folder))
    return _Draft(section, look.shapes[named["key"]][0], asked.id, labels)


def _of_training(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if not key.startswith("test_")}


def _array_ids(party: str, key: str, look: Arrays, has_tests: bool, folder: Path) -> dict[str, Any]:
    if key not in look.shapes:
        raise BadColumn(f"{look.file}: there is no array {key!r}, it holds {look.names_text}")
    file = relative(look.file, folder)
    found: dict[str, Any] = {"ids": {"file": file, "key": key}, "alignment": f"{party}.alignment"}
    test = look.test_of(key)
    if has_tests and test is not None:
        found |= {"test_ids": {"file": file, "key": test}, "test_alignment": f"{party}-test.alignment"}
    return found


def _commands(party: str, section: DraftSection, path: Path) -> list[str]:
    named = f"{path.name} --name {party}"
    align = [f"thinwire align {named}"] if "alignment" in section.keys else []
    tests = [f"thinwire align {named} --test"] if "test_alignment" in section.keys else []
    return [*align, *tests, f"thinwire doctor {named}", f"thinwire party {named}"]


def _part_text(asked: PartAnswers, draft: _Draft, core: RosterFile, path: Path, commands: list[str]) -> str:
    what = {
        "align": "find the rows that all parties hold, by their ids",
        "doctor": "can it run? certificates, names, clocks, the way, data, memory",
        "party": "train, together with the others",
    }
    head = [
        f"The part of {asked.party} beside {asked.core.name}. Change what you like: docs/jobs.md explains every key."
    ]
    head += ["Each at the same time as at the other parties:"]
    longest = max(map(len, commands))
    head += [f"  {line:{longest}}  {what[line.split()[1]]}" for line in commands]
    parts = [format_comment(head), f"include = {inline(relative(asked.core, path.parent))}"]
    if draft.labels is None:
        entry = next(party for party in core.party if party.name == asked.party)
        parts.append(party_section("[[party]]", _without(draft.section, entry.model_fields_set)))
        return "\n\n".join(parts) + "\n"
    if "metrics" not in core.job.model_fields_set:
        metrics = inline(METRICS[draft.labels.task])
        parts.append(f"[job]\nmetrics = {metrics}  # the label party's matter; the first one decides which is best")
    section = draft.section.after(draft.labels.keys)
    section = DraftSection(
        section.name, section.about, {**section.keys, **build_top(draft.labels.task, draft.labels.classes)}
    )
    parts.append(party_section("[label_party]", _without(section, core.label_party.model_fields_set)))
    return "\n\n".join(parts) + "\n"


def _without(section: DraftSection, said: set[str]) -> DraftSection:
    """What the core says already is left to it."""
    return DraftSection(
        section.name, section.about, {key: value for key, value in section.keys.items() if key not in said}
    )
