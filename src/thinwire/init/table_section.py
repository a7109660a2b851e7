"""The section of a party that holds a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.data.naming import wanted
from thinwire.errors import BadColumn
from thinwire.init.looking import Table
from thinwire.init.public import proposed
from thinwire.init.section import Labelled, Section, relative
from thinwire.init.templates import Template
from thinwire.prepare import LabelCoding
from thinwire.prepare.columns import AnyColumn, Category, Hashed, LeftOut

__all__ = ["TableIds", "table_labels", "table_section"]


@dataclass(frozen=True)
class TableIds:
    """What names a table's rows."""

    column: str
    about: str  # the rows, for people
    alignment: dict[str, str]  # the key, where rows have to be aligned first


def table_section(
    name: str, table: Table, ids: TableIds, template: Template, folder: Path, label: str | None = None
) -> Section:
    """Of all columns but the id and the label."""
    column, taken = ids.column, () if label is None else (label,)
    keys: dict[str, Any] = {"ids": {**_file(table, folder), "column": column}, **ids.alignment}
    about = [ids.about]
    others = [one for one in table.cells.names if one not in (column, *taken)]
    if not others:
        if not taken:
            raise BadColumn(f"{table.file}: it holds nothing beside {column!r}; there is nothing to learn from")
        return Section(name, (*about, "no columns of its own beside id and label"), keys)
    preparation, settings = table.prepared((column, *taken), template.prepare)
    left_out: tuple[str, ...] = ()
    if template.known and not taken:
        settings, left_out = proposed(table, preparation, settings)
        about.append("REPLACE prepare.known by what is public: it was proposed from the file, and a guarantee for")
        about.append("single rows is whole only if it does not follow from them")
    about.append("guessed of its columns; say otherwise by types = { ... } in prepare:")
    longest = max(len(one.name) for one in preparation.columns)
    about += [f"  {one.name:{longest}}  {_kind(one, table)}" for one in preparation.columns]
    features = {**_file(table, folder), **({"all_but": list(left_out)} if left_out else {})}
    prepare = settings.model_dump(exclude_defaults=True)
    model = template.model if label is None else template.label_model or template.model
    return Section(name, tuple(about), {"features": features, **keys, "prepare": prepare, "model": model})


def table_labels(table: Table, label: str, folder: Path) -> Labelled:
    wanted(table.file, table.cells.names, [label])
    coding = LabelCoding.fit(table.cells, label)
    keys = {"labels": {**_file(table, folder), "column": label, "task": coding.task}}
    return Labelled(keys, coding.task, len(coding.classes) or 1)


def _file(table: Table, folder: Path) -> dict[str, Any]:
    delimiter = {} if table.delimiter == "," else {"delimiter": table.delimiter}
    return {"file": relative(table.file, folder), **delimiter}


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
