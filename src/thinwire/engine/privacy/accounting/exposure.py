"""What leaves one feature party, from which bottom model, who looks, what it costs, and the budget that limits it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

from thinwire.base.errors import BadParameter, ThinwireError
from thinwire.base.types import PartyName
from thinwire.engine.privacy.accounting.poisson_binomial import coordinate
from thinwire.engine.privacy.accounting.renyi import (
    LARGEST,
    Rdp,
    compose,
    convert_to_epsilon,
    gaussian_rdp,
    infinite_rdp,
    require_beta,
    require_delta,
    require_positive,
    require_whole,
)

_ENOUGH_TO_HIDE = 3


@dataclass(frozen=True, slots=True)
class Parties:
    """How many feature parties add noise to the sum, and what the label party has besides labels."""

    noisy: int
    label_holds_features: bool = False

    def __post_init__(self) -> None:
        require_whole("parties", self.noisy, 1, 65535)


class Observer(StrEnum):
    """From whom one feature party's row is hidden."""

    LABEL_PARTY = "label_party"
    FEATURE_PARTY = "feature_party"
    ALL_OTHERS = "all_others"

    @property
    def display_name(self) -> str:
        return _SHOWN[self]

    @classmethod
    def parse(cls, name: str) -> Observer:
        """The observer of that name; another is refused with the list."""
        try:
            return cls(name)
        except ValueError:
            raise BadParameter(f"observer must be one of {', '.join(cls)}, got {name!r}") from None

    def count_noise_parties(self, parties: Parties) -> int:
        """m: the parties whose noise this observer does not know, the protected one among them."""
        # A sum of two shows each of them what the other sent: less than three hide nobody.
        if self is Observer.ALL_OTHERS or parties.noisy < _ENOUGH_TO_HIDE:
            return 1
        # A label party with features adds its exact embedding after the sum is opened and none of the noise, so
        # M would do for it. One less is claimed all the same: it stays true for one that would take part.
        if self is Observer.FEATURE_PARTY or parties.label_holds_features:
            return parties.noisy - 1
        return parties.noisy


_SHOWN = {
    Observer.LABEL_PARTY: "the label party alone",
    Observer.FEATURE_PARTY: "a curious feature party",
    Observer.ALL_OTHERS: "all other parties together",
}


DEFAULT_DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class Budget:
    """The end-to-end epsilon, at this delta, that no row of a feature party may exceed against this observer.

    The default observer is the label party alone. Whoever fears that parties pool what they see asks for
    `Observer.ALL_OTHERS`, at several times the noise.
    """

    epsilon: float
    delta: float = DEFAULT_DELTA
    observer: Observer = Observer.LABEL_PARTY

    def __post_init__(self) -> None:
        require_positive("budget: epsilon", self.epsilon)
        require_delta("budget: delta", self.delta)
        object.__setattr__(self, "observer", Observer.parse(self.observer))


class BudgetExceeded(ThinwireError):
    """The next use of some rows would cost more than the budget leaves; it was not made."""

    def __init__(self, party: PartyName, spent: float, next_epsilon: float, budget: Budget) -> None:
        self.party = party
        self.spent = spent
        self.next_epsilon = next_epsilon
        self.budget = budget
        super().__init__(
            f"{party!r}: the privacy budget ends here. The worst-off row has spent epsilon {spent:.4g}, this use "
            f"would make it {next_epsilon:.4g}, the budget is {budget.epsilon:g} (delta {budget.delta:g}, against "
            f"{budget.observer.display_name}). It was not made. Keep the model as it is; or start anew with fewer "
            "epochs, a narrower embedding, cached sums or more noise, which `thinwire privacy --epsilon` plans"
        )


@dataclass(frozen=True, slots=True)
class PoissonBinomialRelease:
    """A noisy sum of `width` values a row, seen only as a secure sum."""

    trials: int
    beta: float
    width: int

    def __post_init__(self) -> None:
        require_whole("trials", self.trials, 1, 65535)
        require_beta("beta", self.beta)
        require_whole("width", self.width, 1)


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
        require_positive("noise_multiplier", self.noise_multiplier)


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
    return convert_to_epsilon(compose((uses.releases, _release_rdp(exposure, observer))), delta)


@lru_cache(maxsize=4096)
def end_to_end_epsilon(exposure: Exposure, observer: Observer, uses: Uses, delta: float) -> float:
    """Of the releases and of the bottom model that every later embedding, of any row, comes from."""
    release = (uses.releases, _release_rdp(exposure, observer))
    match exposure.bottom:
        case Frozen():
            return convert_to_epsilon(compose(release), delta)
        case PrivatelyTrained(noise_multiplier):
            return convert_to_epsilon(compose(release, (uses.steps, gaussian_rdp(noise_multiplier))), delta)
        case TrainedOnRawRows():
            return convert_to_epsilon(compose((uses.releases, infinite_rdp)), delta)


def max_epochs(exposure: Exposure, budget: Budget) -> int:
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
            return compose((width, coordinate(trials, beta, observer.count_noise_parties(exposure.parties)).rdp))
        case Exact():
            return infinite_rdp
