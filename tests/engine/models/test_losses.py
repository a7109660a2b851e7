"""Losses are per row, and their average is what torch computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.models import (
    LOSSES,
    Loss,
    binary_cross_entropy,
    cross_entropy,
    poisson,
    squared_error,
    with_class_weights,
)
from thinwire.engine.models.losses import find_base_rate

RNG = torch.Generator().manual_seed(0)
LOGITS = torch.randn(32, 5, generator=RNG)
CLASSES = torch.randint(0, 5, (32,), generator=RNG)
LOGIT = torch.randn(32, generator=RNG)
BITS = torch.randint(0, 2, (32,), generator=RNG)
TARGET = torch.randn(32, generator=RNG)


def test_cross_entropy_is_minus_the_log_of_the_softmax() -> None:
    rows = cross_entropy(LOGITS, CLASSES)
    expected = -LOGITS.softmax(dim=1)[torch.arange(32), CLASSES].log()
    assert rows.shape == (32,)
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(rows.mean(), functional.cross_entropy(LOGITS, CLASSES))


@pytest.mark.parametrize("labels", [BITS, BITS.float(), BITS.double()[:, None], BITS.bool()], ids=str)
@pytest.mark.parametrize("logits", [LOGIT, LOGIT[:, None]], ids=["line", "column"])
def test_binary_cross_entropy_for_every_shape_and_dtype(logits: Tensor, labels: Tensor) -> None:
    probability = LOGIT.sigmoid().where(BITS == 1, 1 - LOGIT.sigmoid())
    torch.testing.assert_close(binary_cross_entropy(logits, labels), -probability.log())


@pytest.mark.parametrize("prediction", [LOGIT, LOGIT[:, None]], ids=["line", "column"])
@pytest.mark.parametrize("labels", [TARGET, TARGET[:, None], TARGET.double()], ids=["line", "column", "f64"])
def test_squared_error_never_broadcasts(prediction: Tensor, labels: Tensor) -> None:
    rows = squared_error(prediction, labels)
    assert rows.shape == (32,)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, (LOGIT - TARGET) ** 2)


def test_poisson_is_the_likelihood_of_counts() -> None:
    counts = torch.arange(32)
    expected = functional.poisson_nll_loss(LOGIT, counts.float(), reduction="none")
    torch.testing.assert_close(poisson(LOGIT[:, None], counts), expected)
    with pytest.raises(BadTensor, match="counts, 0 or more, got -1"):
        poisson(LOGIT, counts - 1)
    with pytest.raises(BadParameter, match="poisson has no classes"):
        with_class_weights(poisson, [1, 2])


@pytest.mark.parametrize(
    ("loss", "outputs", "labels"),
    [
        (cross_entropy, LOGITS, CLASSES),
        (binary_cross_entropy, LOGIT[:, None], BITS.float()),
        (squared_error, LOGIT[:, None], TARGET),
        (poisson, LOGIT[:, None], BITS),
    ],
)
def test_each_row_has_a_loss_of_its_own(loss: Loss, outputs: Tensor, labels: Tensor) -> None:
    x = outputs.clone().requires_grad_()
    loss(x, labels)[3].backward()
    assert x.grad is not None
    assert set(x.grad.nonzero()[:, 0].tolist()) == {3}


def test_class_weights_multiply_the_rows() -> None:
    weights = [1.0, 0.0, 2.0, 0.5, 4.0]
    expected = cross_entropy(LOGITS, CLASSES) * torch.tensor(weights)[CLASSES]
    assert torch.equal(with_class_weights(cross_entropy, weights)(LOGITS, CLASSES), expected)
    expected = binary_cross_entropy(LOGIT, BITS) * torch.tensor([1.0, 3.0])[BITS]
    assert torch.equal(with_class_weights(binary_cross_entropy, (1, 3))(LOGIT[:, None], BITS.float()), expected)
    assert with_class_weights(cross_entropy, [1, 2]) == with_class_weights(cross_entropy, (1.0, 2.0))


WRONG: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: cross_entropy(LOGIT, BITS), BadTensor, "use binary_cross_entropy"),
    (lambda: cross_entropy(LOGITS, CLASSES[:-1]), BadTensor, "32 rows of outputs but 31 labels"),
    (lambda: cross_entropy(LOGITS, CLASSES - 100), BadTensor, "integers from 0 to 4, got -"),
    (lambda: cross_entropy(LOGITS, CLASSES + 3), BadTensor, "integers from 0 to 4, got"),
    (lambda: cross_entropy(LOGITS, CLASSES + 0.5), BadTensor, "integers from 0 to 4, got"),
    (lambda: cross_entropy(LOGITS, LOGITS), BadTensor, r"labels has shape \(32, 5\), expected \[B\]"),
    (lambda: binary_cross_entropy(LOGIT, 2 * BITS - 1), BadTensor, "integers from 0 to 1, got -1"),
    (lambda: binary_cross_entropy(LOGITS, BITS), BadTensor, r"expected \[B\] or \[B, 1\]"),
    (lambda: squared_error(LOGIT, TARGET[:5]), BadTensor, "32 rows of outputs but 5 labels"),
    (lambda: with_class_weights(squared_error, [1, 2]), BadParameter, "squared_error has no classes"),
    (
        lambda: with_class_weights(cross_entropy, [1, -2]),
        BadParameter,
        r"weighted: class_weights\[1\] must be at least",
    ),
    (lambda: with_class_weights(cross_entropy, [0, 0]), BadParameter, "one number per class, not all 0"),
    (lambda: with_class_weights(cross_entropy, [1, 2])(LOGITS, CLASSES), BadParameter, "2 values for 5 classes"),
    (
        lambda: with_class_weights(binary_cross_entropy, [1, 2, 3])(LOGIT, BITS),
        BadParameter,
        "3 values for 2 classes",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_wrong_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_names_of_job_files() -> None:
    assert {
        "cross_entropy": cross_entropy,
        "binary_cross_entropy": binary_cross_entropy,
        "squared_error": squared_error,
        "poisson": poisson,
    } == LOSSES


@pytest.mark.parametrize(
    ("loss", "labels", "width"),
    [
        (cross_entropy, CLASSES, 5),
        (binary_cross_entropy, BITS, 1),
        (squared_error, TARGET, 1),
        (poisson, CLASSES, 1),
        (with_class_weights(cross_entropy, [1, 2, 0.5, 3, 1]), CLASSES, 5),
        (with_class_weights(binary_cross_entropy, [1, 4]), BITS, 1),
    ],
    ids=["classes", "binary", "value", "count", "weighted classes", "weighted binary"],
)
@pytest.mark.parametrize("weights", [None, torch.rand(32, generator=RNG)], ids=["alike", "by weight"])
def test_no_other_constant_fits_better_than_the_base_rate(
    loss: Loss, labels: Tensor, width: int, weights: Tensor | None
) -> None:
    outputs = find_base_rate(loss, labels, width, weights).clone().requires_grad_()
    assert outputs.shape == (width,)
    rows = loss(outputs.expand(len(labels), width), labels)
    (rows if weights is None else rows * weights.double()).mean().backward()
    assert outputs.grad is not None
    torch.testing.assert_close(outputs.grad, torch.zeros_like(outputs), rtol=0, atol=1e-9)


def test_a_base_rate_is_finite_without_rows_of_a_class_and_zero_for_a_loss_of_ones_own() -> None:
    found = find_base_rate(cross_entropy, torch.tensor([0, 0, 1, 1]), 3)
    torch.testing.assert_close(found.softmax(dim=0), torch.tensor([4, 4, 1]).double() / 9)
    assert find_base_rate(lambda outputs, _: outputs.sum(dim=1), TARGET, 2).tolist() == [0, 0]
    with pytest.raises(BadTensor, match="labels must be integers from 0 to 1, got 2"):
        find_base_rate(cross_entropy, torch.tensor([0, 2]), 2)
