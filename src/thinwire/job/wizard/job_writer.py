"""The job file itself, whole or in parts: every line that a newcomer will ask about says why it is there.

Between organisations a job is the core that all of them share, and one party's part beside it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from thinwire.base.errors import BadColumn, BadInput
from thinwire.base.format import did_you_mean
from thinwire.base.types import Progress
from thinwire.data.readers.tables import select_columns
from thinwire.job.job_file import build_text, inline, read_text
from thinwire.job.messages import within
from thinwire.job.party_view import build_party_view, read_roster
from thinwire.job.registry import build_recipe
from thinwire.job.schema import JobFile, RosterFile
from thinwire.job.wizard.answers import TEMPLATES, CoreAnswers, JobAnswers, PartAnswers, Template
from thinwire.job.wizard.file_inspection import (
    Arrays,
    InspectedTable,
    guess_own_id,
    inspect_file,
    relative,
    require_unique,
)
from thinwire.job.wizard.sections import (
    DraftSection,
    LabelChoice,
    TableIds,
    array_labels,
    array_section,
    draft_sections,
    require_for_arrays,
    require_parties,
    table_labels,
    table_section,
)
from thinwire.storage.atomic_file import replace_file

_PATIENCE = 5  # evaluations
_CORE_BATCH_SIZE = 64  # where nobody's rows are known
_METRICS = {"binary": ["auc", "accuracy"], "multiclass": ["accuracy"], "regression": ["r2", "mae"]}
_COMMANDS = {
    "align": "find the rows that all parties share, by id",
    "check": "check the job: errors, cost, and who sees what",
    "train": "train in this process, with simulated parties",
    "doctor": "check certificates, names, clocks, network, data and memory",
    "party": "train together with the other parties",
}


def _render(**values: Any) -> str:
    """TOML with comments."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)  # noqa: S701
    environment.filters |= {"toml": inline, "comment": format_comment}
    source = files("thinwire.job.wizard").joinpath("job.toml.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(values)


def _render_whole(template: Template, split: dict[str, float], job: dict[str, Any], **values: Any) -> str:
    """With all that parties share; shares of the rows are kept back by their ids, where `split` has any."""
    stopping = {"patience": _PATIENCE} if "validation" in split else {}
    # Plain models on pixels and series are slow, and no fair baselines.
    compared = {"importance": True} if template.arrays else {"baselines": True, "importance": True}
    job = {"epochs": template.epochs, **stopping, **job, **compared, **template.job}
    return _render(template=template, split=split, job=job, **values)


def format_comment(lines: Sequence[str]) -> str:
    """What came from a file must not end the comment."""
    printable = ("".join(sign if sign.isprintable() else "?" for sign in line) for line in lines)
    return "\n".join(f"# {line}".rstrip() for line in printable)


def _explain(commands: Sequence[str]) -> list[str]:
    longest = max(31, *map(len, commands))  # one column in most files
    return [f"  {line:{longest}}  {_COMMANDS[line.split()[1]]}" for line in commands]


def require_free(path: Path, force: bool) -> None:
    """Nothing is overwritten unasked."""
    if path.exists() and not force:
        raise BadInput(f"{path} already exists; give another name, or --force to overwrite it")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is not a folder")


def _save(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None


# A whole job ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrittenJob:
    """Where the job file is, what was found, and what to do next."""

    path: Path
    rows: int  # that all parties hold
    ids: dict[str, str] | None
    task: str
    commands: list[str]
    notes: list[str]  # how files were read, and what stands out in them


def write_job(asked: JobAnswers, path: Path, force: bool = False, on_progress: Progress | None = None) -> WrittenJob:
    """Looks at the files, then writes the job."""
    require_free(path, force)
    draft, template = draft_sections(asked, path.parent, on_progress), TEMPLATES[asked.template]
    ids, task = draft.ids, draft.labels.task
    align = [] if ids is None or ids.in_order else ["align"]
    commands = [f"thinwire {command} {path.name}" for command in (*align, "check", "train")]
    split = {} if ids is None else template.split
    text = _render_whole(
        template,
        split,
        {**_batches(template, _batch_size(int(draft.rows * (1 - sum(split.values()))))), "metrics": _METRICS[task]},
        head=[
            f"A job for {template.title}. Edit it as needed; docs/jobs.md explains every key.",
            *_explain(commands),
        ],
        parties=draft.parties,
        label_party=replace(draft.label_party, keys={**draft.label_party.keys, **template.fusion_keys}),
    )
    file = JobFile.model_validate(tomllib.loads(text))  # what is written can be read
    build_recipe("recipe", file.recipe).check(len(file.party), file.label_party.fusion)
    _save(path, text)
    notes = [note for section in (*draft.parties, draft.label_party) for note in section.notes]
    return WrittenJob(path, draft.rows, None if ids is None else ids.columns, task, commands, notes)


def _batches(template: Template, size: int) -> dict[str, int]:
    """Trees take all rows in every round."""
    return {} if template.has_trees else {"batch_size": size}


def _batch_size(rows: int) -> int:
    """A power of two, about a twentieth of the rows."""
    size = 16
    while size < 256 and size * 20 < rows:
        size *= 2
    return max(1, min(size, rows))


# The core that all parties share ----------------------------------------------------------------------------------


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
    template, every = TEMPLATES[asked.template], [*asked.parties, asked.label_party]
    known = asked.template == "tabular" or template.has_trees  # by what the core says
    kind = "" if known else f" --template {asked.template}"
    begin = [f"thinwire init {name}.toml --core {path.name} --party {name}=FILE{kind}" for name in every]
    begin[-1] += " --label COLUMN"
    about, shared = _share_top(template)
    text = _render_whole(
        template,
        {} if template.arrays else template.split,
        _batches(template, _CORE_BATCH_SIZE),
        head=[
            f"The shared core of a job for {template.title}: every organisation uses the same file.",
            "It names no data and no code. Each organisation writes its own part next to it, from its own "
            "file alone:",
            *(f"  {line}" for line in begin),
        ],
        address=asked.address,
        parties=[DraftSection(name) for name in asked.parties],
        label_party=DraftSection(asked.label_party, about, shared),
    )
    read_roster(build_text(path, tomllib.loads(text)))  # what is written can be read, and could run
    _save(path, text)
    return WrittenCore(path, list(asked.parties), asked.label_party, [f"thinwire kit {path.name}", *begin])


def _share_top(template: Template) -> tuple[Sequence[str], dict[str, Any]]:
    """What a core says of the label party's side, and why."""
    if template.has_trees:
        about = (
            "The trees of every party depend on the loss, so it is set here, for two classes. For more classes",
            'set loss = "cross_entropy" and width to their number; for regression, loss = "squared_error".',
        )
        return about, LabelChoice("", {}, "binary", 2, for_trees=True).top
    if template.fusion == "concat":
        return (), template.fusion_keys
    width = template.model["width"]
    return (f"Embeddings are summed, so all bottom models have the same width: {width}.",), template.fusion_keys


def read_core(path: Path) -> RosterFile:
    """What all parties share, judged before anybody's own file is looked at."""
    with within(str(path)):
        text = read_text(path)
    with text.locate_errors():
        return read_roster(text)


# One party's part beside it ---------------------------------------------------------------------------------------


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
    notes: list[str]  # how the file was read, and what stands out in it


def write_part(
    asked: PartAnswers, path: Path, force: bool = False, on_progress: Progress | None = None
) -> WrittenPart:
    """Looks at the party's file, then writes its part."""
    require_free(path, force)
    if path.resolve() == asked.core.resolve():
        raise BadInput(f"{path} is the core itself; choose another name for the part, such as {asked.party}.toml")
    core = read_core(asked.core)
    _require_role(asked, core)
    look = inspect_file(asked.file, asked.format, on_progress)
    if isinstance(look, InspectedTable):
        section = _draft_table(asked, look, core, path.parent)
    else:
        section = _draft_arrays(asked, look, core, path.parent)
    commands = _list_commands(section, path)
    text = _format_part(asked, section, core, path, commands)
    read = build_text(path, tomllib.loads(text), me=asked.party)
    with read.locate_errors():
        build_party_view(read, asked.party)  # what is written can be read, and could run
    _save(path, text)
    task = None if section.labels is None else section.labels.task
    ids = section.keys.get("ids", {})
    column, notes = ids.get("column", ids.get("key")), list(section.notes)
    return WrittenPart(path, asked.core, asked.party, section.rows, column, task, commands, notes)


def _require_role(asked: PartAnswers, core: RosterFile) -> None:
    features, label_party = [party.name for party in core.party], core.label_party.name
    if asked.party not in (*features, label_party):
        known = [*features, label_party]
        raise BadInput(
            f"--party: {asked.core} has no party {asked.party!r}; there are {', '.join(known)}"
            f"{did_you_mean(asked.party, known)}"
        )
    if asked.party == label_party and asked.label is None:
        raise BadInput(f"--label is missing: {asked.party!r} holds the label; name its column, --label COLUMN")
    if asked.party != label_party and asked.label is not None:
        raise BadInput(f"--label {asked.label}: the label is held by {label_party!r}, not by {asked.party!r}")


def _choose_template(core: RosterFile) -> str:
    """Private training needs columns of which nothing is fitted."""
    training = core.job.training
    name = training.get("name") if isinstance(training, dict) else training
    boosting = str(core.recipe.get("method")).lower() == "boosting"
    return "private" if name == "DPBottom" else "trees" if boosting else "tabular"


def _draft_table(asked: PartAnswers, table: InspectedTable, core: RosterFile, folder: Path) -> DraftSection:
    template = TEMPLATES[asked.template or _choose_template(core)]
    labels = None if asked.label is None else table_labels(table, asked.label, template, folder)
    if labels is not None and template.has_trees:
        _require_same_top(asked, labels, core)
    column = asked.id or guess_own_id(table, asked.label)
    select_columns(table.file, table.cells.names, [column])
    require_unique(table, column)
    ids = TableIds(column, f"identified by {column!r}", aligned=True)
    return table_section(asked.party, table, ids, template, folder, labels)


def _require_same_top(asked: PartAnswers, labels: LabelChoice, core: RosterFile) -> None:
    """What other parties' trees were told to follow."""
    stated = core.label_party.model_dump(include={"top", "loss"})
    if core.label_party.top is not None and stated != labels.top:
        needs = "\n".join(f"{key} = {inline(value)}" for key, value in labels.top.items())
        raise BadInput(
            f"--label {asked.label}: the labels are {labels.task}, which does not match {asked.core}; write this "
            f"under [label_party] of {asked.core.name}, at every organisation:\n{needs}"
        )


def _draft_arrays(asked: PartAnswers, look: Arrays, core: RosterFile, folder: Path) -> DraftSection:
    template = asked.template or _choose_template(core)
    require_for_arrays(template)
    if core.job.split is not None and asked.id is None:
        raise BadColumn(
            f"{look.file}: {asked.core} splits rows by their ids (job.split); name the array of ids with --id KEY; "
            f"the file holds {look.names_text}"
        )
    labels = None if asked.label is None else array_labels(look, asked.label, folder)
    section = array_section(asked.party, look, labels, template, folder)
    if core.job.split is not None:  # test rows come from the same arrays
        section = replace(
            section, keys={key: part for key, part in section.keys.items() if not key.startswith("test_")}
        )
    if asked.id is None:
        return section
    keys = {"ids": look.locate(asked.id, folder), "alignment": f"{asked.party}.alignment"}
    test = look.test_of(asked.id)
    if test is not None and {"test_features", "test_labels"} & section.keys.keys():
        keys |= {"test_ids": look.locate(test, folder), "test_alignment": f"{asked.party}-test.alignment"}
    return replace(section, keys={**keys, **section.keys})


def _list_commands(section: DraftSection, path: Path) -> list[str]:
    named = f"{path.name} --name {section.name}"
    align = [f"thinwire align {named}"] if "alignment" in section.keys else []
    tests = [f"thinwire align {named} --test"] if "test_alignment" in section.keys else []
    return [*align, *tests, f"thinwire doctor {named}", f"thinwire party {named}"]


def _format_part(
    asked: PartAnswers, section: DraftSection, core: RosterFile, path: Path, commands: Sequence[str]
) -> str:
    own = _leave_to_core(section, core)
    values: dict[str, Any] = {"parties": [own]} if section.labels is None else {"parties": [], "label_party": own}
    if section.labels is not None and "metrics" not in core.job.model_fields_set:
        values["metrics"] = _METRICS[section.labels.task]
    head = [
        f"The part of {asked.party} next to {asked.core.name}. Edit it as needed; docs/jobs.md explains every key.",
        "Run each command at the same time as the other parties:",
        *_explain(commands),
    ]
    return _render(head=head, include=relative(asked.core, path.parent), **values)


def _leave_to_core(section: DraftSection, core: RosterFile) -> DraftSection:
    """What the core says already is left to it."""
    entry = next((party for party in core.party if party.name == section.name), core.label_party)
    return replace(
        section, keys={key: part for key, part in section.keys.items() if key not in entry.model_fields_set}
    )


def render_part_template(core: RosterFile, core_file: str, party: str) -> str:
    """A part to be filled in by hand: nobody has seen the party's table, so its file and columns are made up."""
    file, template, is_label = f"{party}.csv", TEMPLATES[_choose_template(core)], party == core.label_party.name
    keys = {"ids": {"file": file, "column": "ID_COLUMN"}, "alignment": f"{party}.alignment"}
    head = [
        f"The part of {party}, to be filled in by hand: put in the names of your file and columns, and save it as",
        f"{party}.toml. `thinwire init` writes the same after a look at your table (see README.md).",
    ]
    if not is_label:
        model = {"prepare": {}, "model": template.model}
        own = _leave_to_core(DraftSection(party, (), {"features": {"file": file}, **keys, **model}), core)
        return _render(head=head, include=core_file, parties=[own])
    head += ["For columns of your own beside the label, add features, prepare and model as a feature party has them."]
    labels = LabelChoice("", {"labels": {"file": file, "column": "LABEL_COLUMN"}}, "binary", 2, template.has_trees)
    own = _leave_to_core(DraftSection.of(party, (), keys, 0, labels), core)
    return _render(head=head, include=core_file, parties=[], label_party=own)
