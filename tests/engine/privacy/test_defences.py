"""Defences: each keeps what it promises, draws from a secret alone, and refuses what it cannot protect."""

from __future__ import annotations

from math import comb, exp

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire.base.errors import BadInput, BadParameter, BadTensor
from thinwire.engine.compress import Keystream
from thinwire.engine.privacy.defences import (
    Defence,
    LabelDP,
    Marvell,
    MaxNorm,
    NoDefence,
    Spread,
    class_noise,
    least_divergent,
    randomise_labels,
    standard_normal,
)

ROWS, WIDTH = 400, 6


def stream(number: int = 0) -> Keystream:
    return Keystream(number.to_bytes(32, "big"))


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Derivatives as a logistic loss gives them: rare rows far one way, the others a little the other way."""
    rng = torch.Generator().manual_seed(seed)
    labels = (torch.rand(ROWS, generator=rng) < 0.1).long()
    said = 0.05 + 0.2 * torch.rand(ROWS, generator=rng)
    direction = torch.randn(WIDTH, generator=rng)
    noise = 0.02 * torch.randn(ROWS, WIDTH, generator=rng)
    return (said - labels)[:, None] * direction + noise, labels


def drawn(defence: Defence, draws: int) -> tuple[Tensor, Tensor]:
    """Derivatives, and what many draws make of them: [draws, rows, width]."""
    derivatives, labels = batch()
    rng, values = stream(), derivatives.double()
    return values, torch.stack([defence.protect(values, labels, rng) for _ in range(draws)])


# Every defence -----------------------------------------------------------------------------------------------

EVERY = [NoDefence(), MaxNorm(), Marvell(2.0), LabelDP(1.0)]


@pytest.mark.parametrize("defence", EVERY, ids=str)
def test_the_same_key_draws_the_same_and_another_key_does_not(defence: Defence) -> None:
    derivatives, labels = batch()
    again = defence.protect(derivatives, labels, stream())
    assert torch.equal(defence.protect(derivatives, labels, stream()), again)
    kept = torch.equal(defence.protect(derivatives, labels, stream(1)), again)
    assert kept == isinstance(defence, NoDefence | LabelDP)
    assert again.dtype == derivatives.dtype
    assert again.shape == derivatives.shape


@pytest.mark.parametrize("defence", [MaxNorm(), Marvell(2.0), LabelDP(1.0)], ids=str)
def test_noise_from_the_training_seed_is_refused(defence: Defence) -> None:
    derivatives, labels = batch()
    seeded = torch.Generator().manual_seed(0)
    with pytest.raises(BadParameter, match=r"from a Keystream with a secret key, .* not from a Generator"):
        defence.protect(derivatives, defence.labels(labels, 2, seeded), seeded)  # type: ignore[arg-type]


@pytest.mark.parametrize("defence", [MaxNorm(), Marvell(2.0)], ids=str)
def test_a_batch_whose_labels_do_not_fit_is_refused(defence: Defence) -> None:
    derivatives, labels = batch()
    with pytest.raises(BadTensor, match=f"{ROWS} rows of derivatives but {ROWS - 1} labels"):
        defence.protect(derivatives, labels[1:], stream())
    with pytest.raises(BadTensor, match="derivatives must be"):
        defence.protect(derivatives[:, 0], labels, stream())


@pytest.mark.parametrize("defence", [MaxNorm(), Marvell(2.0)], ids=str)
def test_noise_is_right_on_average(defence: Defence) -> None:
    derivatives, draws = drawn(defence, 1000)
    # The mean of the draws is within five of its own deviations, row by row.
    deviation = (draws - derivatives).square().sum(dim=2).mean(dim=0).div(len(draws)).sqrt()
    assert bool(((draws.mean(dim=0) - derivatives).norm(dim=1) <= 5 * deviation + 1e-9).all())
    assert float(deviation.mean()) > 0.001


def test_standard_normal_has_the_moments_of_a_gaussian() -> None:
    values = standard_normal(stream(), (1000, 401))
    assert values.shape == (1000, 401)
    for power, wanted, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((values**power).mean() - wanted) < 5 * (variance / values.size) ** 0.5
    # Two halves that share uniform bits must not show it.
    assert abs(np.corrcoef(values.ravel()[:200_000], values.ravel()[200_500:400_500])[0, 1]) < 5 / 200_000**0.5


# Max-norm ----------------------------------------------------------------------------------------------------


def test_max_norm_gives_every_row_the_largest_squared_norm_on_average() -> None:
    derivatives, draws = drawn(MaxNorm(), 2000)
    norms, squared = derivatives.norm(dim=1), draws.square().sum(dim=2).mean(dim=0)
    largest = norms.max().square()
    # (|g| + missing z)^2 has variance 4 |g|^2 missing^2 + 2 missing^4.
    missing = largest - norms.square()
    deviation = ((4 * norms.square() * missing + 2 * missing.square()) / len(draws)).sqrt()
    assert bool(((squared - largest).abs() <= 5 * deviation + 1e-6).all())


def test_max_norm_adds_along_the_row_and_nothing_to_the_longest() -> None:
    derivatives, labels = batch()
    noisy = MaxNorm().protect(derivatives, labels, stream())
    cosines = torch.cosine_similarity(noisy.double(), derivatives.double(), dim=1)
    assert bool(torch.allclose(cosines.abs(), torch.ones(ROWS, dtype=torch.float64), atol=1e-4))
    longest = int(derivatives.norm(dim=1).argmax())
    assert torch.allclose(noisy[longest], derivatives[longest], rtol=1e-5)


def test_max_norm_gives_a_row_without_derivative_a_direction() -> None:
    derivatives, labels = batch()
    derivatives[3] = 0
    noisy = MaxNorm().protect(derivatives, labels, stream())
    assert noisy[3].norm() > 0
    assert bool(torch.isfinite(noisy).all())
    nothing = torch.zeros(4, WIDTH)
    assert torch.equal(MaxNorm().protect(nothing, labels[:4], stream()), nothing)


# Marvell -----------------------------------------------------------------------------------------------------

SPREADS = [
    Spread(share=0.1, distance=1.0, variances=(0.01, 0.05), width=8),
    Spread(share=0.5, distance=1.0, variances=(0.3, 0.3), width=3),
    Spread(share=0.02, distance=4.0, variances=(0.2, 0.001), width=64),
    Spread(share=0.3, distance=1.0, variances=(0.0, 0.0), width=1),
    Spread(share=0.3, distance=1.0, variances=(0.0, 0.1), width=2),
]


def spent(spread: Spread, along: tuple[float, float], across: tuple[float, float]) -> float:
    shares = (1 - spread.share, spread.share)
    return sum(p * (a + (spread.width - 1) * b) for p, a, b in zip(shares, along, across, strict=True))


def sum_kl(spread: Spread, along: tuple[float, float], across: tuple[float, float]) -> float:
    """KL(1 || 0) + KL(0 || 1) of the classes under this noise."""
    (u, v), floor = spread.variances, 1e-12 * max(*spread.variances, spread.distance)
    a0, a1 = max(u + along[0], floor), max(v + along[1], floor)
    b0, b1 = max(u + across[0], floor), max(v + across[1], floor)
    line = (a1**2 + a0**2 + spread.distance * (a1 + a0)) / (a1 * a0) - 2
    return float(line + (spread.width - 1) * (b1 - b0) ** 2 / (b1 * b0)) / 2


@pytest.mark.parametrize("power", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_marvell_spends_its_power_and_no_other_noise_of_that_power_hides_more(spread: Spread, power: float) -> None:
    along, across = least_divergent(spread, power)
    budget = power * spread.distance
    assert min(*along, *across) >= 0
    assert spent(spread, along, across) == pytest.approx(budget)
    best = sum_kl(spread, along, across)
    rng = np.random.default_rng(0)
    shares = np.array([1 - spread.share, spread.share])
    for share in rng.dirichlet([0.5] * 4, size=3000):
        parts = share * budget
        other = tuple(parts[:2] / shares)
        beside = tuple(parts[2:] / shares / max(spread.width - 1, 1))
        if spread.width == 1:
            other = (other[0] + parts[2] / shares[0], other[1] + parts[3] / shares[1])
        assert sum_kl(spread, (other[0], other[1]), (beside[0], beside[1])) >= best * (1 - 1e-6)


@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_more_power_hides_more(spread: Spread) -> None:
    left = [sum_kl(spread, *least_divergent(spread, power)) for power in (0.1, 0.3, 1, 3, 10, 100)]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.05


def test_the_divergence_is_that_of_gaussians() -> None:
    spread, along, across = SPREADS[0], (0.2, 0.03), (0.01, 0.04)
    mean = np.zeros(8)
    mean[0] = spread.distance**0.5
    covariances = [
        np.diag([variance + a] + [variance + b] * 7)
        for variance, a, b in zip(spread.variances, along, across, strict=True)
    ]

    def kl(one: int, other: int) -> float:
        inverse = np.linalg.inv(covariances[other])
        logs = np.linalg.slogdet(covariances[other])[1] - np.linalg.slogdet(covariances[one])[1]
        return float(np.trace(inverse @ covariances[one]) + mean @ inverse @ mean - 8 + logs) / 2

    assert sum_kl(spread, along, across) == pytest.approx(kl(1, 0) + kl(0, 1))


def test_marvells_noise_has_the_covariance_that_was_chosen() -> None:
    values, draws = drawn(Marvell(2.0), 1000)
    labels = batch()[1]
    noise = class_noise(values.numpy(), labels.numpy() == 1, 2.0)
    for one in (0, 1):
        added = (draws - values)[:, labels == one].reshape(-1, WIDTH).numpy()
        wanted = noise.across[one] * np.eye(WIDTH)
        wanted += (noise.along[one] - noise.across[one]) * np.outer(noise.direction, noise.direction)
        assert np.abs(np.cov(added.T) - wanted).max() < 0.03 * np.abs(wanted).max()


def test_marvell_hides_a_batch_of_one_class_from_its_mirror_image() -> None:
    derivatives, labels = batch()
    alone = derivatives[labels == 1]
    rng = stream()
    draws = torch.stack(
        [Marvell(1.0).protect(alone, torch.ones(len(alone)), rng).double() - alone for _ in range(500)]
    )
    wanted = (2 * alone.double().mean(dim=0)).square().sum()
    assert float(draws.square().sum(dim=2).mean()) == pytest.approx(float(wanted), rel=0.05)


def test_marvell_is_for_two_classes() -> None:
    derivatives, labels = batch()
    labels[0] = 2
    with pytest.raises(BadInput, match="Marvell is for labels 0 and 1, and a label is 2; use MaxNorm or LabelDP"):
        Marvell(1.0).protect(derivatives, labels, stream())
    with pytest.raises(BadInput, match="Marvell is for labels 0 and 1, and there are 10 classes"):
        Marvell(1.0).labels(labels, 10, stream())
    for power in (0.0, float("nan"), "1"):
        with pytest.raises(BadParameter, match="Marvell: power must be"):
            Marvell(power)  # type: ignore[arg-type]


# Label differential privacy ----------------------------------------------------------------------------------


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """P(|X - mean| >= |hits - mean|), exactly."""
    mean = trials * chance
    far = abs(hits - mean)
    return sum(
        comb(trials, k) * chance**k * (1 - chance) ** (trials - k)
        for k in range(trials + 1)
        if abs(k - mean) >= far - 1e-9
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_labels_are_kept_and_changed_as_often_as_epsilon_says(classes: int, epsilon: float) -> None:
    trials = 1000
    truth = torch.full((trials,), 1)
    drawn = randomise_labels(truth, classes, epsilon, stream(classes))
    kept = exp(epsilon) / (exp(epsilon) + classes - 1)
    counts = torch.bincount(drawn, minlength=classes).tolist()
    assert sum(counts) == trials
    for label, count in enumerate(counts):
        chance = kept if label == 1 else (1 - kept) / (classes - 1)
        assert binomial_tail(count, trials, chance) > 1e-3, f"label {label}: {count} of {trials}, wanted {chance:.3f}"


@pytest.mark.parametrize("classes", [2, 7])
def test_the_ratio_of_any_two_chances_is_at_most_e_to_epsilon(classes: int) -> None:
    epsilon = 1.5
    kept = exp(epsilon) / (exp(epsilon) + classes - 1)
    assert kept / ((1 - kept) / (classes - 1)) == pytest.approx(exp(epsilon))


def test_labels_are_drawn_once_for_a_key() -> None:
    truth = torch.arange(1000) % 3
    once = randomise_labels(truth, 3, 1.0, stream())
    assert torch.equal(randomise_labels(truth, 3, 1.0, stream()), once)
    assert not torch.equal(randomise_labels(truth, 3, 1.0, stream(1)), once)


def test_labels_keep_their_type() -> None:
    truth = torch.tensor([0.0, 1.0, 1.0])
    drawn = LabelDP(1.0).labels(truth, 2, stream())
    assert drawn.dtype == truth.dtype
    assert set(drawn.tolist()) <= {0.0, 1.0}


def test_a_large_epsilon_changes_nothing_and_derivatives_pass() -> None:
    derivatives, labels = batch()
    assert torch.equal(LabelDP(40.0).labels(labels, 2, stream()), labels)
    assert LabelDP(1.0).protect(derivatives, labels, stream()) is derivatives


def test_labels_that_are_no_classes_are_refused() -> None:
    for truth, wrong in ((torch.tensor([0.5]), "0.5"), (torch.tensor([3]), "3"), (torch.tensor([-1]), "-1")):
        with pytest.raises(BadTensor, match=f"labels must be integers from 0 to 2, got {wrong}"):
            randomise_labels(truth, 3, 1.0, stream())
    for classes in (1, True, 2.0):
        with pytest.raises(BadParameter, match="classes must be an integer, 2 or more"):
            randomise_labels(torch.tensor([0]), classes, 1.0, stream())  # type: ignore[arg-type]
    for epsilon in (0.0, -1.0, float("inf")):
        with pytest.raises(BadParameter, match="LabelDP: epsilon must be"):
            LabelDP(epsilon)
