"""Learning rates at their first, middle and last round; optimisers against steps made by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, inf, nan, pi, sqrt

import numpy as np
import pytest
import torch
from torch import nn, optim

from thinwire.base.errors import BadParameter
from thinwire.engine.compress import Milestones
from thinwire.engine.models import (
    OPTIMIZERS,
    SGD,
    STEP_SIZES,
    AdaGrad,
    Adam,
    Constant,
    Cosine,
    InverseRoot,
    OptimizerSpec,
    OverRound,
    StepMilestones,
    StepSize,
    set_lr,
)

TOTAL = 101
GRADIENTS = [0.5, -2.0, 0.25]


@pytest.mark.parametrize(
    ("lr", "first", "middle", "last"),
    [
        (0.3, 0.3, 0.3, 0.3),
        (Constant(0.3), 0.3, 0.3, 0.3),
        (InverseRoot(0.3), 0.3 / sqrt(101), 0.3 / sqrt(101), 0.3 / sqrt(101)),
        (OverRound(0.3), 0.3, 0.3 / 51, 0.3 / 101),
        (StepMilestones(0.3, ((50, 0.5), (100, 0.1))), 0.3, 0.3 * 0.5, 0.3 * 0.5 * 0.1),
        (StepMilestones(0.3, ((0, 2.0), (51, 0.5))), 0.6, 0.6, 0.3),
        (Cosine(0.3, 0.003), 0.3, pytest.approx((0.3 + 0.003) / 2, rel=1e-15), 0.003),
        (Cosine(0.3), 0.3, pytest.approx(0.15, rel=1e-15), 0.0),
    ],
    ids=str,
)
def test_step_sizes(lr: float | StepSize, first: float, middle: float, last: float) -> None:
    spec = SGD(lr)
    assert spec.lr_at(0, TOTAL) == first
    assert spec.lr_at(50, TOTAL) == middle
    assert spec.lr_at(100, TOTAL) == last


def test_the_cosine_is_torchs() -> None:
    spec = SGD(Cosine(0.1, 0.001))
    for round in range(TOTAL):
        expected = 0.001 + (0.1 - 0.001) * (1 + cos(pi * round / 100)) / 2
        assert spec.lr_at(round, TOTAL) == pytest.approx(expected, rel=1e-13)
    assert spec.lr_at(500, TOTAL) == 0.001  # it does not rise again
    assert spec.lr_at(0, 1) == 0.1


def steps(spec: OptimizerSpec, start: float = 1.0) -> list[float]:
    """The weight after each step down the fixed gradients."""
    w = nn.Parameter(torch.tensor([start], dtype=torch.float64))
    optimizer = spec.build([w])
    assert optimizer is not None
    path = []
    for gradient in GRADIENTS:
        w.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        path.append(w.item())
    return path


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.01), (0.5, 0.0)])
def test_sgd(nesterov: bool, momentum: float, decay: float) -> None:
    w, v, expected = 1.0, 0.0, []
    for given in GRADIENTS:
        gradient = given + decay * w
        v = momentum * v + gradient
        w -= 0.1 * (gradient + momentum * v if nesterov else v)
        expected.append(w)
    assert steps(SGD(0.1, momentum, decay, nesterov)) == pytest.approx(expected, rel=1e-14)
    assert steps(SGD(0.1)) == pytest.approx([0.95, 1.15, 1.125], rel=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam(decay: float) -> None:
    w, m, v, expected = 1.0, 0.0, 0.0, []
    for t, given in enumerate(GRADIENTS, start=1):
        gradient = given + decay * w
        m = 0.8 * m + 0.2 * gradient
        v = 0.9 * v + 0.1 * gradient**2
        w -= 0.1 * (m / (1 - 0.8**t)) / (sqrt(v / (1 - 0.9**t)) + 1e-6)
        expected.append(w)
    assert steps(Adam(0.1, (0.8, 0.9), 1e-6, decay)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adagrad(decay: float) -> None:
    w, total, expected = 1.0, 0.1, []
    for given in GRADIENTS:
        gradient = given + decay * w
        total += gradient**2
        w -= 0.05 * gradient / (sqrt(total) + 1e-10)
        expected.append(w)
    assert steps(AdaGrad(weight_decay=decay)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("spec", [SGD(0.1), Adam(), AdaGrad()], ids=str)
def test_every_parameter_is_moved_by_the_plain_loop(spec: OptimizerSpec) -> None:
    optimizer = spec.build(nn.Linear(3, 2).parameters())
    assert isinstance(optimizer, optim.Optimizer)
    (group,) = optimizer.param_groups
    assert group["foreach"] is False
    assert group["fused"] is False
    assert len(group["params"]) == 2
    assert spec.build([]) is None


def test_set_lr_holds_from_the_next_step() -> None:
    w = nn.Parameter(torch.tensor([1.0]))
    optimizer = SGD(OverRound(0.5)).build([w])
    assert optimizer is not None
    w.grad = torch.tensor([1.0])
    optimizer.step()
    set_lr(optimizer, 0.25)
    optimizer.step()
    assert w.item() == 0.25


def test_numbers_become_plain_so_that_equal_specs_look_equal() -> None:
    assert repr(SGD(np.float32(0.5))) == repr(SGD(0.5))  # type: ignore[arg-type]
    assert repr(SGD(1)) == repr(SGD(1.0))
    assert hash(Adam(betas=[0.9, 0.999])) == hash(Adam())  # type: ignore[arg-type]
    listed = StepMilestones(1, [[10, 1]])  # type: ignore[arg-type]
    assert repr(listed) == repr(StepMilestones(1.0, ((10, 1.0),)))


def test_names_of_job_files() -> None:
    assert {"sgd": SGD, "adam": Adam, "adagrad": AdaGrad} == OPTIMIZERS
    assert list(STEP_SIZES) == ["constant", "inverse_root", "over_round", "step_milestones", "cosine"]


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: SGD(0), "SGD: lr must be above 0, got 0"),
    (lambda: SGD(-1), "SGD: lr must be above 0, got -1"),
    (lambda: SGD(nan), "SGD: lr must be above 0, got nan"),
    (lambda: SGD(inf), "SGD: lr must be above 0, got inf"),
    (lambda: SGD("0.1"), "SGD: lr must be a number above 0, got '0.1'"),  # type: ignore[arg-type]
    (lambda: SGD(True), "SGD: lr must be a number above 0, got True"),
    (lambda: SGD(Milestones((0, 0.1))), "SGD: lr must be a number above 0, got Milestones"),  # type: ignore[arg-type]
    (lambda: SGD(0.1, momentum=1.0), "SGD: momentum must be at least 0 and below 1, got 1.0"),
    (lambda: SGD(0.1, weight_decay=-1), "SGD: weight_decay must be at least 0, got -1"),
    (lambda: SGD(0.1, nesterov=True), "SGD: nesterov needs momentum above 0"),
    (lambda: SGD(0.1, 0.9, nesterov=1), "SGD: nesterov must be True or False, got 1"),  # type: ignore[arg-type]
    (lambda: SGD(0.1).lr_at(-1, 10), "SGD: round must be an integer from 0 up, got -1"),
    (lambda: SGD(0.1).lr_at(0, 0), "SGD: total_rounds must be an integer from 1 up, got 0"),
    (lambda: Adam(betas=(0.9, 1.0)), r"Adam: betas\[1\] must be at least 0 and below 1, got 1.0"),
    (lambda: Adam(betas=(0.9,)), "Adam: betas must be two numbers"),  # type: ignore[arg-type]
    (lambda: Adam(eps=0), "Adam: eps must be above 0, got 0"),
    (lambda: Adam(weight_decay=-1), "Adam: weight_decay must be at least 0"),
    (lambda: AdaGrad(initial_accumulator=-1), "AdaGrad: initial_accumulator must be at least 0"),
    (lambda: AdaGrad(eps=nan), "AdaGrad: eps must be above 0, got nan"),
    (lambda: InverseRoot(0), "InverseRoot: lr must be above 0, got 0"),
    (lambda: Cosine(0.1, 0.2), "Cosine: minimum must be at most lr = 0.1, got 0.2"),
    (lambda: Cosine(0.1, -0.2), "Cosine: minimum must be at least 0, got -0.2"),
    (lambda: StepMilestones(0.1, (5,)), r"milestones must be pairs \(round, factor\)"),  # type: ignore[arg-type]
    (lambda: StepMilestones(0.1, ((9, 0.1), (5, 0.1))), r"the rounds must increase, got \[9, 5\]"),
    (lambda: StepMilestones(0.1, ((5, 0),)), r"milestones\[0\]'s factor must be above 0"),
    (lambda: StepMilestones(0.1, ((5.5, 1),)), r"milestones\[0\]'s round must be an integer"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_numbers_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        call()
