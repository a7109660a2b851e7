"""The sections of a job file, one for each party, from a look at its table or arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadColumn, BadInput
from thinwire.base.types import Progress
from thinwire.data.prepare import LabelCoding, Task
from thinwire.data.prepare.columns import AnyColumn, CategoryColumn, HashedColumn, LeftOutColumn
from thinwire.data.readers.features import read_labels
from thinwire.data.readers.tables import select_columns
from thinwire.job.wizard.answers import TEMPLATES, FormatAnswers, JobAnswers, Template
from thinwire.job.wizard.file_inspection import (
    Arrays,
    InspectedTable,
    SharedIds,
    describe_suspect,
    guess_ids,
    inspect_file,
    list_suspects,
    match_ids,
    propose_public,
    relative,
)


@dataclass(frozen=True)
class LabelChoice:
    """What the labels are, and the keys that name them."""

    name: str  # of the column or array
    keys: dict[str, Any]
    task: Task
    classes: int  # 1 for a regression
    for_trees: bool = False

    @property
    def top(self) -> dict[str, Any]:
        """The label party's keys that follow from the labels."""
        loss = "squared_error" if self.task == "regression" else "cross_entropy"
        if not self.for_trees:
            return {"top": {"name": "linear_top", "classes": self.classes}, "loss": loss}
        if self.task == "binary":
            return {"top": {"name": "bias_top", "width": 1}, "loss": "binary_cross_entropy"}
        return {"top": {"name": "bias_top", "width": self.classes}, "loss": loss}


@dataclass(frozen=True)
class DraftSection:
    """One party's: its keys, and what is worth saying about its file."""

    name: str
    about: Sequence[str] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    labels: LabelChoice | None = None
    notes: Sequence[str] = ()  # for whoever writes the job: they may hold values of the file

    @classmethod
    def of(
        cls, name: str, about: Sequence[str], keys: Mapping[str, Any], rows: int, labels: LabelChoice | None
    ) -> DraftSection:
        """With what names the labels before its keys, and the top model after them."""
        every = keys if labels is None else {**labels.keys, **keys, **labels.top}
        return cls(name, about, every, rows, labels)


def require_for_arrays(template: str) -> None:
    if TEMPLATES[template].known or TEMPLATES[template].has_trees or TEMPLATES[template].label_model is not None:
        raise BadInput(
            f"the template {template!r} is for tables, .csv and .parquet; for arrays write the job, or the core that "
            "its parties share, with --template tabular, images or series"
        )


def array_section(name: str, look: Arrays, labels: LabelChoice | None, template: str, folder: Path) -> DraftSection:
    about = (f"{look.file.name} holds {look.names_text}",)
    label = None if labels is None else labels.name
    if label is not None and all(len(shape) < 2 for key, shape in look.shapes.items() if key != label):
        return DraftSection.of(name, about, {}, look.shapes[label][0], labels)
    training, test = look.features(label)
    keys: dict[str, Any] = {"features": look.locate(training, folder)}
    if test is not None:
        keys["test_features"] = look.locate(test, folder)
    keys["model"] = _model(look.shapes[training][1:], template)
    return DraftSection.of(name, about, keys, look.shapes[label or training][0], labels)


def array_labels(look: Arrays, label: str, folder: Path) -> LabelChoice:
    keys = {"labels": look.locate(label, folder)}
    test = look.test_of(label)
    if test is not None:
        keys["test_labels"] = look.locate(test, folder)
    return LabelChoice(label, keys, *_task(look.file, label))


def _task(file: Path, key: str) -> tuple[Task, int]:
    labels = read_labels(file, key)
    if labels.dtype.kind == "f":
        return "regression", 1
    classes = int(labels.max()) + 1
    return ("binary" if classes == 2 else "multiclass"), classes


def _model(shape: tuple[int, ...], template: str) -> dict[str, Any]:
    """By the rows' shape: [channels, height, width], [time, features], or numbers."""
    if len(shape) == 3 and min(shape[1:]) >= 4:
        return {"name": "cnn", "width": 16, "channels": [8, 16]}
    if len(shape) == 2 and template == "series":
        return {"name": "lstm", "hidden": 32, "width": 16}
    return {"name": "mlp", "hidden": [64], "width": 16}


@dataclass(frozen=True)
class TableIds:
    """What names a table's rows."""

    column: str
    about: str  # the rows, for people
    aligned: bool  # rows have to be aligned first


def table_section(
    name: str, table: InspectedTable, ids: TableIds, template: Template, folder: Path, labels: LabelChoice | None
) -> DraftSection:
    """Of all columns but the id and the label."""
    return replace(_table_section(name, table, ids, template, folder, labels), notes=_list_notes(table, ids.column))


def _list_notes(table: InspectedTable, id_column: str) -> list[str]:
    """How the file was read where it is no plain CSV file, and columns that look like an id beside it."""
    form = ", ".join(f"{key} = {value!r}" for key, value in table.form.changes.items())
    notes = [f"{table.file.name}: read with {form}"] if form else []
    suspects = {name: flaw for name, flaw in list_suspects(table).items() if name != id_column}
    return notes + [
        f"{table.file.name}: {describe_suspect(name, flaw)}; the rows are identified by {id_column!r}"
        for name, flaw in suspects.items()
    ]


