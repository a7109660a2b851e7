"""What leaves one feature party, among whom and from which bottom model; and what so many uses of a row cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from thinwire.privacy.accounting.budget import Budget
from thinwire.privacy.accounting.gaussian import gaussian_rdp
from thinwire.privacy.accounting.observers import Observer, Parties
from thinwire.privacy.accounting.parameters import LARGEST, beta_value, positive, whole
from thinwire.privacy.accounting.poisson_binomial import coordinate
from thinwire.privacy.accounting.renyi import Rdp, composed, epsilon_of, unproven

__all__ = [
    "BottomModel",
    "Exact",
    "Exposure",
    "Frozen",
    "Mechanism",
    "PoissonBinomialRelease",
    "PrivatelyTrained",
    "TrainedOnRawRows",
    "Uses",
    "allowed_uses",
    "end_to_end_epsilon",
    "releases_epsilon",
]


@dataclass(frozen=True, slots=True)
class PoissonBinomialRelease:
    """A noisy sum of `width` values a row, seen only as a secure sum."""

    trials: int
    beta: float
    width: int

    def __post_init__(self) -> None:
        whole("trials", self.trials, 1, 65535)
        beta_value("beta", self.beta)
        whole("width", self.width, 1)


@dataclass(frozen=True, slots=True)
class Exact:
    """Embeddings as they are, or compressed without noise: nothing is proven."""


Mechanism: TypeAlias = PoissonBinomialRelease | Exact


@dataclass(frozen=True, slots=True)
class Frozen:
    """The bottom model does not depend on private rows: it is public, or was never trained on them."""


@dataclass(frozen=True, slots=True)
class PrivatelyTrained:
    """Every gradient sum of the bottom model is clipped row by row at c and has Gaussian noise s c."""

    noise_multiplier: float  # s

    def __post_init__(self) -> None:
        positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class TrainedOnRawRows:
    """The bottom model learns from private rows without noise, and shows them through other rows' embeddings."""


BottomModel: TypeAlias = Frozen | PrivatelyTrained | TrainedOnRawRows


@dataclass(frozen=True, slots=True, order=True)
class Uses:
    """How often one row was released, and how often it took part in a noisy gradient step."""

    releases: int
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Exposure:
    """The circumstances of one feature party."""

    mechanism: Mechanism
    parties: Parties
    bottom: BottomModel = TrainedOnRawRows()

    def epochs(self, count: int) -> Uses:
        """So many passes over all rows: each is one release, and one step where steps are accounted for."""
        return Uses(count, count if isinstance(self.bottom, PrivatelyTrained) else 0)


@lru_cache(maxsize=4096)
def releases_epsilon(exposure: Exposure, observer: Observer, uses: Uses, delta: float) -> float:
    """Of the releases alone, as if the bottom model were public."""
    return epsilon_of(composed((uses.releases, _release_rdp(exposure, observer))), delta)


@lru_cache(maxsize=4096)
def end_to_end_epsilon(exposure: Exposure, observer: Observer, uses: Uses, delta: float) -> float:
    """Of the releases and of the bottom model that every later embedding, of any row, comes from."""
    release = (uses.releases, _release_rdp(exposure, observer))
    match exposure.bottom:
        case Frozen():
            return epsilon_of(composed(release), delta)
        case PrivatelyTrained(noise_multiplier):
            return epsilon_of(composed(release, (uses.steps, gaussian_rdp(noise_multiplier))), delta)
        case TrainedOnRawRows():
            return epsilon_of(composed((uses.releases, unproven)), delta)


def allowed_uses(exposure: Exposure, budget: Budget) -> int:
    """How many epochs fit in the budget, from the first on."""

    def fits(count: int) -> bool:
        uses = exposure.epochs(count)
        return end_to_end_epsilon(exposure, budget.observer, uses, budget.delta) <= budget.epsilon

    low, high = 0, 1
    while high < LARGEST and fits(high):
        low, high = high, min(2 * high, LARGEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _release_rdp(exposure: Exposure, observer: Observer) -> Rdp:
    match exposure.mechanism:
        case PoissonBinomialRelease(trials, beta, width):
            return composed((width, coordinate(trials, beta, observer.unknown(exposure.parties)).rdp))
        case Exact():
            return unproven
