"""The Poisson binomial mechanism keeps its claims; noise that is halved, reused or known does not pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from benchmarks.audit import SETTINGS, ReusedNoise, SeededNoise
from thinwire.base.errors import BadParameter
from thinwire.engine.compress import PoissonBinomial
from thinwire.engine.compress.symbols import Counts
from thinwire.engine.privacy import NoiseKey, poisson_binomial_epsilon
from thinwire.lab.attacks.dp_release import FreshNoise, Noise, Release, audit_release, release_sums

DELTA = 1e-3
KEY = NoiseKey(bytes(range(32)))
FRESH = FreshNoise(KEY)


def claim(release: Release, delta: float = DELTA) -> float:
    return poisson_binomial_epsilon(
        trials=release.mechanism.trials,
        beta=release.mechanism.beta,
        width=release.width,
        unknown_parties=release.parties,
        epochs=release.looks,
        delta=delta,
    )


@pytest.mark.parametrize(("trials", "beta", "width", "parties", "looks"), SETTINGS)
def test_no_attacker_measures_more_than_is_claimed(
    trials: int, beta: float, width: int, parties: int, looks: int
) -> None:
    release = Release(PoissonBinomial(trials, beta), width, parties, looks)
    audit = audit_release(claim(release), release, DELTA, FRESH, samples=150_000, guesses=[SeededNoise(0)])
    assert audit.verdict == "holds", audit
    # An attack that sees nothing would prove nothing.
    assert audit.measured > 0.4 * audit.claimed, audit


@pytest.mark.parametrize("setting", SETTINGS[:2])
def test_where_one_count_tells_all_the_claim_is_met_to_a_few_percent(
    setting: tuple[int, float, int, int, int],
) -> None:
    trials, beta, width, parties, looks = setting
    release = Release(PoissonBinomial(trials, beta), width, parties, looks)
    audit = audit_release(claim(release), release, DELTA, FRESH, samples=400_000)
    assert 0.95 * audit.claimed < audit.measured <= audit.claimed


@pytest.mark.parametrize(
    ("trials", "beta", "width", "parties"),
    [pytest.param(4, 0.05, 16, 4, marks=pytest.mark.long), (2, 0.25, 1, 2), (8, 0.05, 8, 4)],
)
def test_half_the_noise_is_found_out(trials: int, beta: float, width: int, parties: int) -> None:
    said = Release(PoissonBinomial(trials, beta), width, parties)
    # The variance of what is decoded is bound^2 parties / (4 beta^2 trials).
    done = Release(PoissonBinomial(2 * trials, beta), width, parties)
    audit = audit_release(claim(said), done, DELTA, FRESH, samples=800_000)
    assert audit.verdict == "refuted", audit


def test_noise_used_twice_is_found_out() -> None:
    release = Release(PoissonBinomial(4, 0.05), 16, 4, looks=2)
    audit = audit_release(claim(release), release, DELTA, ReusedNoise(KEY), samples=100_000)
    assert audit.verdict == "refuted", audit
    assert audit.attacker == "differences"


def test_noise_from_a_seed_that_others_know_is_found_out() -> None:
    release = Release(PoissonBinomial(4, 0.05), 16, 4)
    guesses = [SeededNoise(seed) for seed in (0, 3)]
    audit = audit_release(claim(release), release, DELTA, SeededNoise(3), samples=100_000, guesses=guesses)
    assert audit.verdict == "refuted", audit
    assert audit.attacker == "replay"


@pytest.mark.parametrize("noise", [FRESH, SeededNoise(1)], ids=["fresh", "seeded"])
def test_what_is_released_is_the_mechanisms_sum(noise: Noise) -> None:
    mechanism = PoissonBinomial(3, 0.2, bound=2.0)
    release = Release(mechanism, 2, 3, looks=2)
    sums = release_sums(release, (1, -1), "one", noise, 20_000)
    assert sums.shape == (20_000, 2, 2)
    assert sums.min() >= 0
    assert sums.max() <= 9
    # Two parties at -bound throw 3 coins of chance 0.3 each; the last one's have 0.7, then 0.3.
    for look, mean in enumerate((2 * 3 * 0.3 + 3 * 0.7, 3 * 3 * 0.3)):
        deviation = (9 * 0.21 / (20_000 * 2)) ** 0.5
        assert abs(sums[:, look].mean() - mean) < 5 * deviation
    assert not np.array_equal(sums[:, 0], sums[:, 1])


def test_a_release_of_nothing_is_refused() -> None:
    for wrong in ({"width": 0}, {"parties": 0}, {"looks": 0}):
        with pytest.raises(BadParameter, match=f"{next(iter(wrong))} must be 1 or more, got 0"):
            Release(PoissonBinomial(1, 0.1), **{"width": 1, "parties": 1, **wrong})


def test_a_claim_beyond_the_samples_is_neither_refuted_nor_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise at all: every count is the one that is expected."""
    monkeypatch.setattr(PoissonBinomial, "compress", without_noise)
    release = Release(PoissonBinomial(16, 0.2), 8, 4)
    audit = audit_release(claim(release), release, DELTA, FRESH, samples=2_000)
    assert audit.measured == pytest.approx(audit.reach)
    assert audit.claimed > 20
    assert audit.verdict == "inconclusive"
    assert replace(audit, claimed=4.0).verdict == "refuted"


def without_noise(mechanism: PoissonBinomial, x: Tensor, *_: Any) -> Counts:
    chance = 0.5 + mechanism.beta * x.detach().numpy().clip(-mechanism.bound, mechanism.bound) / mechanism.bound
    counts = np.rint(mechanism.trials * chance).astype(np.uint8).ravel()
    trials = mechanism.trials
    return Counts(tuple(x.shape), counts, trials + 1, trials, mechanism.beta, mechanism.bound)
