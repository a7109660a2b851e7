"""The papers' bounds: their formulas at numbers worked out by hand, and Theorem 1 of EF-VFL on a quadratic."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.base.errors import BadParameter
from thinwire.engine.compress import TopK
from thinwire.engine.methods import efvfl
from thinwire.engine.models import (
    bound_cvfl_step,
    bound_efvfl_linear_step,
    bound_efvfl_step,
    bound_pbm_step,
    choose_celu_step,
)


def test_without_compression_error_feedback_allows_the_step_of_gradient_descent() -> None:
    assert bound_efvfl_step(smoothness=4.0, slope=7.0, parties=3, contraction=1.0) == 0.25
    assert bound_efvfl_linear_step(smoothness=4.0, curvature=4.0, contraction=1.0) == 0.25


def test_the_step_of_error_feedback_at_a_contraction_of_three_quarters() -> None:
    # (1 + sqrt(1/4)) / (3/4) - 1 = 1, so rho = K H^4
    assert bound_efvfl_step(2.0, 3.0, 4, 0.75) == pytest.approx(1 / (sqrt(4 * 81) * 2 + 2))
    assert bound_efvfl_step(2.0, 3.0, 4, 0.75, private_labels=True) == pytest.approx(1 / (sqrt(5 * 81) * 2 + 2))


@pytest.mark.parametrize("contraction", [0.01, 0.3, 1.0])
def test_the_step_for_linear_convergence_is_the_largest_that_the_theorem_allows(contraction: float) -> None:
    eta = bound_efvfl_linear_step(smoothness=5.0, curvature=0.5, contraction=contraction)
    assert eta**2 * 25 * (1 - 0.1) + eta * 0.5 == pytest.approx(contraction**2)


def test_the_other_papers_steps() -> None:
    assert bound_cvfl_step(2.0, local_steps=10, party_smoothness=[1.0, 4.0]) == 1 / 640
    assert bound_cvfl_step(1e-6, local_steps=1) == 1.0
    assert bound_pbm_step(4.0) == 0.125
    assert choose_celu_step(2.0, gap=8.0, steps=100, variance=4.0) == 0.1
    assert choose_celu_step(2.0, gap=1e9, steps=1, variance=1.0) == 0.75


def test_what_no_loss_has_is_refused() -> None:
    with pytest.raises(BadParameter, match="bound_pbm_step: smoothness must be above 0, got 0"):
        bound_pbm_step(0)
    with pytest.raises(BadParameter, match="contraction"):
        bound_efvfl_step(1.0, 1.0, 1, 0.0)
    with pytest.raises(BadParameter, match="curvature is at most the smoothness 1"):
        bound_efvfl_linear_step(1.0, 2.0, 0.5)


@pytest.mark.parametrize("labels", ["shared", "private"])
def test_theorem_1_holds_for_a_run_at_its_step(labels: str) -> None:
    """The mean squared gradient over T rounds is at most 2 (f(x_0) - f*) / (eta T); surrogates start exact, at 0."""
    rows, columns, width, parties, rounds = 30, 3, 2, 2, 12
    rng = torch.Generator().manual_seed(4)
    x = [torch.randn(rows, columns, generator=rng) for _ in range(parties)]
    y = torch.randn(rows, width, generator=rng)
    joined = torch.cat(x, dim=1)
    smoothness = max(float(torch.linalg.matrix_norm(joined, 2)) ** 2 / rows, parties / rows)
    slope = max(sqrt(width) * float(one.norm()) for one in x)
    compressor = TopK(0.75)
    eta = bound_efvfl_step(smoothness, slope, parties, compressor.contraction((rows, width)), labels == "private")
    bottoms = [nn.Linear(columns, width, bias=False) for _ in x]
    for bottom in bottoms:
        nn.init.zeros_(bottom.weight)
    history = tw.train(
        tw.Job(
            [tw.FeatureParty(f"p{k}", x[k], bottoms[k]) for k in range(parties)],
            tw.LabelParty("lab", y, nn.Identity(), loss=lambda out, want: 0.5 * (out - want).square().sum(dim=1)),
            efvfl(compressor, labels=labels, order="update_first", warm_start=True),
            optimizer=tw.SGD(lr=eta),
            epochs=rounds,
            eval_every=1,
            diagnostics=True,
            metrics=[],
        )
    ).history
    least = torch.linalg.lstsq(joined, y).solution
    gap = history[0]["train"]["loss"] - float(0.5 * (joined @ least - y).square().sum(dim=1).mean())
    gradients = [row["diagnostics"]["squared_gradient_norm"] for row in history[:rounds]]
    assert 0 < sum(gradients) / rounds <= 2 * gap / (eta * rounds)
    assert gradients[-1] < gradients[0]
