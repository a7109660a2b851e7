"""For griffe, which reads our code for mkdocstrings: names that load on first use are there at run time."""

from __future__ import annotations

from typing import Any

from griffe import Alias, Extension

__all__ = ["LazyNames"]


class LazyNames(Extension):
    """Imports under `TYPE_CHECKING` stand for PEP 562 names here, so `from module import *` takes them too."""

    def on_alias_instance(self, *, alias: Alias, **_: Any) -> None:
        alias.runtime = True
