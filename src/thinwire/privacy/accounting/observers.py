"""Who looks, and how many parties' noise that observer does not know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from thinwire.errors import BadParameter
from thinwire.privacy.accounting.parameters import whole

__all__ = ["Observer", "Parties"]

_ENOUGH_TO_HIDE = 3


@dataclass(frozen=True, slots=True)
class Parties:
    """How many feature parties add noise to the sum, and what the label party has besides labels."""

    noisy: int
    label_holds_features: bool = False

    def __post_init__(self) -> None:
        whole("parties", self.noisy, 1, 65535)


class Observer(StrEnum):
    """From whom one feature party's row is hidden."""

    LABEL_PARTY = "label_party"
    FEATURE_PARTY = "feature_party"
    ALL_OTHERS = "all_others"

    @property
    def shown(self) -> str:
        return _SHOWN[self]

    @classmethod
    def named(cls, name: str) -> Observer:
        """The observer of that name; another is refused with the list."""
        try:
            return cls(name)
        except ValueError:
            raise BadParameter(f"observer must be one of {', '.join(cls)}, got {name!r}") from None

    def unknown(self, parties: Parties) -> int:
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
