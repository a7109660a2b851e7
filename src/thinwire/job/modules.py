"""Models from a job file: one of ours by name, or a class of the party's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from thinwire.errors import BadInput
from thinwire.job.calls import call, named, signature
from thinwire.models import MODELS
from thinwire.seeds import derived_seed

__all__ = ["module_of", "weight_seed"]


def module_of(
    path: str,
    table: Mapping[str, Any],
    shape: Sequence[int],
    seed: int,
    folder: Path,
    follows: Mapping[str, Any] = MappingProxyType({}),
) -> nn.Module:
    """The module that `table` describes, for rows of `shape`; its weights follow from the seed alone.

    Sizes that follow from the data (in_features, in_channels, image_size, dense_features) may be left out, and what
    `follows` from how it was prepared.
    """
    if "module" in table:
        build, name, arguments = _own(path, table, folder)
    else:
        name, arguments = named(path, table, "name", MODELS)
        build = MODELS[name]
    arguments |= {key: value for key, value in follows.items() if key in signature(build) and key not in arguments}
    for key in signature(build):
        if key in _FOLLOWS and key not in arguments:
            arguments[key] = _FOLLOWS[key](name, shape, arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = call(path, build, name, arguments)
    if not isinstance(module, nn.Module):
        raise BadInput(f"{path}.module: {name} gives {type(module).__name__}, not a torch module")
    return module


def weight_seed(seed: int, party: str, part: str) -> int:
    """A party's first weights do not depend on the other parties."""
    return derived_seed(seed, "weights", party, part)


_FOLLOWS: dict[str, Callable[[str, Sequence[int], Mapping[str, Any]], Any]] = {
    "in_features": lambda name, shape, _: shape[-1] if name == "lstm" else prod(shape),
    "in_channels": lambda _, shape, __: shape[0],
    "image_size": lambda _, shape, __: tuple(shape[1:]),
    "dense_features": lambda _, shape, given: max(0, prod(shape) - len(given.get("fields_vocab") or ())),
}


def _own(path: str, table: Mapping[str, Any], folder: Path) -> tuple[Callable[..., Any], str, dict[str, Any]]:
    """A class by the name of its module, which is looked for next to the job file first."""
    where = table["module"]
    package, _, name = str(where).partition(":")
    if not isinstance(where, str) or not package or not name:
        raise BadInput(f'{path}.module must be "package.module:Class", got {where!r}')
    if "name" in table:
        raise BadInput(f"{path}: give a name, for one of ours, or a module, for your own; not both")
    try:
        with _findable(folder):
            build = getattr(importlib.import_module(package), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise BadInput(f"{path}.module: {where} cannot be loaded: {error}") from error
    if not callable(build):
        raise BadInput(f"{path}.module: {where} is {type(build).__name__}, not a class")
    return build, name, {key: value for key, value in table.items() if key != "module"}


@contextmanager
def _findable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
