"""The section of a party that holds arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thinwire.data import read_labels
from thinwire.errors import BadColumn, BadInput
from thinwire.init.looking import Arrays
from thinwire.init.section import Labelled, Section, relative
from thinwire.init.templates import TEMPLATES
from thinwire.prepare import Task

__all__ = ["array_labels", "array_section", "require_for_arrays"]


def require_for_arrays(template: str) -> None:
    if TEMPLATES[template].known or TEMPLATES[template].label_model is not None:
        raise BadInput(f"the template {template!r} is for tables, .csv and .parquet")


def array_section(name: str, look: Arrays, label: str | None, template: str, folder: Path) -> Section:
    about = (f"{look.file.name} holds {look.listed}",)
    keys: dict[str, Any] = {}
    if label is not None and all(len(shape) < 2 for key, shape in look.shapes.items() if key != label):
        return Section(name, about, keys)
    file = relative(look.file, folder)
    training, test = look.features(label)
    keys["features"] = {"file": file, "key": training}
    if test is not None:
        keys["test_features"] = {"file": file, "key": test}
    return Section(name, about, {**keys, "model": _model(look.shapes[training][1:], template)})


def array_labels(look: Arrays, label: str, folder: Path) -> Labelled:
    if label not in look.shapes:
        raise BadColumn(f"{look.file}: there is no array {label!r}, it holds {look.listed}")
    keys: dict[str, Any] = {"labels": {"file": relative(look.file, folder), "key": label}}
    test = look.test_of(label)
    if test is not None:
        keys["test_labels"] = {"file": relative(look.file, folder), "key": test}
    return Labelled(keys, *_task(look.file, label))


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
