"""Sections of a job file from a look at the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.data import read_labels
from thinwire.data.naming import wanted
from thinwire.errors import BadColumn, BadInput
from thinwire.init.asked import Asked
from thinwire.init.ids import SharedIds, guessed_ids, shared_ids
from thinwire.init.looking import Arrays, Table, looked_at
from thinwire.init.public import proposed
from thinwire.init.templates import TEMPLATES, Template
from thinwire.prepare import LabelCoding, Task
from thinwire.prepare.columns import AnyColumn, Category, Hashed, LeftOut

__all__ = ["Drafted", "Section", "drafted"]


@dataclass(frozen=True)
class Section:
    """One party's: its keys, and what is worth saying about its file."""

    name: str
    about: tuple[str, ...]
    keys: dict[str, Any]


@dataclass(frozen=True)
class Drafted:
    """All that was found out."""

    template: Template
    parties: tuple[Section, ...]
    label_party: Section
    task: Task
    classes: int  # 1 for a regression
    rows: int  # that all parties hold
    ids: SharedIds | None  # of tables
    has_test_rows: bool  # in arrays of their own


def drafted(asked: Asked, folder: Path) -> Drafted:
    """`folder` is where the job file will stand: paths start from there."""
    template = TEMPLATES[asked.template]
    if len(asked.files) - 1 < template.least:
        raise BadInput(
            f"the template {asked.template!r} needs {template.least} feature parties beside the label party, there "
            f"are {len(asked.files) - 1}: a secure sum of fewer would show one party's values"
        )
    looks = {name: looked_at(file) for name, file in asked.files.items()}
    tables = {name: look for name, look in looks.items() if isinstance(look, Table)}
    if tables and len(tables) < len(looks):
        other = next(name for name in looks if name not in tables)
        raise BadInput(
            f"--party {other}: tables and arrays do not mix here; give all files as .csv/.parquet, or all as .npz"
        )
    if tables:
        return _of_tables(asked, template, tables, folder)
    return _of_arrays(asked, template, {n: look for n, look in looks.items() if isinstance(look, Arrays)}, folder)


# Tables ---------------------------------------------------------------------------------------------------


def _of_tables(asked: Asked, template: Template, tables: Mapping[str, Table], folder: Path) -> Drafted:
    party, label = asked.label
    wanted(tables[party].file, tables[party].cells.names, [label])
    ids = guessed_ids(tables) if asked.ids is None else shared_ids(tables, asked.ids)
    coding = LabelCoding.fit(tables[party].cells, label)
    drafting = _Tables(template, tables, ids, folder)
    features = tuple(drafting.section(name, ()) for name in tables if name != party)
    own = drafting.section(party, (label,), template.label_model or template.model)
    file = drafting.file(party)
    labels = {"labels": {**file, "column": label, "task": coding.task}}
    count = len(coding.classes) or 1
    return Drafted(template, features, _with(own, labels), coding.task, count, ids.common, ids, has_test_rows=False)


@dataclass(frozen=True)
class _Tables:
    template: Template
    tables: Mapping[str, Table]
    ids: SharedIds
    folder: Path

    def file(self, name: str) -> dict[str, Any]:
        table = self.tables[name]
        delimiter = {} if table.delimiter == "," else {"delimiter": table.delimiter}
        return {"file": _relative(table.file, self.folder), **delimiter}

    def section(self, name: str, taken: tuple[str, ...], model: dict[str, Any] | None = None) -> Section:
        table, column = self.tables[name], self.ids.columns[name]
        keys: dict[str, Any] = {"ids": {**self.file(name), "column": column}}
        if not self.ids.in_order:
            keys["alignment"] = f"{name}.alignment"
        about = [f"{table.file.name}: {table.rows} rows, of which all parties hold {self.ids.common} by {column!r}"]
        others = [one for one in table.cells.names if one not in (column, *taken)]
        if not others:
            if not taken:
                raise BadColumn(f"{table.file}: it holds nothing beside {column!r}; there is nothing to learn from")
            return Section(name, (*about, "no columns of its own beside id and label"), keys)
        preparation, settings = table.prepared((column, *taken), self.template.prepare)
        left_out: tuple[str, ...] = ()
        if self.template.known and not taken:
            settings, left_out = proposed(table, preparation, settings)
            about.append(
                "REPLACE prepare.known by what is public: it was proposed from the file, and a guarantee for"
            )
            about.append("single rows is whole only if it does not follow from them")
        about.append("guessed of its columns; say otherwise by types = { ... } in prepare:")
        longest = max(len(one.name) for one in preparation.columns)
        about += [f"  {one.name:{longest}}  {_kind(one, table)}" for one in preparation.columns]
        features = {**self.file(name), **({"all_but": list(left_out)} if left_out else {})}
        prepare = settings.model_dump(exclude_defaults=True)
        keys = {"features": features, **keys, "prepare": prepare, "model": model or self.template.model}
        return Section(name, tuple(about), keys)


