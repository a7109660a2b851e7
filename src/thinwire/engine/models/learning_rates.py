"""Step sizes that change with the round: frozen values, so that they enter a job's digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import TypeAlias

from thinwire.base.errors import BadParameter
from thinwire.engine.models.checks import require_number, require_size


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A step size that starts from `lr`."""

    lr: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", require_number(self, "lr", self.lr, above=0))


@dataclass(frozen=True, slots=True)
class Constant(_Scaled):
    """lr in every round."""

    def at(self, round: int, total_rounds: int) -> float:
        return self.lr


@dataclass(frozen=True, slots=True)
class InverseRoot(_Scaled):
    """lr / sqrt(T) in every round, T the rounds of the whole run."""

    def at(self, round: int, total_rounds: int) -> float:
        return self.lr / sqrt(total_rounds)


@dataclass(frozen=True, slots=True)
class OverRound(_Scaled):
    """lr / (t + 1)."""

    def at(self, round: int, total_rounds: int) -> float:
        return self.lr / (round + 1)


@dataclass(frozen=True, slots=True)
class StepMilestones(_Scaled):
    """lr, multiplied by each factor from its round on: ``StepMilestones(0.1, ((100, 0.5), (200, 0.1)))``."""

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
            raise BadParameter(f"StepMilestones: the rounds must rise, got {rounds}")
        object.__setattr__(self, "milestones", pairs)

    def at(self, round: int, total_rounds: int) -> float:
        value = self.lr
        for first, factor in self.milestones:
            value *= factor if round >= first else 1.0
        return value


@dataclass(frozen=True, slots=True)
class Cosine(_Scaled):
    """Half a cosine wave, from lr in round 0 down to `minimum` in the last round."""

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
