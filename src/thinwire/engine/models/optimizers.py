"""Optimisers and learning rates that change with the round: frozen values, so that they enter a job's digest.

Each party builds an optimiser of its own over its own parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import unwrap
from math import cos, pi, sqrt
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn, optim

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.parameters import check_flag, require_number, require_size


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A learning rate that starts from `lr`."""

    lr: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", require_number(self, "lr", self.lr, above=0))


@dataclass(frozen=True, slots=True)
class Constant(_Scaled):
    """A constant learning rate.

    Args:
        lr: above 0.

    Raises:
        BadParameter: `lr` is not positive.

    Examples:
        >>> tw.models.Constant(0.1).at(round=5, total_rounds=10)
        0.1
    """

    def at(self, round: int, total_rounds: int) -> float:
        return self.lr


@dataclass(frozen=True, slots=True)
class InverseRoot(_Scaled):
    """lr / sqrt(T) in every round, T the rounds of the whole run.

    Args:
        lr: above 0.

    Raises:
        BadParameter: `lr` is not positive.

    Examples:
        >>> tw.models.InverseRoot(1.0).at(round=0, total_rounds=100)
        0.1
    """

    def at(self, round: int, total_rounds: int) -> float:
        return self.lr / sqrt(total_rounds)


@dataclass(frozen=True, slots=True)
class OverRound(_Scaled):
    """lr / (t + 1) in round t.

    Args:
        lr: above 0.

    Raises:
        BadParameter: `lr` is not positive.

    Examples:
        >>> tw.models.OverRound(1.0).at(round=3, total_rounds=10)
        0.25
    """

    def at(self, round: int, total_rounds: int) -> float:
        return self.lr / (round + 1)


@dataclass(frozen=True, slots=True)
class StepMilestones(_Scaled):
    """A learning rate that is multiplied by each factor from its round on.

    Args:
        lr: above 0.
        milestones: pairs (round, factor); the rounds increase.

    Raises:
        BadParameter: not pairs, or rounds that do not increase.

    Examples:
        >>> tw.models.StepMilestones(1.0, ((100, 0.5), (200, 0.1))).at(150, total_rounds=300)
        0.5
    """

    milestones: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        _Scaled.__post_init__(self)
        if not isinstance(self.milestones, Sequence) or not all(_is_pair(pair) for pair in self.milestones):
            raise BadParameter.about(
                "StepMilestones",
                "milestones",
                f"must be pairs (round, factor), got {self.milestones!r}; write ((100, 0.5), (200, 0.1))",
            )
        pairs = tuple(
            (
                require_size(self, f"milestones[{i}]'s round", first, low=0),
                require_number(self, f"milestones[{i}]'s factor", factor, above=0),
            )
            for i, (first, factor) in enumerate(self.milestones)
        )
        rounds = [first for first, _ in pairs]
        if rounds != sorted(set(rounds)):
            raise BadParameter(f"StepMilestones: the rounds must increase, got {rounds}")
        object.__setattr__(self, "milestones", pairs)

    def at(self, round: int, total_rounds: int) -> float:
        value = self.lr
        for first, factor in self.milestones:
            value *= factor if round >= first else 1.0
        return value


@dataclass(frozen=True, slots=True)
class Cosine(_Scaled):
    """Half a cosine wave, from `lr` in round 0 down to `minimum` in the last round.

    Args:
        lr: above 0.
        minimum: from 0 to `lr`.

    Raises:
        BadParameter: a value is out of range.

    Examples:
        >>> tw.models.Cosine(0.1).at(round=0, total_rounds=10)
        0.1
    """

    minimum: float = 0.0

    def __post_init__(self) -> None:
        _Scaled.__post_init__(self)
        object.__setattr__(self, "minimum", require_number(self, "minimum", self.minimum, at_least=0))
        if self.minimum > self.lr:
            raise BadParameter.about("Cosine", "minimum", f"must be at most lr = {self.lr}, got {self.minimum}")

    def at(self, round: int, total_rounds: int) -> float:
        last = max(1, total_rounds - 1)
        share = (1 + cos(pi * min(round, last) / last)) / 2
        return share * self.lr + (1 - share) * self.minimum  # exact at both ends


StepSize: TypeAlias = Constant | InverseRoot | OverRound | StepMilestones | Cosine

STEP_SIZES: dict[str, type[StepSize]] = {
    "constant": Constant,
    "inverse_root": InverseRoot,
    "over_round": OverRound,
    "step_milestones": StepMilestones,
    "cosine": Cosine,
}


