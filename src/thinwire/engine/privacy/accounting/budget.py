"""Who looks at a feature party's rows, and the budget that limits what they reveal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from thinwire.base.errors import BadParameter, ThinwireError
from thinwire.base.types import PartyName
from thinwire.engine.privacy.accounting.renyi import require_delta, require_positive, require_whole

_ENOUGH_TO_HIDE = 3


@dataclass(frozen=True, slots=True)
class Parties:
    """How many feature parties add noise to the sum, and what the label party has besides labels."""

    noisy: int
    label_holds_features: bool = False

    def __post_init__(self) -> None:
        require_whole("parties", self.noisy, 1, 65535)


class Observer(StrEnum):
    """From whom a feature party's row is hidden.

    Examples:
        >>> tw.privacy.Observer.parse("all_others").value
        'all_others'
    """

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
    """The largest end-to-end epsilon of any row of a feature party, against one observer.

    Args:
        epsilon: above 0.
        delta: above 0, far below 1 / rows.
        observer: the label party alone; `Observer.ALL_OTHERS` where parties may pool what they see, at several times
            the noise.

    Raises:
        BadParameter: a value is out of range.

    Examples:
        >>> tw.privacy.Budget(epsilon=2.0).observer.value
        'label_party'
    """

    epsilon: float
    delta: float = DEFAULT_DELTA
    observer: Observer = Observer.LABEL_PARTY

    def __post_init__(self) -> None:
        require_positive("budget: epsilon", self.epsilon)
        require_delta("budget: delta", self.delta)
        object.__setattr__(self, "observer", Observer.parse(self.observer))


class BudgetExceeded(ThinwireError):
    """The next use of some rows would exceed the budget; it was not made.

    Args:
        party: whose budget it is.
        spent: epsilon of the most exposed row so far.
        next_epsilon: what the use would raise it to.
        budget: the limit.
    """

    def __init__(self, party: PartyName, spent: float, next_epsilon: float, budget: Budget) -> None:
        self.party = party
        self.spent = spent
        self.next_epsilon = next_epsilon
        self.budget = budget
        super().__init__(
            f"{party!r}: the privacy budget is exhausted. The most exposed row has spent epsilon {spent:.4g}, this "
            f"use would raise it to {next_epsilon:.4g}, and the budget is {budget.epsilon:g} (delta "
            f"{budget.delta:g}, against {budget.observer.display_name}), so the use was not made. Keep the model as "
            "it is, or start over with fewer epochs, a narrower embedding, cached sums or more noise, which "
            "`thinwire privacy --epsilon` plans"
        )
