"""thinwire: train one network across organisations that hold different columns about the same rows.

Names load on first use (PEP 562), so that ``import thinwire`` and ``thinwire --help`` stay fast and
do not import torch. docs/architecture.md says which floor holds what.
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
        learners,
        methods,
        models,
        privacy,
        schedule,
        streams,
        surrogates,
        types,
        wire,
    )
    from thinwire.engine.channel.link import Link
    from thinwire.engine.models import losses
    from thinwire.engine.models.optimizers import SGD, AdaGrad, Adam
    from thinwire.engine.programs.parties import FeatureParty, LabelParty
    from thinwire.engine.recipe import Recipe
    from thinwire.engine.streams.storage import Storage
    from thinwire.integrations.sklearn import VerticalClassifier, VerticalRegressor
    from thinwire.job.job import Job
    from thinwire.lab.sweep.trials import Grid, Trial, sweep
    from thinwire.predict.run import load_run
    from thinwire.training.result import Result
    from thinwire.training.train import train

__version__ = "0.1.0.dev0"

_MODULES = {
    "align",
    "audit",
    "compress",
    "errors",
    "integrations",
    "learners",
    "methods",
    "models",
    "privacy",
    "schedule",
    "streams",
    "surrogates",
    "types",
    "wire",
}
_NAMES = {
    "AdaGrad": "engine.models.optimizers",
    "Adam": "engine.models.optimizers",
    "FeatureParty": "engine.programs.parties",
    "Grid": "lab.sweep.trials",
    "Job": "job.job",
    "LabelParty": "engine.programs.parties",
    "Link": "engine.channel.link",
    "Recipe": "engine.recipe",
    "Result": "training.result",
    "SGD": "engine.models.optimizers",
    "Storage": "engine.streams.storage",
    "Trial": "lab.sweep.trials",
    "VerticalClassifier": "integrations.sklearn",
    "VerticalRegressor": "integrations.sklearn",
    "load_run": "predict.run",
    "losses": "engine.models",
    "sweep": "lab.sweep.trials",
    "train": "training.train",
}

__all__ = ["SGD", "AdaGrad", "Adam", "FeatureParty", "Grid", "Job", "LabelParty", "Link", "Recipe", "Result"]
__all__ += ["Storage", "Trial", "VerticalClassifier", "VerticalRegressor", "__version__", "align", "audit"]
__all__ += ["compress", "errors", "integrations", "learners", "load_run", "losses", "methods", "models", "privacy"]
__all__ += ["schedule", "streams", "surrogates", "sweep", "train", "types", "wire"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"thinwire.{name}")
    if name in _NAMES:
        return getattr(import_module(f"thinwire.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'thinwire' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
