"""What the papers prove, on a strongly convex quadratic: who converges, who stalls, and how high noise floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.engine.compress import Diminishing, TopK, Uniform
from thinwire.engine.methods import cvfl, efvfl, pbm
from thinwire.engine.models import OverRound

ROWS, COLUMNS, WIDTH, PARTIES = 80, 6, 3, 3


def half_squared_distance(outputs: Tensor, labels: Tensor) -> Tensor:
    return 0.5 * (outputs - labels).square().sum(dim=1)


def quadratic(
    recipe: tw.Recipe, rounds: int, lr: Any, eval_every: int = 50, bounded: bool = False
) -> list[dict[str, Any]]:
    """Linear bottom models, their sum, squared distance: strongly convex in all weights together."""
    rng = torch.Generator().manual_seed(3)
    x = [torch.randn(ROWS, COLUMNS, generator=rng) for _ in range(PARTIES)]
    y = (0.1 if bounded else 1.0) * torch.randn(ROWS, WIDTH, generator=rng)
    bottoms: list[nn.Module] = []
    for _ in range(PARTIES):
        layer = nn.Linear(COLUMNS, WIDTH, bias=False)
        nn.init.zeros_(layer.weight)
        bottoms.append(nn.Sequential(layer, nn.Hardtanh()) if bounded else layer)
    result = tw.train(
        tw.Job(
            [tw.FeatureParty(f"p{k}", x[k], bottoms[k]) for k in range(PARTIES)],
            tw.LabelParty("lab", y, nn.Identity(), loss=half_squared_distance),
            recipe,
            optimizer=tw.SGD(lr=lr),
            epochs=rounds,
            eval_every=eval_every,
            diagnostics=True,
            metrics=[],
        )
    )
    return result.history


def gradients(history: list[dict[str, Any]]) -> list[float]:
    return [row["diagnostics"]["relative_gradient_norm"] for row in history]


@pytest.mark.parametrize("labels", ["private", pytest.param("shared", marks=pytest.mark.long)])
def test_error_feedback_converges_linearly(labels: str) -> None:
    found = gradients(quadratic(efvfl(TopK(0.1), labels=labels), 500, lr=0.1, eval_every=25))
    logs = np.log(found[2:13])  # after that, float32 ends it
    slopes = np.diff(logs)
    assert np.all(slopes < -0.5)  # every 25 rounds, the same factor
    assert slopes.std() < 0.4 * abs(slopes.mean())
    assert found[-1] < 1e-8


@pytest.mark.long
def test_fixed_compression_without_feedback_stalls() -> None:
    for compressor in (TopK(0.1), Uniform(2)):
        found = gradients(quadratic(cvfl(compressor), 500, lr=0.1))
        assert min(found[-5:]) > 1e-4
        assert min(found[-5:]) > 0.05 * found[5]  # and does not get better


@pytest.mark.long
def test_diminishing_error_and_step_sizes_go_to_zero() -> None:
    found = gradients(quadratic(cvfl(Uniform(Diminishing(2))), 4000, lr=OverRound(1.0), eval_every=400))
    fixed = gradients(quadratic(cvfl(Uniform(2)), 4000, lr=0.1, eval_every=400))
    assert found[-1] < 0.1 * fixed[-1]
    assert found[-1] < 0.5 * found[2]
    assert found[-1] < 0.01


@pytest.mark.long
def test_the_distortion_of_error_feedback_vanishes_and_that_of_direct_streams_stays() -> None:
    feedback = quadratic(efvfl(TopK(0.1)), 800, lr=0.1)
    direct = quadratic(cvfl(TopK(0.1)), 800, lr=0.1)
    assert sum(feedback[-1]["diagnostics"]["distortion"].values()) < 1e-6
    assert sum(direct[-1]["diagnostics"]["distortion"].values()) > 1e-2


@pytest.mark.long
def test_the_noise_floor_of_pbm_scales_with_its_variance() -> None:
    """|gradient|^2 floats at a level that goes as M P / (beta^2 b)."""
    floors, variances = [], []
    for beta in (0.1, 0.25):
        for trials in (4, 16, 64):
            history = quadratic(pbm(trials, beta), 500, lr=0.02, eval_every=5, bounded=True)
            tail = [row["diagnostics"]["squared_gradient_norm"] for row in history[40:]]
            floors.append(float(np.mean(tail)))
            variances.append(1 / (beta**2 * trials))
    ratios = np.array(floors) / np.array(variances)
    assert ratios.max() / ratios.min() < 2.2  # over a range of 100 in the variance
    slope = np.polyfit(np.log(variances), np.log(floors), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.12)
