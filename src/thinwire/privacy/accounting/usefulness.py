"""Whether anything can be learnt through the noise, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from thinwire.privacy.accounting.planner import Aim, Plan

__all__ = ["Usefulness", "usefulness"]

# Measured on digits in four quarters, 16 values a row, 20 epochs, test rows released too: 94 % right at a ratio of
# 0.4, 93 % at 0.9, 90 % at 1, 76 % at 2, 48 % at 4.3, 25 % at 8.7, 18 % at 17 and 9 % at 43, where 10 % is guessing.
_USEFUL, _DOUBTFUL = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class Usefulness:
    """The noise of one value against what the parties say with it, and what would help."""

    noise_over_signal: float
    verdict: str  # "useful", "doubtful" or "useless"
    says: str
    helps: tuple[str, ...]


def usefulness(aim: Aim, plan: Plan) -> Usefulness:
    """Judges one plan. The signal: values of all parties spread evenly over [-1, 1], which is a good case."""
    signal = sqrt(aim.parties.noisy / 3)
    ratio = plan.noise_std / signal
    measured = f"noise of standard deviation {plan.noise_std:.3g} on a sum that itself varies by {signal:.3g} at best"
    if ratio <= _USEFUL:
        says = f"Useful: {measured}."
        return Usefulness(ratio, "useful", says, ())
    if ratio <= _DOUBTFUL:
        says = f"Doubtful: {measured}, {ratio:.1f} times the signal. Expect to lose a good part of the accuracy."
        return Usefulness(ratio, "doubtful", says, _helps(aim, ratio))
    says = f"Useless: {measured}, {ratio:.3g} times the signal. Expect to lose most of what there is to learn."
    return Usefulness(ratio, "useless", says, _helps(aim, ratio))


def _helps(aim: Aim, ratio: float) -> tuple[str, ...]:
    """The noise goes with sqrt(width * epochs), whatever the trials and beta."""
    helps = []
    if aim.width > 1:
        narrow = max(1, aim.width // 4)
        helps.append(f"A narrower embedding: width {narrow} for {sqrt(aim.width / narrow):.2g} times less noise.")
    if aim.epochs > 1:
        helps.append(
            f"Fewer epochs, or one whose sums are kept and learnt from again, which is free: up to "
            f"{sqrt(aim.epochs):.2g} times less noise."
        )
    helps.append("More parties: the same noise, and a signal that grows with their square root.")
    enough = aim.width * aim.epochs / ratio**2
    if enough >= 1:
        helps.append(f"Noise and signal are even at width times epochs of about {enough:.2g}.")
    else:
        helps.append("Even one value a row in one epoch is more noise than signal: raise epsilon, or add parties.")
    return tuple(helps)
