"""What one feature party has spent: how often each of its rows was used, and the epsilon of the worst-off row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import isinf
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.base.errors import BadParameter, BadState, IncompatibleRecipe
from thinwire.base.types import PartyName
from thinwire.engine.privacy.accounting.exposure import (
    DEFAULT_DELTA,
    Budget,
    BudgetExceeded,
    Exposure,
    PrivatelyTrained,
    Uses,
    end_to_end_epsilon,
    max_epochs,
)
from thinwire.engine.privacy.accounting.figures import (
    PrivacyLoss,
    compute_privacy_losses,
    epsilon_to_json,
    list_conditions,
    list_limitations,
)
from thinwire.engine.privacy.accounting.renyi import LARGEST, require_whole

Counts = npt.NDArray[np.int32]
_NOTHING = frozenset({Uses(0, 0)})


class PrivacyLedger:
    """Counts uses row by row. Charge before anything leaves the party, and save `state()` before that too.

    A charge that would go over the budget raises BudgetExceeded and changes nothing. Reusing a sum that was
    already released costs nothing, and is not charged.
    """

    def __init__(self, party: PartyName, exposure: Exposure, rows: int, budget: Budget | None = None) -> None:
        self._party = party
        self._exposure = exposure
        self._budget = budget
        self._releases: Counts = np.zeros(require_whole("rows", rows, 1), np.int32)
        self._steps: Counts = np.zeros(rows, np.int32)
        self._places: Counts = np.zeros(rows, np.int32)  # scratch
        self._worst = _NOTHING
        if budget is not None and isinf(self._epsilon({exposure.epochs(1)}, budget)):
            raise IncompatibleRecipe(
                f"{party!r}: a privacy budget of epsilon {budget.epsilon:g} cannot be kept, nothing bounds what "
                "leaves this party. Use pbm, with a bottom model that is frozen or privately trained; or no budget"
            )

    def charge_release(self, rows: npt.NDArray[Any]) -> None:
        """One release of each of these rows."""
        self._charge(rows, Uses(1, 0))

    def charge_step(self, rows: npt.NDArray[Any]) -> None:
        """One noisy gradient step in which these rows take part."""
        self._require_private_steps()
        self._charge(rows, Uses(0, 1))

    def charge_round(self, rows: npt.NDArray[Any]) -> None:
        """A release and a step at once: refused, if at all, before the release is made."""
        self._require_private_steps()
        self._charge(rows, Uses(1, 1))

    def privacy_losses(self) -> tuple[PrivacyLoss, ...]:
        """For each observer, as things stand."""
        return compute_privacy_losses(self._exposure, self._worst, self._delta)

    def summary(self) -> dict[str, Any]:
        """All of it as plain data, for a run's summary; infinite epsilons as "infinity"."""
        budget = self._budget
        return {
            "party": self._party,
            "delta": self._delta,
            "observers": [figure.to_dict() for figure in self.privacy_losses()],
            "most_uses_of_a_row": {
                "releases": max(uses.releases for uses in self._worst),
                "steps": max(uses.steps for uses in self._worst),
            },
            "budget": None
            if budget is None
            else {
                "epsilon": budget.epsilon,
                "observer": str(budget.observer),
                "spent": epsilon_to_json(self._epsilon(self._worst, budget)),
            },
            "not_protected": list_limitations(self._exposure),
            "holds_only_if": list_conditions(self._exposure),
        }

    def max_epochs(self, budget: Budget) -> int:
        """How many epochs fit in the budget, from the first on."""
        return max_epochs(self._exposure, budget)

    def state(self) -> dict[str, Counts]:
        """The counts of every row. Not secret: they follow from the batches, which every party knows."""
        return {"releases": self._releases.copy(), "steps": self._steps.copy()}

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Adds a saved record: of each count the larger one, so that nothing spent is forgotten."""
        if set(state) != {"releases", "steps"}:
            raise BadState(f"{self._party!r}: the ledger's record holds {sorted(state)}, expected releases and steps")
        for name, counts in state.items():
            if counts.dtype != np.int32 or counts.shape != self._releases.shape or counts.min() < 0:
                raise BadState(
                    f"{self._party!r}: the ledger's {name} are {counts.dtype} {counts.shape}, expected int32 counts "
                    f"of {self._releases.size} rows, none below 0"
                )
        np.maximum(self._releases, state["releases"], out=self._releases)
        np.maximum(self._steps, state["steps"], out=self._steps)
        self._worst = _worst_pairs(self._releases, self._steps)

    @property
    def _delta(self) -> float:
        return DEFAULT_DELTA if self._budget is None else self._budget.delta

    def _epsilon(self, worst: Collection[Uses], budget: Budget) -> float:
        return max(end_to_end_epsilon(self._exposure, budget.observer, uses, budget.delta) for uses in worst)

    def _require_private_steps(self) -> None:
        if not isinstance(self._exposure.bottom, PrivatelyTrained):
            raise IncompatibleRecipe(
                f"{self._party!r}: a noisy gradient step of a bottom model that is "
                f"{type(self._exposure.bottom).__name__}; only one that is PrivatelyTrained makes such steps"
            )

    def _charge(self, rows: npt.NDArray[Any], added: Uses) -> None:
        if rows.size == 0:
            return
        rows, times = self._counted(rows)
        releases = self._raised(self._releases[rows], times, added.releases)
        steps = self._raised(self._steps[rows], times, added.steps)
        worst = _dominant(self._worst | _worst_pairs(releases, steps))
        if self._budget is not None:
            after = self._epsilon(worst, self._budget)
            if not after <= self._budget.epsilon:
                raise BudgetExceeded(self._party, self._epsilon(self._worst, self._budget), after, self._budget)
        self._releases[rows] = releases
        self._steps[rows] = steps
        self._worst = worst

    def _raised(self, counts: Counts, times: Counts | np.int32, uses: int) -> Counts:
        """A count that is full is refused; it does not wrap to a small one."""
        if uses == 0:
            return counts
        if int(counts.max()) > LARGEST - uses * int(np.max(times)):
            raise BadState(f"{self._party!r}: a row was used more than {LARGEST} times")
        return counts + times * np.int32(uses)

    def _counted(self, rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Counts | np.int32]:
        """Each row once, and how often it stands there."""
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise BadParameter(
                f"{self._party!r}: rows must be whole numbers in a line, got {rows.dtype} {rows.shape}"
            )
        if rows.min() < 0 or rows.max() >= self._releases.size:
            raise BadParameter(
                f"{self._party!r}: rows must be from 0 to {self._releases.size - 1}, got {rows.min()} to {rows.max()}"
            )
        # A row that stands there twice keeps its last place only. Much faster than sorting.
        places = np.arange(rows.size, dtype=np.int32)
        self._places[rows] = places
        if (self._places[rows] != places).any():
            rows, times = np.unique(rows, return_counts=True)
            return rows, times.astype(np.int32)
        return rows, np.int32(1)


def _worst_pairs(releases: npt.NDArray[Any], steps: npt.NDArray[Any]) -> frozenset[Uses]:
    """The rows' counts, without those that another row's exceed."""
    most = Uses(int(releases.max()), int(steps.max()))
    if ((releases == most.releases) & (steps == most.steps)).any():
        return frozenset({most})
    keys = np.unique((releases.astype(np.int64) << 32) | steps.astype(np.int64))
    return _dominant(Uses(key >> 32, key & LARGEST) for key in keys.tolist())


def _dominant(pairs: Iterable[Uses]) -> frozenset[Uses]:
    kept: list[Uses] = []
    for uses in sorted(pairs, reverse=True):
        if not kept or uses.steps > kept[-1].steps:
            kept.append(uses)
    return frozenset(kept)
