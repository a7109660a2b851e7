"""The sections of a job file, one for each party, from a look at its table or arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadColumn, BadInput
from thinwire.data.prepare import LabelCoding, Task
from thinwire.data.prepare.columns import AnyColumn, CategoryColumn, HashedColumn, LeftOutColumn
from thinwire.data.readers.features import read_labels
from thinwire.data.readers.tables import select_columns
from thinwire.job.wizard.answers import JobAnswers
from thinwire.job.wizard.file_inspection import (
    Arrays,
    InspectedTable,
    SharedIds,
    guess_ids,
    inspect_file,
    match_ids,
    propose_public,
)
from thinwire.job.wizard.templates import TEMPLATES, Template


@dataclass(frozen=True)
class DraftSection:
    """One party's: its keys, and what is worth saying about its file."""

    name: str
    about: tuple[str, ...]
    keys: dict[str, Any]

    def after(self, first: Mapping[str, Any]) -> DraftSection:
        """With other keys before its own."""
        return DraftSection(self.name, self.about, {**first, **self.keys})


@dataclass(frozen=True)
class LabelChoice:
    """What the labels are, and the keys that name them."""

    keys: dict[str, Any]
    task: Task
    classes: int  # 1 for a regression


def relative(file: Path, folder: Path) -> str:
    """As a job file in `folder` names it."""
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()


def require_for_arrays(template: str) -> None:
    if TEMPLATES[template].known or TEMPLATES[template].label_model is not None:
        raise BadInput(f"the template {template!r} is for tables, .csv and .parquet")


def array_section(name: str, look: Arrays, label: str | None, template: str, folder: Path) -> DraftSection:
    about = (f"{look.file.name} holds {look.names_text}",)
    keys: dict[str, Any] = {}
    if label is not None and all(len(shape) < 2 for key, shape in look.shapes.items() if key != label):
        return DraftSection(name, about, keys)
    file = relative(look.file, folder)
    training, test = look.features(label)
    keys["features"] = {"file": file, "key": training}
    if test is not None:
        keys["test_features"] = {"file": file, "key": test}
    return DraftSection(name, about, {**keys, "model": _model(look.shapes[training][1:], template)})


def array_labels(look: Arrays, label: str, folder: Path) -> LabelChoice:
    if label not in look.shapes:
        raise BadColumn(f"{look.file}: there is no array {label!r}, it holds {look.names_text}")
    keys: dict[str, Any] = {"labels": {"file": relative(look.file, folder), "key": label}}
    test = look.test_of(label)
    if test is not None:
        keys["test_labels"] = {"file": relative(look.file, folder), "key": test}
    return LabelChoice(keys, *_task(look.file, label))


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
    alignment: dict[str, str]  # the key, where rows have to be aligned first


def table_section(
    name: str, table: InspectedTable, ids: TableIds, template: Template, folder: Path, label: str | None = None
) -> DraftSection:
    """Of all columns but the id and the label."""
    column, taken = ids.column, () if label is None else (label,)
    keys: dict[str, Any] = {"ids": {**_file(table, folder), "column": column}, **ids.alignment}
    about = [ids.about]
    others = [one for one in table.cells.names if one not in (column, *taken)]
    if not others:
        if not taken:
            raise BadColumn(f"{table.file}: it holds nothing beside {column!r}; there is nothing to learn from")
        return DraftSection(name, (*about, "no columns of its own beside id and label"), keys)
    preparation, settings = table.prepare((column, *taken), template.prepare)
    left_out: tuple[str, ...] = ()
    if template.known and not taken:
        settings, left_out = propose_public(table, preparation, settings)
        about.append("REPLACE prepare.known by what is public: it was proposed from the file, and a guarantee for")
        about.append("single rows is whole only if it does not follow from them")
    about.append("guessed of its columns; say otherwise by types = { ... } in prepare:")
    longest = max(len(one.name) for one in preparation.columns)
    about += [f"  {one.name:{longest}}  {_kind(one, table)}" for one in preparation.columns]
    features = {**_file(table, folder), **({"all_but": list(left_out)} if left_out else {})}
    prepare = settings.model_dump(exclude_defaults=True)
    model = template.model if label is None else template.label_model or template.model
    return DraftSection(name, tuple(about), {"features": features, **keys, "prepare": prepare, "model": model})


