"""thinwire: train one network across organisations that hold different columns about the same rows.

Names load on first use (PEP 562), so that ``import thinwire`` and ``thinwire --help`` stay fast and
do not import torch.
"""

from importlib import import_module
from types import ModuleType

__version__ = "0.1.0.dev0"

_MODULES = ("compress", "errors", "streams", "surrogates", "types", "wire")

__all__ = ["__version__", "compress", "errors", "streams", "surrogates", "types", "wire"]


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return import_module(f"thinwire.{name}")
    raise AttributeError(f"module 'thinwire' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
