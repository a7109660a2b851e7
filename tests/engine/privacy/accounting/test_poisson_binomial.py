"""The Poisson binomial mechanism: the exact figures, by two ways that share nothing."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import atanh, inf, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from engine.privacy.accounting.oracle import converted, least_true_epsilon, pair, renyi
from thinwire.base.errors import BadParameter
from thinwire.engine.privacy.accounting.renyi import (
    Coordinate,
    compose,
    convert_to_epsilon,
    coordinate,
    poisson_binomial_epsilon,
)

DELTA, WIDTH = 1e-5, 16

# parties, trials, beta; after 1, 10 and 100 epochs: label party alone / curious feature party / all others.
TABLE = [
    (4, 4, 0.05, "3.7 / 4.4 / 7.8", "14.5 / 17.4 / 35.4", "69 / 86 / 203"),
    (4, 16, 0.05, "8.3 / 9.9 / 19.1", "36 / 44 / 98", "205 / 260 / 664"),
    (4, 64, 0.15, "100 / 125 / 277", "672 / 870 / 2183", "5666 / 7473 / 2.0e4"),
    (12, 4, 0.05, "2.0 / 2.1 / 7.8", "7.4 / 7.8 / 35.4", "32 / 34 / 203"),
    (12, 16, 0.15, "17.5 / 18.6 / 89", "86 / 92 / 614", "565 / 611 / 5202"),
]
CELLS = [
    (trials, beta, parties, unknown, epochs, figure.strip())
    for parties, trials, beta, *columns in TABLE
    for epochs, column in zip((1, 10, 100), columns, strict=True)
    for unknown, figure in zip((parties, parties - 1, 1), column.split("/"), strict=True)
]
ALPHAS = (1 + 1e-6, 1.01, 1.5, 2.0, 3.7, 16.0, 64.0, 1000.5)


def last_digit(figure: str) -> float:
    """The worth of a one in the last digit shown: 0.1 of 3.7, 1000 of 2.0e4."""
    digits, _, exponent = figure.partition("e")
    return float(10 ** (int(exponent or 0) - len(digits.partition(".")[2])))


def cases() -> st.SearchStrategy[tuple[int, float, int]]:
    return st.tuples(st.integers(1, 40), st.floats(1e-4, 0.25), st.integers(1, 8))


# The figures ------------------------------------------------------------------------------------------


def test_there_are_45_figures() -> None:
    assert len(CELLS) == 45
    assert [last_digit(figure) for figure in ("3.7", "2183", "2.0e4")] == [0.1, 1, 1000]


@pytest.mark.parametrize(("trials", "beta", "parties", "unknown", "epochs", "figure"), CELLS)
def test_every_figure_to_the_digits_shown(
    trials: int, beta: float, parties: int, unknown: int, epochs: int, figure: str
) -> None:
    epsilon = tw.privacy.poisson_binomial_epsilon(trials, beta, WIDTH, unknown, epochs, DELTA)
    assert epsilon == pytest.approx(float(figure), abs=last_digit(figure) / 2)


@pytest.mark.parametrize(("trials", "beta", "parties", "unknown", "epochs", "figure"), CELLS)
def test_the_published_bound_is_far_too_small(
    trials: int, beta: float, parties: int, unknown: int, epochs: int, figure: str
) -> None:
    """T B b beta^2 alpha / (M N), read literally: without the width, without a constant, without observers."""
    published = convert_to_epsilon(lambda alpha: epochs * trials * beta**2 * alpha / parties, DELTA)
    assert poisson_binomial_epsilon(trials, beta, WIDTH, unknown, epochs, DELTA) > 14 * published


def test_the_published_bound_is_hundreds_of_times_too_small_against_colluders() -> None:
    published = convert_to_epsilon(lambda alpha: 100 * 64 * 0.15**2 * alpha / 12, DELTA)
    assert poisson_binomial_epsilon(64, 0.15, WIDTH, 1, 100, DELTA) > 500 * published


# Against the longest way ------------------------------------------------------------------------------

SMALL = [(1, "1/4", 1), (1, "1/4", 3), (4, "1/20", 4), (5, "1/4", 3), (8, "3/20", 2), (3, "1/100", 6)]


@pytest.mark.parametrize(("trials", "beta", "parties"), SMALL)
def test_the_divergence_is_exact_and_worst_at_an_end(trials: int, beta: str, parties: int) -> None:
    pairs = [pair(trials, Fraction(beta), parties, k) for k in range((parties - 1) * trials + 1)]
    one = coordinate(trials, float(Fraction(beta)), parties)
    for alpha in ALPHAS[1:]:
        found = [renyi(p, q, alpha) for p, q in pairs]
        assert max(found) == pytest.approx(max(found[0], found[-1]), rel=1e-9)
        assert one.rdp(alpha) == pytest.approx(max(found), rel=1e-9)
        # The other direction is the same thing, counted from the other end.
        back = [renyi(q, p, alpha) for p, q in pairs]
        assert back == pytest.approx(found[::-1], rel=1e-7)


@pytest.mark.parametrize(("trials", "beta", "parties"), [(16, "1/20", 4), (64, "3/20", 4), (16, "3/20", 12)])
def test_larger_ones_too(trials: int, beta: str, parties: int) -> None:
    ends = [pair(trials, Fraction(beta), parties, k) for k in (0, (parties - 1) * trials)]
    one = coordinate(trials, float(Fraction(beta)), parties)
    for alpha in (1.05, 2.0, 30.0):
        assert one.rdp(alpha) == pytest.approx(max(renyi(p, q, alpha) for p, q in ends), rel=1e-9)


@pytest.mark.parametrize(
    ("trials", "beta", "parties", "uses"), [(4, "1/20", 4, 16), (1, "1/4", 3, 7), (8, "1/5", 2, 3)]
)
def test_the_epsilon_is_that_of_a_dense_search(trials: int, beta: str, parties: int, uses: int) -> None:
    ends = [pair(trials, Fraction(beta), parties, k) for k in (0, (parties - 1) * trials)]
    orders = 1 + np.geomspace(1e-2, 1e3, 600)
    slow = converted(lambda alpha: uses * max(renyi(p, q, alpha) for p, q in ends), DELTA, orders.tolist())
    fast = poisson_binomial_epsilon(trials, float(Fraction(beta)), uses, parties, 1, DELTA)
    assert fast == pytest.approx(min(slow, uses * 2 * trials * atanh(2 * float(Fraction(beta)))), rel=1e-4)


@pytest.mark.parametrize(
    ("trials", "beta", "parties", "uses"),
    [(4, "1/20", 4, 16), (4, "1/20", 4, 160), (16, "1/20", 4, 16), (4, "1/20", 1, 16), (1, "1/4", 3, 32)],
)
def test_the_true_privacy_loss_stays_below_and_close(trials: int, beta: str, parties: int, uses: int) -> None:
    p, q = pair(trials, Fraction(beta), parties, 0)
    true = max(least_true_epsilon(p, q, uses, DELTA), least_true_epsilon(q, p, uses, DELTA))
    epsilon = poisson_binomial_epsilon(trials, float(Fraction(beta)), uses, parties, 1, DELTA)
    assert true < epsilon < 1.15 * true


# Made with dp-accounting 0.6.0 (from_two_probability_mass_functions at both ends k, grid 1e-4, self_compose,
# get_epsilon_for_delta(1e-5)), which computes the privacy loss itself: trials, beta, parties, uses, epsilon.
PRIVACY_LOSS = [
    (4, 0.05, 4, 16, 3.436),
    (4, 0.05, 4, 160, 13.581),
    (16, 0.05, 4, 16, 7.717),
    (4, 0.05, 12, 160, 6.907),
    (16, 0.15, 12, 16, 16.392),
    (4, 0.05, 1, 16, 7.392),
    (64, 0.15, 4, 16, 95.562),
]


@pytest.mark.parametrize(("trials", "beta", "parties", "uses", "exact"), PRIVACY_LOSS)
def test_another_accountant_agrees(trials: int, beta: float, parties: int, uses: int, exact: float) -> None:
    assert exact < poisson_binomial_epsilon(trials, beta, uses, parties, 1, DELTA) < 1.1 * exact


def test_the_familiar_form_is_the_limit_for_small_beta_and_no_bound() -> None:
    def familiar(trials: int, beta: float, parties: int, alpha: float) -> float:
        return 8 * alpha * trials * beta**2 / (parties * (1 - 4 * beta**2))

    for trials, parties, alpha in ((16, 4, 2.0), (64, 12, 1.3), (256, 4, 2.0)):
        exact = coordinate(trials, 1e-4, parties).rdp(alpha)
        assert exact == pytest.approx(familiar(trials, 1e-4, parties, alpha), rel=1e-3)
    one = coordinate(16, 0.25, 24)
    times = [one.rdp(alpha) / familiar(16, 0.25, 24, alpha) for alpha in (1.1, 2.0, 4.0, 8.0, 16.0)]
    assert min(times) > 1
    assert max(times) > 1.4


# What must be so --------------------------------------------------------------------------------------


@given(cases())
def test_both_are_distributions_and_the_ratio_goes_from_end_to_end(case: tuple[int, float, int]) -> None:
    one: Coordinate = coordinate(*case)
    assert np.exp(one.log_q).sum() == pytest.approx(1, abs=1e-12)
    assert np.exp(one.log_p).sum() == pytest.approx(1, abs=1e-12)
    assert np.all(np.diff(one.log_ratio) > 0)
    assert [one.log_ratio[0], one.log_ratio[-1]] == pytest.approx([-one.largest, one.largest], rel=1e-9, abs=1e-12)


@given(cases())
def test_the_divergence_grows_with_alpha_up_to_the_largest_loss(case: tuple[int, float, int]) -> None:
    one = coordinate(*case)
    curve = [one.rdp(alpha) for alpha in (*ALPHAS, 1e5, 1e8, inf)]
    assert all(lower <= higher * (1 + 1e-6) for lower, higher in pairwise(curve))
    assert curve[0] > 0
    assert curve[-2] == pytest.approx(curve[-1], rel=1e-3)
    trials, beta, _ = case
    assert curve[-1] == pytest.approx(trials * log((0.5 + beta) / (0.5 - beta)), rel=1e-9)


@given(cases())
def test_no_digits_are_lost_near_order_one(case: tuple[int, float, int]) -> None:
    """D_alpha goes to the Kullback-Leibler divergence."""
    one = coordinate(*case)
    p, q = np.exp(one.log_p), np.exp(one.log_q)
    forth = float((p * one.log_ratio - p + q).sum())
    back = float((-q * one.log_ratio - q + p).sum())
    assert one.rdp(1 + 1e-7) == pytest.approx(max(forth, back), rel=1e-4)


@given(cases(), st.integers(1, 300), st.integers(1, 50), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_it_grows_with_everything_released_and_falls_with_company(
    case: tuple[int, float, int], width: int, epochs: int, delta: float
) -> None:
    trials, beta, unknown = case

    def epsilon(**changes: Any) -> float:
        given = {"trials": trials, "beta": beta, "width": width, "unknown_parties": unknown, "epochs": epochs}
        return poisson_binomial_epsilon(**{**given, **changes}, delta=delta)

    here = epsilon() * (1 + 1e-7)
    assert epsilon(trials=trials + 1) >= here / (1 + 2e-7)
    assert epsilon(beta=min(0.25, beta * 1.1)) >= here / (1 + 2e-7)
    assert epsilon(width=width + 1) >= here / (1 + 2e-7)
    assert epsilon(epochs=epochs + 1) >= here / (1 + 2e-7)
    assert epsilon(unknown_parties=unknown + 1) <= here
    # Width and epochs count alike.
    assert epsilon(width=width * epochs, epochs=1) == pytest.approx(epsilon(), rel=1e-9)


def test_no_use_costs_nothing_and_none_is_negative() -> None:
    assert poisson_binomial_epsilon(16, 0.25, 64, 1, 0, DELTA) == 0.0
    assert poisson_binomial_epsilon(1, 1e-6, 1, 4, 1, 0.5) == 0.0


def test_a_pure_guarantee_is_used_where_it_is_the_better_one() -> None:
    pure = 2 * atanh(0.002)
    assert poisson_binomial_epsilon(1, 0.001, 1, 4, 1, 1e-300) == pytest.approx(pure, rel=1e-12)
    # A sum of all wins has a chance of 1/16, and may be off by delta: e^pure - e^epsilon = 16 delta.
    assert poisson_binomial_epsilon(1, 0.001, 1, 4, 1, DELTA) == pytest.approx(pure - 16 * DELTA, rel=1e-3)


def test_sizes_past_the_exact_ones_are_bounded_from_above() -> None:
    exact = poisson_binomial_epsilon(65535, 1e-4, 4, 4, 1, DELTA)
    assert poisson_binomial_epsilon(65535, 1e-4, 4, 60_000, 1, DELTA) == exact
    assert poisson_binomial_epsilon(65535, 1e-4, 4, 3, 1, DELTA) > exact
    # 8 alpha b beta^2 / m is good to 1e-6 here.
    gaussian = convert_to_epsilon(compose((4, lambda alpha: 8 * alpha * 65535 * 1e-8 / 4)), DELTA)
    assert exact == pytest.approx(gaussian, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trials": 0}, "trials must be from 1 to 65535, got 0"),
        ({"trials": 2.5}, "trials must be an integer from 1 to 65535, got 2.5"),
        ({"trials": True}, "trials must be an integer"),
        ({"beta": 0.0}, "beta must be above 0 and at most 0.25, got 0.0"),
        ({"beta": 0.2501}, "beta must be above 0 and at most 0.25"),
        ({"beta": float("nan")}, "beta must be a finite number"),
        ({"beta": "0.1"}, "beta must be a finite number"),
        ({"width": 0}, "width must be from 1"),
        ({"width": 16.0}, "width must be an integer"),
        ({"unknown_parties": 0}, "unknown_parties must be from 1"),
        ({"epochs": -1}, "epochs must be from 0"),
        ({"epochs": 1.5}, "epochs must be an integer"),
        ({"delta": 0}, "delta must be between 0 and 1"),
        ({"delta": 1.0}, "delta must be between 0 and 1"),
        ({"delta": -1e-5}, "delta must be between 0 and 1"),
    ],
)
def test_parameters_that_cannot_be_are_refused_by_name(changes: dict[str, Any], says: str) -> None:
    good = {"trials": 4, "beta": 0.05, "width": 16, "unknown_parties": 4, "epochs": 1, "delta": DELTA}
    with pytest.raises(BadParameter, match=says):
        poisson_binomial_epsilon(**{**good, **changes})
    numpy_numbers = {name: np.asarray(value)[()] for name, value in good.items()}
    assert poisson_binomial_epsilon(**numpy_numbers) == poisson_binomial_epsilon(**good)  # type: ignore[arg-type]