def table_labels(table: InspectedTable, label: str, folder: Path) -> LabelChoice:
    select_columns(table.file, table.cells.names, [label])
    coding = LabelCoding.fit(table.cells, label)
    keys = {"labels": {**_file(table, folder), "column": label, "task": coding.task}}
    return LabelChoice(keys, coding.task, len(coding.classes) or 1)


def _file(table: InspectedTable, folder: Path) -> dict[str, Any]:
    delimiter = {} if table.delimiter == "," else {"delimiter": table.delimiter}
    return {"file": relative(table.file, folder), **delimiter}


def _kind(column: AnyColumn, table: InspectedTable) -> str:
    """Without a value of the table: job files are passed on."""
    gaps = table.cells.column(column.name).null_count
    missing = f", {gaps} missing" if gaps else ""
    match column:
        case CategoryColumn():
            return f"category, {len(column.words)} values{missing}"
        case HashedColumn():
            return f"category, too many values for a vocabulary: hashed{missing}"
        case LeftOutColumn():
            return "left out: " + ("constant" if "every training row" in column.says else column.says)
        case _:
            return f"{column.kind}{missing}"


@dataclass(frozen=True)
class SectionDraft:
    """All that was found out."""

    template: Template
    parties: tuple[DraftSection, ...]
    label_party: DraftSection
    task: Task
    classes: int  # 1 for a regression
    rows: int  # that all parties hold
    ids: SharedIds | None  # of tables


def draft_sections(asked: JobAnswers, folder: Path) -> SectionDraft:
    """`folder` is where the job file will stand: paths start from there."""
    template = TEMPLATES[asked.template]
    require_parties(asked.template, len(asked.files) - 1)
    looks = {name: inspect_file(file) for name, file in asked.files.items()}
    tables = {name: look for name, look in looks.items() if isinstance(look, InspectedTable)}
    if tables and len(tables) < len(looks):
        other = next(name for name in looks if name not in tables)
        raise BadInput(
            f"--party {other}: tables and arrays do not mix here; give all files as .csv/.parquet, or all as .npz"
        )
    if tables:
        return _of_tables(asked, template, tables, folder)
    return _of_arrays(asked, template, {n: look for n, look in looks.items() if isinstance(look, Arrays)}, folder)


def require_parties(template: str, count: int) -> None:
    """Enough feature parties for what the template promises."""
    least = TEMPLATES[template].least
    if count < least:
        raise BadInput(
            f"the template {template!r} needs {least} feature parties beside the label party, there are {count}: a "
            "secure sum of fewer would show one party's values"
        )


def _of_tables(
    asked: JobAnswers, template: Template, tables: Mapping[str, InspectedTable], folder: Path
) -> SectionDraft:
    party, label = asked.label
    labels = table_labels(tables[party], label, folder)
    ids = guess_ids(tables) if asked.ids is None else match_ids(tables, asked.ids)

    def section(name: str, label: str | None = None) -> DraftSection:
        return table_section(name, tables[name], _ids(name, tables[name], ids), template, folder, label)

    features = tuple(section(name) for name in tables if name != party)
    own = section(party, label).after(labels.keys)
    return SectionDraft(template, features, own, labels.task, labels.classes, ids.common, ids)


def _ids(name: str, table: InspectedTable, ids: SharedIds) -> TableIds:
    column = ids.columns[name]
    about = f"{table.file.name}: {table.rows} rows, of which all parties hold {ids.common} by {column!r}"
    return TableIds(column, about, {} if ids.in_order else {"alignment": f"{name}.alignment"})


def _of_arrays(asked: JobAnswers, template: Template, looks: Mapping[str, Arrays], folder: Path) -> SectionDraft:
    require_for_arrays(asked.template)
    party, label = asked.label
    labels = array_labels(looks[party], label, folder)
    rows = {look.shapes[_first(look, label)][0] for look in looks.values()}
    if len(rows) > 1:
        raise BadInput(f"the files hold {' and '.join(map(str, sorted(rows)))} rows; arrays must be of the same rows")
    sections = {
        name: array_section(name, look, label if name == party else None, asked.template, folder)
        for name, look in looks.items()
    }
    own = sections.pop(party).after(labels.keys)
    return SectionDraft(template, tuple(sections.values()), own, labels.task, labels.classes, rows.pop(), None)


def _first(look: Arrays, label: str) -> str:
    return label if label in look.shapes else look.features(None)[0]