def _table_section(
    name: str, table: InspectedTable, ids: TableIds, template: Template, folder: Path, labels: LabelChoice | None
) -> DraftSection:
    taken = (ids.column,) if labels is None else (ids.column, labels.name)
    read = {key: part for key, part in _file(table, folder).items() if key not in ("decimal", "thousands")}
    keys: dict[str, Any] = {"ids": {**read, "column": ids.column}}
    if ids.aligned:
        keys["alignment"] = f"{name}.alignment"
    about = [f"{table.file.name}: {table.rows} rows, {ids.about}"]
    if set(table.cells.names) <= set(taken):
        if labels is None:
            raise BadColumn(f"{table.file}: it holds nothing besides {ids.column!r}; there is nothing to learn from")
        about.append("no columns of its own besides id and label")
        return DraftSection.of(name, about, keys, table.rows, labels)
    preparation, settings = table.prepare(taken, template.prepare)
    left_out: tuple[str, ...] = ()
    if template.known and labels is None:
        settings, left_out = propose_public(table, preparation, settings)
        about.append("REPLACE prepare.known with public knowledge: it was proposed from the file, and a per-row")
        about.append("guarantee holds only if it does not depend on the rows")
    about.append("column types, guessed from the file; override them with types = { ... } in prepare:")
    longest = max(len(one.name) for one in preparation.columns)
    about += [f"  {one.name:{longest}}  {_kind(one, table)}" for one in preparation.columns]
    features = {**_file(table, folder), **({"all_but": list(left_out)} if left_out else {})}
    prepare = settings.model_dump(exclude_defaults=True)
    model = template.model if labels is None else template.label_model or template.model
    keys = {"features": features, **keys, "prepare": prepare, "model": model}
    return DraftSection.of(name, about, keys, table.rows, labels)


def table_labels(table: InspectedTable, label: str, template: Template, folder: Path) -> LabelChoice:
    select_columns(table.file, table.cells.names, [label])
    coding = LabelCoding.fit(table.cells, label)
    keys = {"labels": {**_file(table, folder), "column": label, "task": coding.task}}
    return LabelChoice(label, keys, coding.task, len(coding.classes) or 1, template.has_trees)


def _file(table: InspectedTable, folder: Path) -> dict[str, Any]:
    return {"file": relative(table.file, folder), **table.form.changes}


def _kind(column: AnyColumn, table: InspectedTable) -> str:
    """Without a value of the table: job files are passed on."""
    gaps = table.cells.column(column.name).null_count
    missing = f", {gaps} missing" if gaps else ""
    match column:
        case CategoryColumn():
            return f"category, {len(column.words)} values{missing}"
        case HashedColumn():
            return f"category with too many values for a vocabulary: hashed{missing}"
        case LeftOutColumn():
            return "left out: " + ("constant" if "every training row" in column.says else column.says)
        case _:
            return f"{column.kind}{missing}"


@dataclass(frozen=True)
class SectionDraft:
    """All that was found out."""

    parties: tuple[DraftSection, ...]
    label_party: DraftSection
    labels: LabelChoice
    rows: int  # that all parties hold
    ids: SharedIds | None  # of tables


def draft_sections(asked: JobAnswers, folder: Path, on_progress: Progress | None = None) -> SectionDraft:
    """`folder` is where the job file will stand: paths start from there."""
    require_parties(asked.template, len(asked.files) - 1)
    looks = {
        name: inspect_file(file, asked.formats.get(name, FormatAnswers()), on_progress)
        for name, file in asked.files.items()
    }
    tables = {name: look for name, look in looks.items() if isinstance(look, InspectedTable)}
    if tables and len(tables) < len(looks):
        other = next(name for name in looks if name not in tables)
        raise BadInput(
            f"--party {other}: tables and arrays cannot be mixed; give all files as .csv/.parquet, or all as .npz"
        )
    if tables:
        return _of_tables(asked, tables, folder)
    return _of_arrays(asked, {name: look for name, look in looks.items() if isinstance(look, Arrays)}, folder)


def require_parties(template: str, count: int) -> None:
    """Enough feature parties for what the template promises."""
    least = TEMPLATES[template].least
    if count < least:
        raise BadInput(
            f"the template {template!r} needs {least} feature parties beside the label party, there are {count}: a "
            "secure sum of fewer would show one party's values"
        )


def _of_tables(asked: JobAnswers, tables: Mapping[str, InspectedTable], folder: Path) -> SectionDraft:
    party, label = asked.label
    template = TEMPLATES[asked.template]
    labels = table_labels(tables[party], label, template, folder)
    ids = guess_ids(tables) if asked.ids is None and asked.id is None else match_ids(tables, asked)
    sections = {}
    for name, table in tables.items():
        column = ids.columns[name]
        named = TableIds(column, f"of which all parties hold {ids.common} by {column!r}", not ids.in_order)
        own = labels if name == party else None
        sections[name] = table_section(name, table, named, template, folder, own)
    label_party = sections.pop(party)
    return SectionDraft(tuple(sections.values()), label_party, labels, ids.common, ids)


def _of_arrays(asked: JobAnswers, looks: Mapping[str, Arrays], folder: Path) -> SectionDraft:
    require_for_arrays(asked.template)
    party, label = asked.label
    labels = array_labels(looks[party], label, folder)
    sections = {
        name: array_section(name, look, labels if name == party else None, asked.template, folder)
        for name, look in looks.items()
    }
    rows = {section.rows for section in sections.values()}
    if len(rows) > 1:
        raise BadInput(f"the files hold {' and '.join(map(str, sorted(rows)))} rows; arrays must have the same rows")
    label_party = sections.pop(party)
    return SectionDraft(tuple(sections.values()), label_party, labels, rows.pop(), None)