def _kind(column: AnyColumn, table: Table) -> str:
    """Without a value of the table: job files are passed on."""
    gaps = table.cells.column(column.name).null_count
    missing = f", {gaps} missing" if gaps else ""
    match column:
        case Category():
            return f"category, {len(column.words)} values{missing}"
        case Hashed():
            return f"category, too many values for a vocabulary: hashed{missing}"
        case LeftOut():
            return "left out: " + ("constant" if "every training row" in column.says else column.says)
        case _:
            return f"{column.kind}{missing}"


# Arrays ---------------------------------------------------------------------------------------------------


def _of_arrays(asked: Asked, template: Template, looks: Mapping[str, Arrays], folder: Path) -> Drafted:
    if template.known or template.label_model is not None:
        raise BadInput(f"the template {asked.template!r} is for tables, .csv and .parquet")
    party, label = asked.label
    if label not in looks[party].shapes:
        raise BadColumn(f"{looks[party].file}: there is no array {label!r}, it holds {looks[party].listed}")
    rows = {look.shapes[_first(look, label)][0] for look in looks.values()}
    if len(rows) > 1:
        raise BadInput(f"the files hold {' and '.join(map(str, sorted(rows)))} rows; arrays must be of the same rows")
    sections = {
        name: _arrays(name, look, label if name == party else None, asked.template, folder)
        for name, look in looks.items()
    }
    own = sections.pop(party)
    test = looks[party].test_of(label)
    labels: dict[str, Any] = {"labels": {"file": _relative(looks[party].file, folder), "key": label}}
    if test is not None:
        labels["test_labels"] = {"file": _relative(looks[party].file, folder), "key": test}
    task, classes = _task(looks[party].file, label)
    found = tuple(sections.values())
    return Drafted(template, found, _with(own, labels), task, classes, rows.pop(), None, test is not None)


def _task(file: Path, key: str) -> tuple[Task, int]:
    labels = read_labels(file, key)
    if labels.dtype.kind == "f":
        return "regression", 1
    classes = int(labels.max()) + 1
    return ("binary" if classes == 2 else "multiclass"), classes


def _first(look: Arrays, label: str) -> str:
    return label if label in look.shapes else look.features(None)[0]


def _arrays(name: str, look: Arrays, label: str | None, template: str, folder: Path) -> Section:
    about = (f"{look.file.name} holds {look.listed}",)
    keys: dict[str, Any] = {}
    if label is not None and all(len(shape) < 2 for key, shape in look.shapes.items() if key != label):
        return Section(name, about, keys)
    file = _relative(look.file, folder)
    training, test = look.features(label)
    keys["features"] = {"file": file, "key": training}
    if test is not None:
        keys["test_features"] = {"file": file, "key": test}
    return Section(name, about, {**keys, "model": _model(look.shapes[training][1:], template)})


def _model(shape: tuple[int, ...], template: str) -> dict[str, Any]:
    """By the rows' shape: [channels, height, width], [time, features], or numbers."""
    if len(shape) == 3 and min(shape[1:]) >= 4:
        return {"name": "cnn", "width": 16, "channels": [8, 16]}
    if len(shape) == 2 and template == "series":
        return {"name": "lstm", "hidden": 32, "width": 16}
    return {"name": "mlp", "hidden": [64], "width": 16}


def _with(section: Section, first: dict[str, Any]) -> Section:
    return Section(section.name, section.about, {**first, **section.keys})


def _relative(file: Path, folder: Path) -> str:
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()
