"""Does the noise of the Poisson binomial mechanism keep what its accounting claims?

Two neighbouring worlds: in both, every party but one has a row whose embedding is -bound in all coordinates. The
last party has one at +bound or at -bound, possibly another one at each look. The real mechanism releases the sum many
times in either world. Attackers score each release:

    likelihood    how much likelier it is in the one world than in the other, if the noise is as claimed
    differences   how far two looks at one row lie apart: 0 where noise was used twice
    replay        how well it agrees with what a guessed key would have given

The best of them, chosen on half of the releases and judged on the other half, gives an epsilon that the mechanism
certainly has at least. Above the claim, the claim is wrong. Where even noise of nothing could not show more than the
claim on so many releases, nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import comb, inf, log
from typing import Literal, TypeAlias

import numpy as np
import torch
from scipy.special import betaincinv

from thinwire.base.errors import BadParameter
from thinwire.engine.compress import PoissonBinomial
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.randomness import Keystream
from thinwire.engine.privacy import NoiseKey

_THRESHOLDS = 400


def at_least(hits: int, trials: int, error: float) -> float:
    """The chance of a hit is this or more; wrong with chance `error` at most (Clopper and Pearson, 1934)."""
    if not 0 <= hits <= trials or trials < 1:
        raise BadParameter(f"{hits} hits in {trials} trials cannot be")
    return float(betaincinv(hits, trials - hits + 1, error)) if hits else 0.0


def at_most(hits: int, trials: int, error: float) -> float:
    """The chance of a hit is this or less; wrong with chance `error` at most."""
    return 1 - at_least(trials - hits, trials, error)


@dataclass(frozen=True, order=True, slots=True)
class Threshold:
    """An attacker who says "this world" where sign * score >= place; it showed `promise` when it was chosen."""

    promise: float
    place: float
    sign: float
    swapped: bool  # "this world" is the second one

    def epsilon(self, one: Array, other: Array, delta: float, error: float = 0.05) -> float:
        """No (epsilon, delta) below this holds for worlds with these scores; wrong with chance `error` at most.

        Says the attacker "this world" rightly with chance t and wrongly with chance f, then t <= e^epsilon f + delta.
        The scores must be others than those it was chosen on.
        """
        hits, misses = (other, one) if self.swapped else (one, other)
        right, wrong = (int((self.sign * scores >= self.place).sum()) for scores in (hits, misses))
        surely = at_least(right, len(hits), error / 2) - delta
        if surely <= 0:
            return 0.0
        return max(0.0, log(surely / at_most(wrong, len(misses), error / 2)))


def best_threshold(one: Array, other: Array, delta: float) -> Threshold:
    """The threshold, and the side of it, that shows the largest epsilon on these scores."""
    if min(len(one), len(other)) < 1:
        raise BadParameter("an audit needs scores of either world")
    found = []
    for swapped in (False, True):
        for sign in (1.0, -1.0):
            hits, misses = (other, one) if swapped else (one, other)
            promise, place = _promising(sign * hits, sign * misses, delta)
            found.append(Threshold(promise, place, sign, swapped))
    return max(found)


def _promising(hits: Array, misses: Array, delta: float) -> tuple[float, float]:
    """The largest bound, about, and the threshold that gives it."""
    hits, misses = np.sort(hits), np.sort(misses)
    places = np.unique(np.geomspace(1, len(hits), _THRESHOLDS).astype(int))
    thresholds = np.unique(np.concatenate([hits[-places], misses[-places], [np.nextafter(misses[-1], inf)]]))
    right = 1 - np.searchsorted(hits, thresholds) / len(hits)
    wrong = 1 - np.searchsorted(misses, thresholds) / len(misses)
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.log((_wilson(right, len(hits), -1.0) - delta) / _wilson(wrong, len(misses), 1.0))
    bounds = np.nan_to_num(bounds, nan=-inf, neginf=-inf)
    best = int(np.argmax(bounds))
    return float(bounds[best]), float(thresholds[best])


def _wilson(share: Array, trials: int, side: float, deviations: float = 2.24) -> Array:
    """Nearly Clopper and Pearson's bound, for many shares at once."""
    z2 = deviations**2 / trials
    centre = share + z2 / 2
    half: Array = np.sqrt(z2 * share * (1 - share) + (z2 / 2) ** 2)
    bound: Array = (centre + side * half) / (1 + z2)
    return bound


