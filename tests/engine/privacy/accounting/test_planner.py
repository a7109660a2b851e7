"""The planner: it keeps the budget, nothing with less noise does, and it does not flatter."""

from __future__ import annotations

from math import sqrt

import pytest

from thinwire.base.errors import BadParameter
from thinwire.engine.privacy import ring_modulus
from thinwire.engine.privacy.accounting import (
    Budget,
    Frozen,
    NoisePlan,
    Observer,
    Parties,
    PrivacyTarget,
    PrivatelyTrained,
    assess_usefulness,
    plan_noise,
    poisson_binomial_epsilon,
)
from thinwire.engine.privacy.accounting.figures import noise_std

# epsilon -> rho, where the noise is sqrt(2 P E / rho); delta 1e-5.
RHO = {8.0: 1.23, 1.0: 0.031}
FROZEN = Frozen()


def aim(
    epsilon: float = 8.0,
    width: int = 16,
    parties: int = 4,
    epochs: int = 10,
    observer: Observer = Observer.LABEL_PARTY,
    bottom: Frozen | PrivatelyTrained = FROZEN,
) -> PrivacyTarget:
    return PrivacyTarget(Budget(epsilon, observer=observer), width, Parties(parties), epochs, bottom)


AIMS = [
    aim(),
    aim(1.0),
    aim(8.0, 4, 12, 1),
    aim(30.0, 16, 4, 1),
    aim(8.0, 4, 4, 2, Observer.ALL_OTHERS),
    aim(8.0, 16, 12, 10, Observer.FEATURE_PARTY),
    aim(0.1, 1, 4, 1),
    aim(8.0, 16, 2, 1),
]


@pytest.mark.parametrize("wanted", AIMS)
def test_both_plans_keep_the_budget_and_use_it(wanted: PrivacyTarget) -> None:
    plans = plan_noise(wanted)
    unknown = wanted.budget.observer.count_noise_parties(wanted.parties)
    for one in (plans.least_noise, plans.fewest_bits):
        epsilon = poisson_binomial_epsilon(one.trials, one.beta, wanted.width, unknown, wanted.epochs, 1e-5)
        assert one.epsilon == pytest.approx(epsilon, rel=1e-9)
        assert epsilon <= wanted.budget.epsilon
        assert epsilon > 0.99 * wanted.budget.epsilon or one.beta == 0.25
        assert one.noise_std == pytest.approx(sqrt(wanted.parties.noisy / (4 * one.beta**2 * one.trials)))
        assert 2**one.bits_per_value == ring_modulus(wanted.parties.noisy, one.trials)
    assert plans.fewest_bits.noise_std <= 1.05 * plans.least_noise.noise_std
    assert plans.fewest_bits.bits_per_value <= plans.least_noise.bits_per_value


@pytest.mark.parametrize("wanted", AIMS)
def test_nothing_with_clearly_less_noise_keeps_it(wanted: PrivacyTarget) -> None:
    least = plan_noise(wanted).least_noise.noise_std
    for trials in (1, 2, 3, 5, 8, 16, 40, 100):
        beta = sqrt(wanted.parties.noisy / (4 * trials)) / (0.98 * least)
        if beta <= 0.25:
            assert wanted.epsilon(trials, beta) > wanted.budget.epsilon


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
@pytest.mark.parametrize(("width", "epochs"), [(16, 10), (64, 1), (4, 100)])
def test_the_noise_is_set_by_width_times_epochs_alone(epsilon: float, width: int, epochs: int) -> None:
    for parties in (4, 12):
        found = plan_noise(aim(epsilon, width, parties, epochs)).least_noise.noise_std
        assert found == pytest.approx(sqrt(2 * width * epochs / RHO[epsilon]), rel=0.02)


def test_one_throw_a_value_is_enough_for_many_releases() -> None:
    few = plan_noise(aim(8.0, 16, 4, 10)).fewest_bits
    assert (few.trials, few.bits_per_value) == (1, 3)
    with_seven_bits = next(trials for trials in range(1, 100) if (4 * trials).bit_length() == 7)
    assert noise_std(1, few.beta, 4) < 1.05 * plan_noise(aim(8.0, 16, 4, 10)).least_noise.noise_std
    assert with_seven_bits == 16


