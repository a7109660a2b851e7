"""What leaves one feature party, what it costs, and what each row has spent."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import isinf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from thinwire.base.errors import BadParameter, BadState, IncompatibleRecipe
from thinwire.base.types import PartyName
from thinwire.engine.privacy.accounting.budget import DEFAULT_DELTA, Budget, BudgetExceeded, Observer, Parties
from thinwire.engine.privacy.accounting.renyi import (
    LARGEST,
    Rdp,
    compose,
    convert_to_epsilon,
    coordinate,
    gaussian_rdp,
    infinite_rdp,
    pure_rdp,
    require_beta,
    require_positive,
    require_whole,
)


@dataclass(frozen=True, slots=True)
class PoissonBinomialRelease:
    """A noisy sum of `width` values per row, seen only as a secure sum."""

    trials: int
    beta: float
    width: int

    def __post_init__(self) -> None:
        require_whole("trials", self.trials, 1, 65535)
        require_beta("beta", self.beta)
        require_whole("width", self.width, 1)


@dataclass(frozen=True, slots=True)
class RandomizedResponseRelease:
    """Each of a row's codes is kept or replaced, by chance; `epsilon` is that of all of them, without a delta."""

    epsilon: float

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)


@dataclass(frozen=True, slots=True)
class Exact:
    """Embeddings as they are, or compressed without noise: nothing is proven."""


Mechanism: TypeAlias = PoissonBinomialRelease | RandomizedResponseRelease | Exact


@dataclass(frozen=True, slots=True)
class Frozen:
    """The bottom model does not depend on private rows: it is public, or was never trained on them.

    Examples:
        >>> tw.privacy.Frozen() == tw.privacy.Frozen()
        True
    """


@dataclass(frozen=True, slots=True)
class PrivatelyTrained:
    """Every gradient sum of the bottom model is clipped row by row at c and has Gaussian noise s c."""

    noise_multiplier: float  # s

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class TrainedOnRawRows:
    """The bottom model is trained on private rows without noise, and reveals them through other rows' embeddings.

    Examples:
        >>> isinstance(job.training, tw.privacy.TrainedOnRawRows)
        True
    """


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
    is_answered: bool = True  # derivatives come back

    def count_noise_parties(self, observer: Observer) -> int:
        """m: whose noise hides a row from this observer; its owner's alone where nothing is summed."""
        alone = isinstance(self.mechanism, RandomizedResponseRelease)
        return 1 if alone else observer.count_noise_parties(self.parties)

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
        case RandomizedResponseRelease(epsilon):
            return pure_rdp(epsilon)
        case Exact():
            return infinite_rdp


# The figures that a party is shown: every observer's, and what they do not cover ----------------------------------


@dataclass(frozen=True, slots=True)
class PrivacyLoss:
    """What the worst-off row has lost to one observer."""

    observer: Observer
    unknown_parties: int
    releases: float  # epsilon, as if the bottom model were public
    end_to_end: float  # epsilon, infinite where nothing is proven

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        return {
            "observer": str(self.observer),
            "unknown_parties": self.unknown_parties,
            "releases_epsilon": epsilon_to_json(self.releases),
            "end_to_end_epsilon": epsilon_to_json(self.end_to_end),
        }


def epsilon_to_json(epsilon: float) -> float | str:
    return "infinity" if isinf(epsilon) else epsilon


def compute_privacy_losses(exposure: Exposure, worst: Collection[Uses], delta: float) -> tuple[PrivacyLoss, ...]:
    """Of the worst of these rows, for each observer."""
    return tuple(
        PrivacyLoss(
            observer,
            exposure.count_noise_parties(observer),
            max((releases_epsilon(exposure, observer, uses, delta) for uses in worst), default=0.0),
            max((end_to_end_epsilon(exposure, observer, uses, delta) for uses in worst), default=0.0),
        )
        for observer in Observer
    )


@cache
def _statements() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(Path(__file__).with_name("statements.toml").read_text())


def list_limitations(exposure: Exposure) -> list[str]:
    """What these figures do not cover, a sentence each."""
    says = _statements()["not_protected"]
    shown = (says["answered"] if exposure.is_answered else []) + says["always"]
    if isinstance(exposure.mechanism, Exact):
        return says["exact"] + shown
    fitted = "fitted_codes" if isinstance(exposure.mechanism, RandomizedResponseRelease) else "raw_rows"
    return (says[fitted] if isinstance(exposure.bottom, TrainedOnRawRows) else []) + shown


def list_conditions(exposure: Exposure) -> list[str]:
    """What must hold for the figures to be true, a sentence each."""
    if isinstance(exposure.mechanism, Exact):
        return []
    says = _statements()["holds_only_if"]
    alone = isinstance(exposure.mechanism, RandomizedResponseRelease)
    always = says["own_noise" if alone else "summed"] + says["always"]
    match exposure.bottom:
        case Frozen():
            return always + says["frozen_codes" if alone else "frozen"]
        case PrivatelyTrained():
            return always + says["privately_trained"]
        case TrainedOnRawRows():
            return always


# What one feature party has spent: how often each of its rows was used, and the epsilon of the worst-off row ------


Counts = npt.NDArray[np.int32]
_NOTHING = frozenset({Uses(0, 0)})


class PrivacyLedger:
    """Counts uses row by row. Charge before anything leaves the party, and save `state()` before that too.

    A charge that would go over the budget raises BudgetExceeded and changes nothing. Reusing a sum that was
    already released costs nothing, and is not charged.

    Args:
        party: whose rows are counted.
        exposure: mechanism, parties and bottom model.
        rows: number of rows.
        budget: limit of any row; none unless given.

    Raises:
        IncompatibleRecipe: a budget where nothing bounds what this party sends.
        BudgetExceeded: raised by a charge; nothing is charged then.
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
                f"{party!r}: a privacy budget of epsilon {budget.epsilon:g} cannot be met, because nothing bounds "
                "what this party sends. Use pbm with a frozen or privately trained bottom model, or set no budget"
            )

    def charge_release(self, rows: npt.NDArray[Any]) -> None:
        """One release of each of these rows."""
        self._charge(rows, Uses(1, 0))

    def charge_step(self, rows: npt.NDArray[Any]) -> None:
        """One noisy gradient step in which these rows take part."""
        self._charge(rows, Uses(0, 1))

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

    def _charge(self, rows: npt.NDArray[Any], added: Uses) -> None:
        if added.steps and not isinstance(self._exposure.bottom, PrivatelyTrained):
            raise IncompatibleRecipe(
                f"{self._party!r}: a noisy gradient step of a bottom model that is "
                f"{type(self._exposure.bottom).__name__}; only one that is PrivatelyTrained makes such steps"
            )
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
            raise BadParameter(f"{self._party!r}: rows must be integers in a line, got {rows.dtype} {rows.shape}")
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
