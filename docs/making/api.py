"""The Python reference: a page for each public module, its names from their docstrings by mkdocstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import PurePosixPath
from posixpath import relpath
from types import ModuleType
from typing import Any

import thinwire

__all__ = ["PAGES", "documented_names", "python_pages"]

# In this order: a name that several modules have is documented at the first of them.
PAGES = {
    "thinwire": "reference/python/index.md",
    "methods": "reference/methods.md",
    "compress": "reference/compressors.md",
    "learners": "reference/python/learners.md",
    "losses": "reference/python/losses.md",
    "models": "reference/python/models.md",
    "align": "reference/python/align.md",
    "audit": "reference/python/audit.md",
    "privacy": "reference/python/privacy.md",
    "integrations": "reference/python/integrations.md",
    "schedule": "reference/python/schedule.md",
    "streams": "reference/python/streams.md",
    "surrogates": "reference/python/surrogates.md",
    "wire": "reference/python/wire.md",
    "errors": "reference/python/errors.md",
    "types": "reference/python/types.md",
}
# What a newcomer meets first; the others follow by name.
_FIRST = (
    "Job",
    "FeatureParty",
    "LabelParty",
    "train",
    "Result",
    "load_run",
    "VerticalClassifier",
    "VerticalRegressor",
)
_TITLES = {"thinwire": "Python", "methods": "Methods", "compress": "Compressors"}


def documented_names() -> dict[str, list[str]]:
    """The names that each module's page documents: classes and functions, each of them once."""
    seen: set[int] = set()
    return {module: list(_new_names(_open(module), seen)) for module in PAGES}


def python_pages() -> dict[str, str]:
    """Every page's path below docs/, and its text."""
    names = documented_names()
    homes = {id(getattr(_open(module), name)): module for module in PAGES for name in names[module]}
    return {path: _page(module, names[module], homes) for module, path in PAGES.items()}


def _open(module: str) -> ModuleType:
    return thinwire if module == "thinwire" else import_module(getattr(thinwire, module).__name__)


def _names(module: ModuleType) -> Sequence[str]:
    public = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    return getattr(module, "__all__", [name for name in public if not name.startswith("_")])


def _new_names(module: ModuleType, seen: set[int]) -> Iterable[str]:
    for name in sorted(_names(module), key=_rank):
        thing = getattr(module, name)
        if _is_documented(thing) and id(thing) not in seen:
            seen.add(id(thing))
            yield name


def _rank(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST)), name.lower()


def _is_documented(thing: Any) -> bool:
    """Types of other libraries and constants have no text of ours."""
    ours = str(getattr(thing, "__module__", "")).startswith("thinwire")
    return ours and (inspect.isclass(thing) or inspect.isfunction(thing))


def _page(module: str, names: Sequence[str], homes: dict[int, str]) -> str:
    path = "thinwire" if module == "thinwire" else f"thinwire.{module}"
    parts = [f"# {_TITLES.get(module, path)}", _introduction(module)]
    parts += [f"::: {path}.{name}" for name in names]
    parts.append(_elsewhere(module, names, homes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(module: str) -> str:
    if module == "thinwire":
        links = [f"[`tw.{name}`]({_link('thinwire', name)})" for name in list(PAGES)[1:]]
        examples = "Examples also need `import torch`; `job` is the one of `tw.Job`, and `job.toml` any job file."
        return f"`import thinwire as tw`; names load on first use. {examples}\n\nModules: {', '.join(links)}."
    lists = {"methods": "`thinwire methods` lists the same.", "compress": "`thinwire compressors` lists the same."}
    return lists.get(module, f"`import thinwire as tw`, then `tw.{module}`; back to [all names]({_link(module)}).")


def _elsewhere(module: str, names: Sequence[str], homes: dict[int, str]) -> str:
    others = [name for name in sorted(_names(_open(module))) if name not in names]
    found = {name: homes.get(id(getattr(_open(module), name))) for name in others}
    links = [f"[`{name}`]({_link(module, home)}#thinwire.{home}.{name})" for name, home in found.items() if home]
    links = [link.replace("thinwire.thinwire.", "thinwire.") for link in links]
    return f"## Also here\n\n{', '.join(links)}." if links else ""


def _link(here: str, there: str = "thinwire") -> str:
    """From one page to another, both below reference/."""
    return relpath(PAGES[there], str(PurePosixPath(PAGES[here]).parent))