# Does the noise of the Poisson binomial mechanism keep what its accounting claims? --------------------------------


Verdict: TypeAlias = Literal["holds", "refuted", "inconclusive"]
Noise = Callable[[str, int, int], Keystream]  # (world, party, look) -> the bits of one message's noise


@dataclass(frozen=True, slots=True)
class FreshNoise:
    """As it must be: a secret, and other bits for every message."""

    key: NoiseKey

    def __call__(self, world: str, party: int, look: int) -> Keystream:
        return self.key.for_round(0, look, 0, f"{world}/{party}")


@dataclass(frozen=True, slots=True)
class Release:
    """What is released about a row: the sum of `parties` messages of `width` counts, `looks` times.

    Args:
        mechanism: adds the noise.
        width: counts per message.
        parties: whose noise the observer does not know.
        looks: releases of the row.

    Raises:
        BadParameter: a count below 1.

    Examples:
        >>> tw.audit.Release(tw.compress.PoissonBinomial(trials=8, beta=0.2), width=1, parties=2).looks
        1
    """

    mechanism: PoissonBinomial
    width: int
    parties: int  # whose noise the observer does not know
    looks: int = 1

    def __post_init__(self) -> None:
        for field in ("width", "parties", "looks"):
            if getattr(self, field) < 1:
                raise BadParameter(f"Release: {field} must be 1 or more, got {getattr(self, field)}")


@dataclass(frozen=True, slots=True)
class ReleaseAudit:
    """The claimed epsilon and the measured one: a lower bound at 95 % confidence.

    `reach` is the largest epsilon that so many samples can show. A claim beyond it can be neither refuted nor
    confirmed.

    Args:
        claimed: epsilon that the accounting states.
        measured: lower bound of the true one.
        attacker: the test that found it.
        reach: largest epsilon that could have been measured.

    Examples:
        >>> tw.audit.ReleaseAudit(claimed=1.0, measured=1.4, attacker="sum", reach=6.0).verdict
        'refuted'
    """

    claimed: float
    measured: float
    attacker: str
    reach: float

    @property
    def verdict(self) -> Verdict:
        if self.measured > self.claimed:
            return "refuted"
        return "holds" if self.claimed < self.reach else "inconclusive"


def largest_epsilon(samples: int, delta: float) -> float:
    """What an attacker who is always right measures on so many samples of either world."""
    return Threshold(inf, 0.5, 1.0, False).epsilon(np.ones(samples), np.zeros(samples), delta)


def release_sums(release: Release, signs: Sequence[int], world: str, noise: Noise, samples: int) -> Array:
    """Sums [samples, looks, width] of the real mechanism; `signs` gives the last party's value at each look."""
    bound = release.mechanism.bound
    total = np.zeros((samples, release.looks, release.width), np.int32)
    for look, sign in enumerate(signs):
        for party in range(release.parties):
            value = bound * sign if party == release.parties - 1 else -bound
            x = torch.full((samples, release.width), value)
            counts = release.mechanism.compress(x, noise(world, party, look))
            total[:, look] += counts.counts.reshape(samples, release.width)
    return total


