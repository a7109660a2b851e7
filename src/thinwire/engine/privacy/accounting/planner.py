"""The least noise that keeps an epsilon, the bits it costs, and whether anything can be learnt through it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import floor, log10, sqrt

from thinwire.base.errors import BadParameter
from thinwire.engine.privacy.accounting.exposure import (
    Budget,
    Exposure,
    Frozen,
    Parties,
    PoissonBinomialRelease,
    PrivatelyTrained,
    end_to_end_epsilon,
)
from thinwire.engine.privacy.accounting.parameters import LARGEST_BETA, largest_within, require_whole
from thinwire.engine.privacy.accounting.renyi import compose, convert_to_epsilon, gaussian_rdp

NEARLY_THE_SAME = 1.05
_MORE_BITS = 9  # a value, than one throw a party needs
_CONVERGED = 0.002
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class PrivacyTarget:
    """What is wanted: this budget, for so many values a row and so many passes over the rows."""

    budget: Budget
    width: int
    parties: Parties
    epochs: int
    bottom: Frozen | PrivatelyTrained = Frozen()

    def __post_init__(self) -> None:
        require_whole("width", self.width, 1)
        require_whole("epochs", self.epochs, 1)

    def epsilon(self, trials: int, beta: float) -> float:
        """End to end, with these parameters."""
        exposure = Exposure(PoissonBinomialRelease(trials, beta, self.width), self.parties, self.bottom)
        uses = exposure.epochs(self.epochs)
        return end_to_end_epsilon(exposure, self.budget.observer, uses, self.budget.delta)


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """Parameters that keep the budget."""

    trials: int
    beta: float
    bits_per_value: int
    noise_std: float  # of a decoded sum of values in [-1, 1], at most
    epsilon: float


@dataclass(frozen=True, slots=True)
class NoisePlans:
    """The plan with the least noise, and the one with the fewest bits at nearly the same noise."""

    least_noise: NoisePlan
    fewest_bits: NoisePlan


def noise_std(trials: int, beta: float, parties: int) -> float:
    """The largest standard deviation of the decoded sum of `parties` values in [-1, 1]."""
    return sqrt(parties / (4 * beta**2 * trials))


def plan_noise(aim: PrivacyTarget) -> NoisePlans:
    """The best (trials, beta), up to the bits where more of them change nothing (12 for four parties).

    Refuses what the gradient steps alone overspend.
    """
    _require_affordable_steps(aim)
    parties = aim.parties.noisy
    plans: list[NoisePlan] = []
    for more_bits in range(_MORE_BITS + 1):
        # The most throws whose sum fits in these bits.
        sums = 1 << (parties.bit_length() + more_bits)
        plans.append(_with_trials(aim, min((sums - 1) // parties, 65535)))
        if len(plans) > 1 and _converged(*plans[-2:]):
            break
    least = min(plans, key=lambda one: one.noise_std)
    nearly = [one for one in plans if one.noise_std <= NEARLY_THE_SAME * least.noise_std]
    return NoisePlans(least, min(nearly, key=lambda one: one.bits_per_value))


def _converged(before: NoisePlan, after: NoisePlan) -> bool:
    return after.beta < LARGEST_BETA and abs(after.noise_std / before.noise_std - 1) < _CONVERGED


def _with_trials(aim: PrivacyTarget, trials: int) -> NoisePlan:
    """The largest beta that keeps the budget, rounded down so that the figure printed keeps it too."""
    # For small beta, width * epochs * 8 alpha b beta^2 / m: a place to begin.
    unknown = aim.budget.observer.unknown(aim.parties)
    guess = sqrt(unknown * aim.budget.epsilon / (80 * trials * aim.width * aim.epochs))
    beta = largest_within(partial(aim.epsilon, trials), aim.budget.epsilon, guess, most=LARGEST_BETA)
    beta = _rounded_down(beta)
    parties = aim.parties.noisy
    bits = (parties * trials).bit_length()
    return NoisePlan(trials, beta, bits, noise_std(trials, beta, parties), aim.epsilon(trials, beta))


def _rounded_down(number: float) -> float:
    digits = _DIGITS - 1 - floor(log10(number))
    return float(f"{floor(number * 10**digits) / 10**digits:.{digits}f}")


def _require_affordable_steps(aim: PrivacyTarget) -> None:
    if not isinstance(aim.bottom, PrivatelyTrained):
        return
    budget, epochs = aim.budget, aim.epochs

    def steps_epsilon(inverse: float) -> float:
        return convert_to_epsilon(compose((epochs, gaussian_rdp(1 / inverse))), budget.delta)

    alone = steps_epsilon(1 / aim.bottom.noise_multiplier)
    if alone >= budget.epsilon:
        needed = 1 / largest_within(steps_epsilon, budget.epsilon, 1 / aim.bottom.noise_multiplier, most=1e6)
        raise BadParameter(
            f"noise_multiplier {aim.bottom.noise_multiplier:g}: {epochs} epochs of noisy gradient steps alone cost "
            f"epsilon {alone:.3g}, over {budget.epsilon:g}; it must be well above {needed:.3g}, or the epochs fewer"
        )
