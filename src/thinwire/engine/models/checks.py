"""Checks of sizes, numbers and input shapes, with one message that names owner and field; activations by name."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, prod
from numbers import Integral, Real

from torch import Tensor, nn

from thinwire.base.errors import BadParameter, BadTensor


def require_size(owner: object, field: str, value: object, low: int = 1) -> int:
    """The value as a plain int of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
        raise BadParameter.about(_name(owner), field, f"must be a whole number from {low} up, got {value!r}")
    return int(value)


def require_sizes(owner: object, field: str, values: object, low: int = 1) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise BadParameter.about(_name(owner), field, f"must be a list of whole numbers, got {values!r}")
    return tuple(require_size(owner, f"{field}[{i}]", value, low) for i, value in enumerate(values))


def require_number(
    owner: object,
    field: str,
    value: object,
    *,
    above: float = -inf,
    at_least: float = -inf,
    below: float = inf,
) -> float:
    """The value as a plain float in the named range; a numpy number would drag its precision along."""
    bounds = {"above": above, "at least": at_least, "below": below}
    wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if isfinite(bound))
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadParameter.about(_name(owner), field, f"must be a number {wanted}".rstrip() + f", got {value!r}")
    number = float(value)
    if not (isfinite(number) and number > above and number >= at_least and number < below):
        raise BadParameter.about(_name(owner), field, f"must be {wanted or 'finite'}, got {value}")
    return number


def check_input(owner: object, x: Tensor, *sizes: int | str) -> None:
    """x is [B, *sizes]; a size given as a letter may be anything."""
    given = tuple(x.shape[1:])
    fits = len(given) == len(sizes) and all(
        isinstance(wanted, str) or size == wanted for size, wanted in zip(given, sizes, strict=True)
    )
    if x.dim() == 0 or not fits:
        wanted = ", ".join(["B", *map(str, sizes)])
        raise BadTensor(f"{_name(owner)}: the input has shape {tuple(x.shape)}, expected [{wanted}]")


def flat_rows(owner: object, x: Tensor, in_features: int) -> Tensor:
    """x as [B, in_features]: every row's features in one line."""
    width = prod(x.shape[1:])
    if x.dim() == 0 or width != in_features:
        raise BadTensor(
            f"{_name(owner)}: the input has shape {tuple(x.shape)}, so {width} features a row, "
            f"not in_features={in_features}"
        )
    return x.reshape(x.shape[0], in_features)  # len() would fix the batch of an exported model


def _name(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


ACTIVATIONS: dict[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


def activation(name: str | None, owner: object, field: str = "activation") -> nn.Module:
    """A new module of that name; None leaves values as they are."""
    if name is None:
        return nn.Identity()
    if name not in ACTIVATIONS:
        wanted = ", ".join(map(repr, ACTIVATIONS))
        raise BadParameter.about(owner, field, f"must be None or one of {wanted}, got {name!r}")
    return ACTIVATIONS[name]()
