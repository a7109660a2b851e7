"""What is loaded when it is asked for: public names of a package, and libraries that only some uses need."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from types import ModuleType
from typing import Any

from thinwire.base.errors import BadInput


def require_extra(module: str, what: str, extra: str) -> ModuleType:
    """The module that `what` cannot do without; refused with the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise BadInput(f"{what} needs {error.name}: pip install 'thinwire[{extra}]'") from None
    except ImportError as error:
        raise BadInput(f"{what} needs {module}, which cannot be imported here: {error}") from None


def load_lazily(package: str, names: Collection[str], rooms: Collection[str]) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562): a name comes from the first module that has it, light ones first."""

    def load(name: str) -> Any:
        if name in names and name in rooms:
            return import_module(f"{package}.{name}")
        for room in rooms if name in names else ():
            module = import_module(f"{package}.{room}")
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"module '{package.replace('.engine.', '.')}' has no attribute {name!r}")

    return load
