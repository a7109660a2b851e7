"""The privacy ledger in words: what each feature party's worst-off row has lost, to whom, and what holds only if."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OBSERVERS = {
    "label_party": "the label party alone",
    "feature_party": "a curious feature party",
    "all_others": "all others together",
}


@dataclass(frozen=True)
class PrivacySpending:
    """Of one party."""

    party: str
    delta: str
    rows: tuple[tuple[str, str, str], ...]  # against whom, the releases' epsilon, end to end
    budget: str
    not_protected: tuple[str, ...]
    holds_only_if: tuple[str, ...]


@dataclass(frozen=True)
class Gauge:
    """How much of a budget is gone."""

    party: str
    spent: float
    epsilon: float

    @property
    def share(self) -> float:
        return min(1.0, self.spent / self.epsilon) if self.epsilon > 0 else 1.0


def list_spending(ledgers: Sequence[Mapping[str, Any]]) -> list[PrivacySpending]:
    return [_spent(ledger) for ledger in ledgers]


def gauges(ledgers: Sequence[Mapping[str, Any]]) -> list[Gauge]:
    """Of the parties that have a budget."""
    found = []
    for ledger in ledgers:
        budget = ledger.get("budget") or {}
        if isinstance(budget.get("spent"), int | float) and isinstance(budget.get("epsilon"), int | float):
            found.append(Gauge(str(ledger.get("party", "")), float(budget["spent"]), float(budget["epsilon"])))
    return found


def _spent(ledger: Mapping[str, Any]) -> PrivacySpending:
    budget = ledger.get("budget") or {}
    said = "none"
    if budget:
        said = f"epsilon {_epsilon(budget.get('epsilon'))} to {_observer(budget.get('observer'))}"
        said += f", {_epsilon(budget.get('spent'))} of it spent"
    return PrivacySpending(
        party=str(ledger.get("party", "")),
        delta=f"{ledger.get('delta', 0):g}",
        rows=tuple(
            (
                _observer(row.get("observer")),
                _epsilon(row.get("releases_epsilon")),
                _epsilon(row.get("end_to_end_epsilon")),
            )
            for row in ledger.get("observers", ())
        ),
        budget=said,
        not_protected=_texts(ledger.get("not_protected")),
        holds_only_if=_texts(ledger.get("holds_only_if")),
    )


def _observer(name: Any) -> str:
    return _OBSERVERS.get(str(name), str(name))


def _epsilon(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "infinite"


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value or ()))