def audit_release(
    claimed: float,
    release: Release,
    delta: float,
    noise: Noise,
    *,
    samples: int = 100_000,
    as_claimed: PoissonBinomial | None = None,
    guesses: Sequence[Noise] = (),
) -> ReleaseAudit:
    """Runs the mechanism on neighbouring inputs and compares the measured epsilon with the claimed one.

    Args:
        claimed: epsilon that the accounting states.
        release: the mechanism, and how often a row is released.
        delta: of the claim.
        noise: the bits of one message's noise, by world, party and look.
        samples: releases per world.
        as_claimed: the mechanism that the claim is about, where another one runs.
        guesses: keys that the attacker tries.

    Examples:
        >>> key = tw.privacy.NoiseKey(bytes(32))
        >>> release = tw.audit.Release(tw.compress.PoissonBinomial(trials=8, beta=0.2), width=1, parties=2)
        >>> noise = lambda world, party, look: key.for_round(0, look, 0, f"{world}/{party}")
        >>> claimed = tw.privacy.poisson_binomial_epsilon(8, 0.2, 1, unknown_parties=2, epochs=1, delta=1e-5)
        >>> tw.audit.audit_release(claimed, release, 1e-5, noise, samples=2000).verdict != "refuted"
        True
    """
    best: tuple[float, float, str] = (-inf, 0.0, "")
    believed = _log_ratios(as_claimed or release.mechanism, release.parties)
    half = samples // 2
    for one, other in _neighbours(release.looks):
        first = release_sums(release, one, "one", noise, samples)
        second = release_sums(release, other, "other", noise, samples)
        scorers = chain(_scorers(release, believed), _replays(release, (one, other), guesses, samples))
        for name, score in scorers:
            scores = score(first), score(second)
            chosen = best_threshold(scores[0][:half], scores[1][:half], delta)
            if chosen.promise > best[0]:
                best = chosen.promise, chosen.epsilon(scores[0][half:], scores[1][half:], delta), name
    return ReleaseAudit(claimed, best[1], best[2], largest_epsilon(samples - half, delta))


def _neighbours(looks: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The last party's values at each look in two neighbouring worlds: a bottom model may move a row in between."""
    yield (1,) * looks, (-1,) * looks
    if looks > 1:
        yield (1,) * looks, (1,) * (looks - 1) + (-1,)


# Sums [samples, looks, width] -> [samples], the larger the more like the first world.
Score = Callable[[Array], Array]


def _scorers(release: Release, log_ratios: Array) -> Iterator[tuple[str, Score]]:
    def likelihood(sums: Array) -> Array:
        total: Array = log_ratios[np.minimum(sums, len(log_ratios) - 1)].sum(axis=(1, 2))
        return total

    def differences(sums: Array) -> Array:
        apart: Array = np.abs(np.diff(sums, axis=1)).sum(axis=(1, 2))
        # Ties, of which there are many, are broken by the likelihood of the last look.
        return 1e-3 * likelihood(sums[:, -1:]) - apart

    yield "likelihood", likelihood
    if release.looks > 1:
        yield "differences", differences


def _replays(
    release: Release, worlds: tuple[tuple[int, ...], tuple[int, ...]], guesses: Sequence[Noise], samples: int
) -> Iterator[tuple[str, Score]]:
    def agreement(one: Array, other: Array, sums: Array) -> Array:
        more: Array = (sums == one).sum(axis=(1, 2)) - (sums == other).sum(axis=(1, 2))
        return more

    for guess in guesses:
        one, other = (release_sums(release, signs, "", guess, samples) for signs in worlds)
        yield "replay", partial(agreement, one, other)


def _log_ratios(mechanism: PoissonBinomial, parties: int) -> Array:
    """log P(sum | the last party at +bound) - log P(sum | at -bound), for each sum, the others at -bound."""
    low, high = 0.5 - mechanism.beta, 0.5 + mechanism.beta
    others = _binomial((parties - 1) * mechanism.trials, low)
    plus = np.convolve(_binomial(mechanism.trials, high), others)
    minus = np.convolve(_binomial(mechanism.trials, low), others)
    ratios: Array = np.log(np.maximum(plus, 1e-300)) - np.log(np.maximum(minus, 1e-300))
    return ratios


def _binomial(trials: int, chance: float) -> Array:
    return np.array([comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)])
