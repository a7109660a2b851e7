"""One party's section of a job file, before it is text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.prepare import Task

__all__ = ["Labelled", "Section", "relative"]


@dataclass(frozen=True)
class Section:
    """One party's: its keys, and what is worth saying about its file."""

    name: str
    about: tuple[str, ...]
    keys: dict[str, Any]

    def after(self, first: Mapping[str, Any]) -> Section:
        """With other keys before its own."""
        return Section(self.name, self.about, {**first, **self.keys})


@dataclass(frozen=True)
class Labelled:
    """What the labels are, and the keys that name them."""

    keys: dict[str, Any]
    task: Task
    classes: int  # 1 for a regression


def relative(file: Path, folder: Path) -> str:
    """As a job file in `folder` names it."""
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()
