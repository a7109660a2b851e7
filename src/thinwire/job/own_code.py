"""Python that a job file, or the job file of a run, names: `model = { module = "towers:Tower" }`.

A file may come from elsewhere, so one rule holds for all of them: code runs only where the owner of the machine has
said so. Whoever trains a job file, or runs a party of it, means the code beside that file; everything else is
named: a folder or an installed package, by --code or in THINWIRE_CODE. What is loaded must be a class of torch
modules, which is looked at before it is called. An included core and another party's section never name code.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from torch import nn

from thinwire.base.errors import BadInput

CODE_VARIABLE = "THINWIRE_CODE"
_loaded: dict[str, Path] = {}  # where the modules of a name came from
_PLACE = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")


@dataclass(frozen=True)
class CodeSources:
    """Whose code may run: files in these folders, and these installed packages."""

    folders: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()

    @classmethod
    def parse(cls, sources: Sequence[str] = ()) -> CodeSources:
        """What the owner names, here and in THINWIRE_CODE: folders by a path, packages by a name alone."""
        everywhere = [*sources, *filter(None, os.environ.get(CODE_VARIABLE, "").split(os.pathsep))]
        paths = [one for one in everywhere if one == os.curdir or os.sep in one]
        return cls(tuple(Path(one).resolve() for one in paths), tuple(one for one in everywhere if one not in paths))

    @classmethod
    def beside(cls, job: str | Path, sources: Sequence[str] = ()) -> CodeSources:
        """The same, and what lies beside the job file, which the owner asks to run."""
        also = cls.parse(sources)
        return cls((Path(job).resolve().parent, *also.folders), also.packages)

    def allow(self, module: str) -> bool:
        """May this "package.module:Class" be imported? Nothing is."""
        package = module.partition(":")[0]
        named = any(f"{package}.".startswith(f"{one}.") for one in self.packages)
        return named or self._find_folder(package) is not None

    def load_class(self, path: str, module: Any) -> type[nn.Module]:
        """The class of torch modules that the table at `path` names."""
        place = _PLACE.fullmatch(module) if isinstance(module, str) else None
        if place is None:
            raise BadInput(f'{path}.module must be "package.module:Class", got {module!r}')
        if not self.allow(module):
            raise BadInput(f"{module} is code, and {self._explain()}").at(f"{path}.module")
        folder = self._find_folder(place["module"])
        try:
            with _searching(folder, place["module"].partition(".")[0]):
                found = getattr(import_module(place["module"]), place["name"])
        except (ImportError, AttributeError, SyntaxError) as error:
            raise BadInput(f"{module} cannot be loaded: {error}").at(f"{path}.module") from error
        _require_origin(f"{path}.module", place["module"], folder)
        if not isinstance(found, type) or not issubclass(found, nn.Module):
            what = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
            raise BadInput(f"{module} is {what}, not a class of torch modules").at(f"{path}.module")
        return found

    def _find_folder(self, package: str) -> Path | None:
        first = package.partition(".")[0]
        return next((one for one in self.folders if PathFinder.find_spec(first, [str(one)]) is not None), None)

    def _explain(self) -> str:
        places = ", ".join([*map(str, self.folders), *self.packages])
        here = f"it is not in {places}" if places else "this command runs only code that was named"
        return f"{here}; if you trust it, name its folder or its installed package: --code ./FOLDER or --code PACKAGE"


def find_modules(path: str, section: Mapping[str, Any]) -> dict[str, str]:
    """By the place in the job file: what a party's section names as code, also deep inside a model's table."""
    tables = dict(_list_tables(path, {key: section.get(key) for key in ("model", "top")}))
    return {f"{place}.module": str(table["module"]) for place, table in tables.items() if "module" in table}


def _list_tables(path: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Those within a table, each before those within it."""
    for key, part in table.items():
        if isinstance(part, Mapping):
            yield f"{path}.{key}", part
            yield from _list_tables(f"{path}.{key}", part)


@contextmanager
def _searching(folder: Path | None, package: str) -> Iterator[None]:
    """The folder comes first while a module and what it imports are looked for."""
    if folder is None:
        yield
        return
    if _loaded.setdefault(package, folder) != folder:  # that of another job, which has got its classes
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            del sys.modules[name]
        _loaded[package] = folder
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _require_origin(path: str, package: str, folder: Path | None) -> None:
    """A module of the same name may have been there already, such as Python's own."""
    file = getattr(sys.modules[package], "__file__", None)
    if folder is not None and (file is None or not Path(file).resolve().is_relative_to(folder)):
        other = f"a module of that name is loaded already ({file or 'built in'})"
        raise BadInput(f"{package} in {folder} cannot be loaded: {other}; rename yours").at(path)
