"""Libraries that only some uses need: loaded when asked for, or refused with the command that installs them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from thinwire.base.errors import BadInput


def require_extra(module: str, what: str, extra: str) -> ModuleType:
    """The module that `what` cannot do without."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise BadInput(f"{what} needs {error.name}: pip install 'thinwire[{extra}]'") from None
    except ImportError as error:
        raise BadInput(f"{what} needs {module}, which cannot be loaded here: {error}") from None
