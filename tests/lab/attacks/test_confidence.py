"""Bounds on chances and on epsilon: exact where an oracle is exact, and never above the truth."""

from __future__ import annotations

from importlib import import_module
from math import exp, inf, log

import numpy as np
import pytest
from numpy.typing import NDArray

from thinwire.base.errors import BadParameter
from thinwire.lab.attacks.dp_release import at_least, at_most, best_threshold

beta = import_module("scipy.stats").beta


def epsilon_lower_bound(
    one: NDArray[np.float64], other: NDArray[np.float64], delta: float, error: float = 0.05
) -> float:
    """The epsilon that scores of two worlds certainly show: a threshold chosen on one half, judged on the other."""
    half = min(len(one), len(other)) // 2
    return best_threshold(one[:half], other[:half], delta).epsilon(one[half:], other[half:], delta, error)


@pytest.mark.parametrize("error", [0.025, 0.1])
@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (5, 10), (10, 10), (3, 100_000), (99_000, 100_000)])
def test_the_bounds_are_clopper_and_pearsons(hits: int, trials: int, error: float) -> None:
    low = beta.ppf(error, hits, trials - hits + 1) if hits else 0.0
    high = beta.isf(error, hits + 1, trials - hits) if hits < trials else 1.0
    assert at_least(hits, trials, error) == pytest.approx(low, rel=1e-9, abs=1e-12)
    assert at_most(hits, trials, error) == pytest.approx(high, rel=1e-9, abs=1e-12)


def test_counts_that_cannot_be_are_refused() -> None:
    for hits, trials in ((-1, 10), (11, 10), (0, 0)):
        with pytest.raises(BadParameter, match="cannot be"):
            at_least(hits, trials, 0.05)
    with pytest.raises(BadParameter, match="scores of either world"):
        best_threshold(np.zeros(0), np.zeros(3), 0.0)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_randomised_response_shows_its_epsilon_and_never_more(epsilon: float) -> None:
    rng = np.random.default_rng(0)
    kept = exp(epsilon) / (exp(epsilon) + 1)
    one, other = (rng.random(200_000) < kept).astype(float), (rng.random(200_000) < 1 - kept).astype(float)
    measured = epsilon_lower_bound(one, other, 0.0)
    assert 0.95 * epsilon < measured <= epsilon


def test_worlds_that_are_one_show_nothing() -> None:
    rng = np.random.default_rng(1)
    measured = [epsilon_lower_bound(rng.normal(size=20_000), rng.normal(size=20_000), 1e-3) for _ in range(20)]
    assert sum(value > 0 for value in measured) <= 2  # each is wrong with chance 0.05 at most


def test_worlds_apart_show_as_much_as_their_number_allows() -> None:
    ones, zeros = np.ones(20_000), np.zeros(20_000)
    most = log(at_least(10_000, 10_000, 0.025) / at_most(0, 10_000, 0.025))
    assert epsilon_lower_bound(ones, zeros, 0.0) == pytest.approx(most)
    assert epsilon_lower_bound(zeros, ones, 0.0) == pytest.approx(most)
    assert epsilon_lower_bound(ones, zeros, 1.0) == 0.0
    assert best_threshold(ones, zeros, 0.0).promise < inf


def test_a_threshold_may_lie_on_either_side_and_in_either_world() -> None:
    rng = np.random.default_rng(2)
    wide, narrow = rng.normal(0, 2, 100_000), rng.normal(0, 1, 100_000)
    # Far out, the wide one is far likelier; nowhere is the narrow one more than twice as likely.
    for one, other in ((wide, narrow), (narrow, wide), (-wide, narrow)):
        assert epsilon_lower_bound(one, other, 1e-4) > log(2)
