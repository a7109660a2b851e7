"""Activations by name, for models and job files."""

from __future__ import annotations

from torch import nn

from thinwire.errors import BadParameter

__all__ = ["ACTIVATIONS", "activation"]

ACTIVATIONS: dict[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


def activation(name: str | None, owner: object, field: str = "activation") -> nn.Module:
    """A new module of that name; None leaves values as they are."""
    if name is None:
        return nn.Identity()
    if name not in ACTIVATIONS:
        wanted = ", ".join(map(repr, ACTIVATIONS))
        raise BadParameter(f"{type(owner).__name__}: {field} must be None or one of {wanted}, got {name!r}")
    return ACTIVATIONS[name]()
