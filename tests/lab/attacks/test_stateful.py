"""A bottom model that learns from raw rows carries one row into the others' releases; clipping and noise stop it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.audit import PrivateStep, RawStep, row_gradients
from thinwire.engine.compress import Keystream, PoissonBinomial
from thinwire.engine.privacy import NoiseKey, poisson_binomial_epsilon
from thinwire.engine.privacy.accounting import Exposure, Observer, Parties, PoissonBinomialRelease, PrivatelyTrained
from thinwire.engine.privacy.accounting.ledger import end_to_end_epsilon
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.lab.attacks.stateful import ManyBottoms, Scene, audit_stateful, observe_releases

DELTA = 1e-5
KEY = NoiseKey(bytes(range(32)))
SCENE = Scene(PoissonBinomial(trials=4, beta=0.05))
LR = 100.0


def private(clip: float, noise_multiplier: float) -> PrivateStep:
    return PrivateStep(LR, clip, noise_multiplier, Keystream(bytes(range(32, 64))))


def claimed_by_use() -> float:
    """As if only the row's own releases told of it."""
    return poisson_binomial_epsilon(
        trials=4, beta=0.05, width=SCENE.width, unknown_parties=SCENE.parties, epochs=SCENE.rounds, delta=DELTA
    )


def claimed_end_to_end(noise_multiplier: float) -> float:
    exposure = Exposure(
        PoissonBinomialRelease(trials=4, beta=0.05, width=SCENE.width),
        Parties(SCENE.parties),
        PrivatelyTrained(noise_multiplier),
    )
    return end_to_end_epsilon(exposure, Observer.LABEL_PARTY, exposure.epochs(SCENE.rounds), DELTA)


def test_raw_training_leaks_more_than_its_releases_account_for() -> None:
    audit = audit_stateful(claimed_by_use(), SCENE, DELTA, RawStep(LR), KEY, repetitions=30_000)
    assert audit.claimed == pytest.approx(2.5, abs=0.05)
    assert audit.measured > 5.9
    assert audit.verdict == "refuted"


@pytest.mark.long
def test_clipping_and_noise_keep_the_claim_from_end_to_end() -> None:
    audit = audit_stateful(claimed_end_to_end(4.0), SCENE, DELTA, private(0.01, 4.0), KEY, repetitions=20_000)
    assert claimed_by_use() < audit.claimed < 6
    assert audit.verdict != "refuted", audit


@pytest.mark.long
def test_clipping_alone_does_not() -> None:
    audit = audit_stateful(claimed_end_to_end(4.0), SCENE, DELTA, private(0.03, 0.0), KEY, repetitions=20_000)
    assert audit.verdict == "refuted", audit


def test_the_first_round_tells_nothing_and_later_ones_do() -> None:
    one, other = (observe_releases(SCENE, sign, RawStep(LR), KEY, 4_000) for sign in (1, -1))
    apart = np.abs(one.mean(axis=0) - other.mean(axis=0)) / one.std(axis=0)
    assert apart[0] < 0.1
    assert apart[1:].min() > 1


class OneBottom(nn.Module):
    """One repetition's bottom model, as a party would have it: rows [N, 1] to [N, E]."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.weight)


def test_the_private_step_is_that_of_dp_bottom() -> None:
    rng = torch.Generator().manual_seed(0)
    weight, rows, derivative = (torch.randn(*shape, generator=rng) for shape in ((1, 2), (5,), (1, 5, 2)))
    many, one = ManyBottoms(1, 2), OneBottom(weight[0])
    with torch.no_grad():
        many.weight.copy_(weight)
    replace(private(0.3, 2.0), lr=1.0)(many, rows, derivative)
    # DPBottom clips the gradient of a row's own loss, five times as large as its part of the mean loss.
    dp = DPBottom(clip=5 * 0.3, noise_multiplier=2.0)
    dp.set_gradients(one, rows[:, None], derivative[0], Keystream(bytes(range(32, 64))))
    assert one.weight.grad is not None
    assert torch.allclose(weight[0] - one.weight.grad, many.weight[0], atol=1e-6)


def test_row_gradients_are_autograds() -> None:
    module = ManyBottoms(3, 2)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        module.weight.copy_(torch.randn(3, 2, generator=rng))
    rows, derivative = torch.randn(5, generator=rng), torch.randn(3, 5, 2, generator=rng)
    module(rows).backward(derivative)
    assert module.weight.grad is not None
    assert torch.allclose(row_gradients(module, rows, derivative).sum(dim=1), module.weight.grad, atol=1e-6)
