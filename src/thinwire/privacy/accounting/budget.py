"""A limit on what a party's worst-off row may lose, and the end of it."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import ThinwireError
from thinwire.privacy.accounting.observers import Observer
from thinwire.privacy.accounting.parameters import delta_value, positive
from thinwire.types import PartyName

__all__ = ["DEFAULT_DELTA", "Budget", "BudgetExceeded"]

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
        positive("budget: epsilon", self.epsilon)
        delta_value("budget: delta", self.delta)
        object.__setattr__(self, "observer", Observer.named(self.observer))


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
            f"{budget.observer.shown}). It was not made. Keep the model as it is; or start anew with fewer epochs, "
            "a narrower embedding, cached sums or more noise, which `thinwire privacy --epsilon` plans"
        )
