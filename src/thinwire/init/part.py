"""One organisation's own part of a job, beside the core that it got: its own file is looked at, and no other."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thinwire.data.naming import wanted
from thinwire.errors import BadColumn, BadInput
from thinwire.init.array_section import array_labels, array_section, require_for_arrays
from thinwire.init.asked import AskedPart
from thinwire.init.ids import own_id
from thinwire.init.looking import Arrays, Table, looked_at
from thinwire.init.saving import require_free, saved
from thinwire.init.section import Labelled, Section, relative
from thinwire.init.table_section import TableIds, table_labels, table_section
from thinwire.init.templates import TEMPLATES
from thinwire.init.writing import METRICS, comment, party_section, top_of
from thinwire.job.messages import at, did_you_mean
from thinwire.job.own_part import own_part_of, roster_of
from thinwire.job.reading import read_text, text_of
from thinwire.job.schema import RosterFile
from thinwire.job.toml_text import inline

__all__ = ["WrittenPart", "read_core", "written_part"]


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
    section: Section
    rows: int
    id: str | None
    labels: Labelled | None


def read_core(path: Path) -> RosterFile:
    """What all parties share, judged before anybody's own file is looked at."""
    with at(str(path)):
        text = read_text(path)
    with text.located():
        return roster_of(text)


def written_part(asked: AskedPart, path: Path, force: bool = False) -> WrittenPart:
    """Looks at the party's file, then writes its part."""
    require_free(path, force)
    if path.resolve() == asked.core.resolve():
        raise BadInput(f"{path} is the core itself; give the part a name of its own, such as {asked.party}.toml")
    core = read_core(asked.core)
    _require_role(asked, core)
    template = asked.template or _template_for(core)
    look = looked_at(asked.file)
    draft = (
        _of_table(asked, look, template, path.parent)
        if isinstance(look, Table)
        else _of_arrays(asked, look, template, core, path.parent)
    )
    commands = _commands(asked.party, draft.section, path)
    text = _text(asked, draft, core, path, commands)
    read = text_of(path, tomllib.loads(text), me=asked.party)
    with read.located():
        own_part_of(read, asked.party)  # what is written can be read, and could run
    saved(path, text)
    task = None if draft.labels is None else draft.labels.task
    return WrittenPart(path, asked.core, asked.party, draft.rows, draft.id, task, commands)


def _require_role(asked: AskedPart, core: RosterFile) -> None:
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


def _of_table(asked: AskedPart, table: Table, template: str, folder: Path) -> _Draft:
    labels = None if asked.label is None else table_labels(table, asked.label, folder)
    column = asked.id or own_id(table, asked.label)
    wanted(table.file, table.cells.names, [column])
    about = f"{table.file.name}: {table.rows} rows, named by {column!r}"
    ids = TableIds(column, about, {"alignment": f"{asked.party}.alignment"})
    section = table_section(asked.party, table, ids, TEMPLATES[template], folder, asked.label)
    return _Draft(section, table.rows, column, labels)


def _of_arrays(asked: AskedPart, look: Arrays, template: str, core: RosterFile, folder: Path) -> _Draft:
    require_for_arrays(template)
    if core.job.split is not None and asked.id is None:
        raise BadColumn(
            f"{look.file}: {asked.core} keeps rows back by their ids (job.split); say which array holds them by --id "
            f"KEY, it holds {look.listed}"
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
        raise BadColumn(f"{look.file}: there is no array {key!r}, it holds {look.listed}")
    file = relative(look.file, folder)
    found: dict[str, Any] = {"ids": {"file": file, "key": key}, "alignment": f"{party}.alignment"}
    test = look.test_of(key)
    if has_tests and test is not None:
        found |= {"test_ids": {"file": file, "key": test}, "test_alignment": f"{party}-test.alignment"}
    return found


def _commands(party: str, section: Section, path: Path) -> list[str]:
    named = f"{path.name} --name {party}"
    align = [f"thinwire align {named}"] if "alignment" in section.keys else []
    tests = [f"thinwire align {named} --test"] if "test_alignment" in section.keys else []
    return [*align, *tests, f"thinwire doctor {named}", f"thinwire party {named}"]


def _text(asked: AskedPart, draft: _Draft, core: RosterFile, path: Path, commands: list[str]) -> str:
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
    parts = [comment(head), f"include = {inline(relative(asked.core, path.parent))}"]
    if draft.labels is None:
        entry = next(party for party in core.party if party.name == asked.party)
        parts.append(party_section("[[party]]", _without(draft.section, entry.model_fields_set)))
        return "\n\n".join(parts) + "\n"
    if "metrics" not in core.job.model_fields_set:
        metrics = inline(METRICS[draft.labels.task])
        parts.append(f"[job]\nmetrics = {metrics}  # the label party's matter; the first one decides which is best")
    section = draft.section.after(draft.labels.keys)
    section = Section(
        section.name, section.about, {**section.keys, **top_of(draft.labels.task, draft.labels.classes)}
    )
    parts.append(party_section("[label_party]", _without(section, core.label_party.model_fields_set)))
    return "\n\n".join(parts) + "\n"


def _without(section: Section, said: set[str]) -> Section:
    """What the core says already is left to it."""
    return Section(
        section.name, section.about, {key: value for key, value in section.keys.items() if key not in said}
    )