def _is_pair(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2


# Optimisers as frozen values; each party builds its own over its own parameters -----------------------------------


_MARKED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def spare_compiler(kind: Any) -> Any:
    """The same optimiser without torch's marks for its compiler: at their first use they import it, for two seconds.

    Nothing is compiled here. Its steps are bare too, without the profiler's hooks.
    """
    bare_step = unwrap(kind.step)

    def step(self: optim.Optimizer, closure: Any = None) -> Any:
        with torch.no_grad():
            return bare_step(self, closure)

    step.hooked = True  # type: ignore[attr-defined]
    return type(kind.__name__, (kind,), {"step": step, **{name: unwrap(getattr(kind, name)) for name in _MARKED}})


class OptimizerSpec:
    """Base of `tw.SGD`, `tw.Adam` and `tw.AdaGrad`: an optimizer without the parameters it updates.

    `lr` is a number or a schedule. With `averaging`, models are evaluated, delivered and used for predictions with a
    running average of their weights.

    Examples:
        >>> isinstance(tw.Adam(lr=0.003), tw.models.OptimizerSpec)
        True
    """

    __slots__ = ()

    lr: float | StepSize
    averaging: bool
    _kind: ClassVar[Any]  # torch's class of it
    _renamed: ClassVar[Mapping[str, str]] = {}  # settings that torch calls otherwise

    def build(self, parameters: Iterable[nn.Parameter]) -> optim.Optimizer | None:
        """The optimiser over these parameters, or None where there are none.

        Its learning rate is that of round 0 in a run of one round: give it `lr_at` before every step.
        """
        group = list(parameters)
        names = [field.name for field in fields(self) if field.name != "averaging"]  # type: ignore[arg-type]
        settings = {self._renamed.get(name, name): getattr(self, name) for name in names}
        # foreach and fused kernels may round otherwise than the plain loop over parameters.
        settings |= {"lr": self.lr_at(0, 1), "foreach": False, "fused": False}
        return self._kind(group, **settings) if group else None

    def lr_at(self, round: int, total_rounds: int) -> float:
        """The learning rate of round `round`, counted from 0, in a run of `total_rounds`."""
        require_size(self, "round", round, low=0)
        require_size(self, "total_rounds", total_rounds)
        return self.lr.at(round, total_rounds) if isinstance(self.lr, StepSize) else self.lr

    def _check_lr(self) -> None:
        if not isinstance(self.lr, StepSize):
            self._check("lr", above=0)

    def describe(self) -> str:
        """In words, for a job's digest."""
        return repr(self).replace(", averaging=False", "")  # digests are older than it

    def _check(self, field: str, **bounds: float) -> None:
        object.__setattr__(self, field, require_number(self, field, getattr(self, field), **bounds))


@dataclass(frozen=True, slots=True)
class SGD(OptimizerSpec):
    """w -= lr * v, where v = momentum * v + gradient; weight decay adds weight_decay * w to the gradient.

    Args:
        lr: learning rate, or one that changes by round, such as `tw.models.Cosine(0.1)`.
        momentum: share of the last step that is kept.
        weight_decay: L2 penalty.
        nesterov: look ahead by the momentum.
        averaging: evaluate and deliver an average of the weights.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.SGD(lr=0.1, momentum=0.9).momentum
        0.9
    """

    lr: float | StepSize
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    averaging: bool = False

    _kind = spare_compiler(optim.SGD)

    def __post_init__(self) -> None:
        self._check_lr()
        self._check("momentum", at_least=0, below=1)
        self._check("weight_decay", at_least=0)
        check_flag(self, "nesterov")
        check_flag(self, "averaging")
        if self.nesterov and not self.momentum:
            raise BadParameter.about("SGD", "nesterov", "needs momentum above 0; write SGD(lr, momentum=0.9, ...)")


@dataclass(frozen=True, slots=True)
class Adam(OptimizerSpec):
    """Adam; weight decay adds weight_decay * w to the gradient.

    Args:
        lr: learning rate, or one that changes by round, such as `tw.models.Cosine(0.01)`.
        betas: decay of the averages of gradients and of their squares.
        eps: added to the root of the average square.
        weight_decay: L2 penalty.
        averaging: evaluate and deliver an average of the weights.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.Adam(lr=0.003, weight_decay=0.001).betas
        (0.9, 0.999)
    """

    lr: float | StepSize = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    averaging: bool = False

    _kind = spare_compiler(optim.Adam)

    def __post_init__(self) -> None:
        self._check_lr()
        if isinstance(self.betas, str) or not isinstance(self.betas, Sequence) or len(self.betas) != 2:
            raise BadParameter.about("Adam", "betas", f"must be two numbers, got {self.betas!r}; write (0.9, 0.999)")
        betas = [require_number(self, f"betas[{i}]", b, at_least=0, below=1) for i, b in enumerate(self.betas)]
        object.__setattr__(self, "betas", tuple(betas))
        self._check("eps", above=0)
        self._check("weight_decay", at_least=0)
        check_flag(self, "averaging")


@dataclass(frozen=True, slots=True)
class AdaGrad(OptimizerSpec):
    """w -= lr * gradient / (sqrt(a) + eps), where a = initial_accumulator + the sum of gradient^2.

    Args:
        lr: learning rate, or one that changes by round.
        initial_accumulator: what the sum of squared gradients starts from.
        weight_decay: L2 penalty.
        eps: added to the root of the sum.
        averaging: evaluate and deliver an average of the weights.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.AdaGrad(lr=0.02).initial_accumulator
        0.1
    """

    lr: float | StepSize = 0.05
    initial_accumulator: float = 0.1
    weight_decay: float = 0.0
    eps: float = 1e-10
    averaging: bool = False

    _kind = spare_compiler(optim.Adagrad)
    _renamed = {"initial_accumulator": "initial_accumulator_value"}

    def __post_init__(self) -> None:
        self._check_lr()
        self._check("initial_accumulator", at_least=0)
        self._check("weight_decay", at_least=0)
        self._check("eps", above=0)
        check_flag(self, "averaging")


OPTIMIZERS: dict[str, type[OptimizerSpec]] = {"sgd": SGD, "adam": Adam, "adagrad": AdaGrad}


def set_lr(optimizer: optim.Optimizer, value: float) -> None:
    """Sets the learning rate from the next step on.

    Args:
        optimizer: a torch optimizer.
        value: the learning rate.

    Examples:
        >>> import torch
        >>> optimizer = tw.SGD(lr=0.1).build(torch.nn.Linear(2, 1).parameters())
        >>> tw.models.set_lr(optimizer, 0.01)
        >>> optimizer.param_groups[0]["lr"]
        0.01
    """
    for group in optimizer.param_groups:
        group["lr"] = value
