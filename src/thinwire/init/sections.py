"""All sections of a job file from a look at all parties' files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import BadInput
from thinwire.init.array_section import array_labels, array_section, require_for_arrays
from thinwire.init.asked import Asked
from thinwire.init.ids import SharedIds, guessed_ids, shared_ids
from thinwire.init.looking import Arrays, Table, looked_at
from thinwire.init.section import Section
from thinwire.init.table_section import TableIds, table_labels, table_section
from thinwire.init.templates import TEMPLATES, Template
from thinwire.prepare import Task

__all__ = ["Drafted", "drafted", "require_parties"]


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


def drafted(asked: Asked, folder: Path) -> Drafted:
    """`folder` is where the job file will stand: paths start from there."""
    template = TEMPLATES[asked.template]
    require_parties(asked.template, len(asked.files) - 1)
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


def require_parties(template: str, count: int) -> None:
    """Enough feature parties for what the template promises."""
    least = TEMPLATES[template].least
    if count < least:
        raise BadInput(
            f"the template {template!r} needs {least} feature parties beside the label party, there are {count}: a "
            "secure sum of fewer would show one party's values"
        )


def _of_tables(asked: Asked, template: Template, tables: Mapping[str, Table], folder: Path) -> Drafted:
    party, label = asked.label
    labels = table_labels(tables[party], label, folder)
    ids = guessed_ids(tables) if asked.ids is None else shared_ids(tables, asked.ids)

    def section(name: str, label: str | None = None) -> Section:
        return table_section(name, tables[name], _ids(name, tables[name], ids), template, folder, label)

    features = tuple(section(name) for name in tables if name != party)
    own = section(party, label).after(labels.keys)
    return Drafted(template, features, own, labels.task, labels.classes, ids.common, ids)


def _ids(name: str, table: Table, ids: SharedIds) -> TableIds:
    column = ids.columns[name]
    about = f"{table.file.name}: {table.rows} rows, of which all parties hold {ids.common} by {column!r}"
    return TableIds(column, about, {} if ids.in_order else {"alignment": f"{name}.alignment"})


def _of_arrays(asked: Asked, template: Template, looks: Mapping[str, Arrays], folder: Path) -> Drafted:
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
    return Drafted(template, tuple(sections.values()), own, labels.task, labels.classes, rows.pop(), None)


def _first(look: Arrays, label: str) -> str:
    return label if label in look.shapes else look.features(None)[0]
