"""thinwire: train one network across organisations that hold different columns about the same rows.

Names load on first use (PEP 562), so that ``import thinwire`` and ``thinwire --help`` stay fast and
do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire import (
        align,
        audit,
        compress,
        errors,
        integrations,
        methods,
        models,
        privacy,
        schedule,
        streams,
        surrogates,
        types,
        wire,
    )
    from thinwire.estimators import VerticalClassifier, VerticalRegressor
    from thinwire.job import Job, Result, train
    from thinwire.models import losses
    from thinwire.models.optimizers import SGD, AdaGrad, Adam
    from thinwire.party.parties import FeatureParty, LabelParty
    from thinwire.predict import load_run
    from thinwire.recipe import Recipe
    from thinwire.streams import Storage
    from thinwire.sweeps import Grid, Trial, sweep
    from thinwire.transport.link import Link

__version__ = "0.1.0.dev0"

_MODULES = {
    "align": "align",
    "audit": "audit",
    "compress": "compress",
    "errors": "errors",
    "integrations": "integrations",
    "losses": "models.losses",
    "methods": "methods",
    "models": "models",
    "privacy": "privacy",
    "schedule": "schedule",
    "streams": "streams",
    "surrogates": "surrogates",
    "types": "types",
    "wire": "wire",
}
_NAMES = {
    "AdaGrad": "models.optimizers",
    "Adam": "models.optimizers",
    "FeatureParty": "party.parties",
    "Grid": "sweeps",
    "Job": "job",
    "LabelParty": "party.parties",
    "Link": "transport.link",
    "Recipe": "recipe",
    "Result": "job",
    "SGD": "models.optimizers",
    "Storage": "streams",
    "load_run": "predict",
    "Trial": "sweeps",
    "VerticalClassifier": "estimators",
    "VerticalRegressor": "estimators",
    "sweep": "sweeps",
    "train": "job",
}

__all__ = [
    "SGD",
    "AdaGrad",
    "Adam",
    "FeatureParty",
    "Grid",
    "Job",
    "LabelParty",
    "Link",
    "Recipe",
    "Result",
    "Storage",
    "Trial",
    "VerticalClassifier",
    "VerticalRegressor",
    "__version__",
    "align",
    "audit",
    "compress",
    "errors",
    "integrations",
    "load_run",
    "losses",
    "methods",
    "models",
    "privacy",
    "schedule",
    "streams",
    "surrogates",
    "sweep",
    "train",
    "types",
    "wire",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"thinwire.{_MODULES[name]}")
    if name in _NAMES:
        return getattr(import_module(f"thinwire.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'thinwire' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
