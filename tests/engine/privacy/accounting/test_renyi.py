"""Conversion and composition: against a dense grid, another accountant, and the exact Gaussian curve."""

from __future__ import annotations

from math import erfc, exp, inf, isinf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.privacy.accounting.oracle import converted
from thinwire.base.errors import BadParameter
from thinwire.engine.privacy.accounting.renyi import Rdp, compose, convert_to_epsilon, gaussian_rdp, infinite_rdp

ORDERS = (1 + np.geomspace(1e-6, 1e6, 12_001)).tolist()

# Made with dp-accounting 0.6.0: RdpAccountant over 4001 orders from 1.001 to 10001, GaussianDpEvent(s / 2), for a
# replaced row moves a clipped sum by twice the bound: s, steps, delta, epsilon.
OTHER_ACCOUNTANT = [
    (1.0, 1, 1e-5, 10.72482412223825),
    (4.0, 1, 1e-5, 2.165717966639443),
    (20.0, 10, 1e-5, 1.3081202036313302),
    (2.0, 100, 1e-5, 96.03528255169125),
    (50.0, 1000, 1e-6, 6.826674392093116),
    (8.0, 5, 1e-9, 3.445488657802402),
]


def linear(rho: float) -> Rdp:
    return lambda alpha: rho * alpha


def capped(rho: float, pure: float) -> Rdp:
    """As of a mechanism whose loss is never over `pure`."""
    return lambda alpha: pure if isinf(alpha) else min(rho * alpha, pure)


@pytest.mark.parametrize(("s", "steps", "delta", "epsilon"), OTHER_ACCOUNTANT)
def test_another_accountant_says_the_same_of_gaussian_steps(
    s: float, steps: int, delta: float, epsilon: float
) -> None:
    ours = convert_to_epsilon(compose((steps, gaussian_rdp(s))), delta)
    assert ours == pytest.approx(epsilon, rel=1e-5)
    assert ours <= epsilon * (1 + 1e-12)  # theirs is the least on a grid, ours among all orders


@pytest.mark.parametrize(("s", "steps"), [(4.0, 1), (20.0, 10), (2.0, 10)])
def test_the_exact_gaussian_curve_stays_below(s: float, steps: int) -> None:
    """delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), mu = 2 sqrt(steps) / s."""
    mu = 2 * sqrt(steps) / s

    def below(x: float) -> float:
        return erfc(-x / sqrt(2)) / 2

    epsilon = convert_to_epsilon(compose((steps, gaussian_rdp(s))), 1e-5)

    def delta(at: float) -> float:
        return below(mu / 2 - at / mu) - exp(at) * below(-mu / 2 - at / mu)

    assert delta(epsilon) < 1e-5
    assert delta(epsilon / 1.15) > 1e-5


@given(st.floats(1e-9, 1e9), st.floats(1e-12, 0.5))
def test_no_order_of_a_dense_grid_is_better(rho: float, delta: float) -> None:
    slow = max(0.0, converted(linear(rho), delta, ORDERS))
    assert convert_to_epsilon(linear(rho), delta) <= slow * (1 + 1e-9)
    assert convert_to_epsilon(linear(rho), delta) == pytest.approx(slow, rel=1e-4, abs=1e-9)


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.floats(1e-12, 0.5))
def test_nor_where_the_curve_has_a_corner(rho: float, pure: float, delta: float) -> None:
    slow = max(0.0, min(converted(capped(rho, pure), delta, ORDERS), pure))
    ours = convert_to_epsilon(capped(rho, pure), delta)
    assert ours <= slow + 1e-3 * pure
    assert ours <= pure


@given(st.floats(1e-6, 1e6), st.floats(1e-10, 0.1))
def test_the_classic_conversion_is_looser(rho: float, delta: float) -> None:
    classic = min(rho * alpha + log(1 / delta) / (alpha - 1) for alpha in ORDERS[::10])
    assert convert_to_epsilon(linear(rho), delta) < classic


def test_a_smaller_delta_costs_more() -> None:
    found = [convert_to_epsilon(linear(0.1), delta) for delta in (0.3, 1e-2, 1e-5, 1e-9, 1e-100)]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_parts_add_up() -> None:
    both = compose((3, gaussian_rdp(4.0)), (5, linear(0.25)))
    for alpha in (1.5, 2.0, 100.0):
        assert both(alpha) == pytest.approx(3 * 2 * alpha / 16 + 5 * 0.25 * alpha)
    assert compose()(2.0) == 0.0
    assert convert_to_epsilon(compose(), 1e-5) == 0.0


def test_what_has_no_proof_is_infinite_and_none_of_it_is_nothing() -> None:
    assert convert_to_epsilon(infinite_rdp, 1e-5) == inf
    assert convert_to_epsilon(compose((1, linear(0.1)), (1, infinite_rdp)), 0.999) == inf
    assert convert_to_epsilon(compose((1, linear(0.1)), (0, infinite_rdp)), 1e-5) == convert_to_epsilon(
        linear(0.1), 1e-5
    )


@pytest.mark.parametrize("noise_multiplier", [0, -1.0, inf, float("nan"), "1"])
def test_a_noise_multiplier_must_be_positive(noise_multiplier: float) -> None:
    with pytest.raises(BadParameter, match="noise_multiplier must be"):
        gaussian_rdp(noise_multiplier)