def test_colluders_cost_noise() -> None:
    noise = [plan_noise(aim(observer=observer)).least_noise.noise_std for observer in Observer]
    assert noise == sorted(noise)
    assert noise[2] > 1.9 * noise[0]  # sqrt(4 parties / 1)


def test_private_training_shares_the_budget() -> None:
    alone, shared = plan_noise(aim()), plan_noise(aim(bottom=PrivatelyTrained(10.0)))
    assert shared.least_noise.noise_std > 1.05 * alone.least_noise.noise_std
    assert shared.least_noise.epsilon <= 8


def test_gradient_steps_that_overspend_are_refused_with_the_multiplier_that_would_do() -> None:
    with pytest.raises(BadParameter, match=r"noise_multiplier 1: 10 epochs .* epsilon 48\.8, over 8.* above 4\.03"):
        plan_noise(aim(bottom=PrivatelyTrained(1.0)))
    assert plan_noise(aim(bottom=PrivatelyTrained(4.1))).least_noise.epsilon <= 8


def test_a_loose_budget_takes_the_most_that_there_is() -> None:
    most = plan_noise(aim(1e6, 1, 4, 1)).least_noise
    assert (most.trials, most.beta, most.bits_per_value) == (1023, 0.25, 12)


# Words ------------------------------------------------------------------------------------------------


def test_it_says_useless_where_it_is() -> None:
    wanted = aim(1.0)
    judged = assess_usefulness(wanted, plan_noise(wanted).least_noise)
    assert judged.verdict == "useless"
    assert judged.noise_over_signal > 80
    assert judged.says.startswith(
        "Useless: noise with standard deviation 102 on a sum whose own standard deviation is at most 1.15"
    )
    said = " ".join(judged.helps)
    for words in (
        "narrower embedding: width 4 gives 2 times",
        "fewer epochs",
        "3.2 times",
        "Add parties",
        "raise epsilon",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("trials", "beta", "verdict"),
    [(16, 0.25, "useful"), (12, 0.25, "useful"), (3, 0.25, "doubtful"), (16, 0.05, "doubtful"), (4, 0.05, "useless")],
)
def test_the_verdict_goes_by_noise_over_signal(trials: int, beta: float, verdict: str) -> None:
    for parties in (4, 12):
        one = NoisePlan(trials, beta, 9, noise_std(trials, beta, parties), 8.0)
        judged = assess_usefulness(aim(parties=parties), one)
        assert judged.noise_over_signal == pytest.approx(sqrt(3 / trials) / (2 * beta))
        assert judged.verdict == verdict
        assert bool(judged.helps) == (verdict != "useful")


@pytest.mark.long
def test_the_help_comes_true() -> None:
    before = plan_noise(aim(8.0, 16, 4, 10)).least_noise.noise_std
    assert before / plan_noise(aim(8.0, 4, 4, 10)).least_noise.noise_std == pytest.approx(2, rel=0.03)
    assert before / plan_noise(aim(8.0, 16, 4, 1)).least_noise.noise_std == pytest.approx(3.2, rel=0.03)
    even = aim(30.0, 4, 4, 2)
    judged = assess_usefulness(even, plan_noise(even).least_noise)
    enough = next(float(text.split()[-1].rstrip(".")) for text in judged.helps if text.startswith("Noise and signal"))
    assert enough == pytest.approx(8 / judged.noise_over_signal**2, rel=0.06)


@pytest.mark.parametrize(
    ("width", "epochs", "says"), [(0, 1, "width must be from 1"), (4, 0, "epochs must be from 1")]
)
def test_parameters_that_cannot_be_are_refused(width: int, epochs: int, says: str) -> None:
    with pytest.raises(BadParameter, match=says):
        aim(8.0, width, 4, epochs)
