"""Metrics agree with scikit-learn."""

from __future__ import annotations

from math import inf, isnan, nan

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
from torch import Tensor

from thinwire.base.errors import BadInput, BadParameter, BadTensor
from thinwire.engine.models import METRICS, metric
from thinwire.engine.models.metrics import find_different, try_metric


def binary(seed: int, rows: int = 300, grid: float = 4.0) -> tuple[Tensor, Tensor]:
    """Logits on a coarse grid, so that many of them tie."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (rows,), generator=rng)
    logits = (torch.randn(rows, generator=rng) + labels) * grid
    return logits.round() / grid, labels


def multiclass(seed: int, rows: int = 300, classes: int = 12) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, classes, generator=rng), torch.randint(0, classes, (rows,), generator=rng)


def compute(name: str, outputs: Tensor, labels: Tensor) -> float:
    return metric(name).compute(outputs, labels)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("grid", [1.0, 4.0, 1000.0])
def test_binary_metrics(seed: int, grid: float) -> None:
    z, y = binary(seed, grid=grid)
    guess = z > 0
    expected = {
        "accuracy": reference.accuracy_score(y, guess),
        "auc": reference.roc_auc_score(y, z),
        "f1": reference.f1_score(y, guess),
        "log_loss": reference.log_loss(y, z.double().sigmoid()),
    }
    both = torch.stack([torch.zeros_like(z), z], dim=1)
    for name, value in expected.items():
        for outputs in (z, z[:, None], both, z.double()):
            for labels in (y, y.float(), y[:, None]):
                assert compute(name, outputs, labels) == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("seed", range(5))
def test_multiclass_metrics(seed: int) -> None:
    z, y = multiclass(seed)
    assert compute("accuracy", z, y) == reference.accuracy_score(y, z.argmax(dim=1))
    assert compute("accuracy@5", z, y) == reference.top_k_accuracy_score(y, z, k=5)
    probabilities = z.double().softmax(dim=1)
    assert compute("log_loss", z, y) == pytest.approx(reference.log_loss(y, probabilities), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_regression_metrics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.normal(3, 2, 200)
    x = y + rng.normal(0, 1, 200)
    outputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    for name, score in (
        ("mse", reference.mean_squared_error),
        ("mae", reference.mean_absolute_error),
        ("r2", reference.r2_score),
    ):
        assert compute(name, outputs, labels) == pytest.approx(score(y, x), abs=1e-12)
        assert compute(name, outputs[:, None], labels[:, None]) == compute(name, outputs, labels)


@pytest.mark.parametrize("seed", range(3))
def test_auc_counts_pairs_exactly(seed: int) -> None:
    z, y = binary(seed, rows=60, grid=1.0)
    above, below = z[y == 1][:, None], z[y == 0][None, :]
    pairs = 2 * int((above > below).sum()) + int((above == below).sum())
    assert compute("auc", z, y) == pairs / (2 * above.numel() * below.numel())
    assert compute("auc", torch.zeros_like(z), y) == 0.5


def test_ties_among_classes_go_to_the_first() -> None:
    flat = torch.zeros(8, 8)
    assert compute("accuracy", flat, torch.arange(8)) == 1 / 8
    assert compute("accuracy@5", flat, torch.arange(8)) == 5 / 8
    assert compute("accuracy", torch.zeros(4), torch.tensor([0, 0, 0, 1])) == 0.75


def test_f1_without_positives_is_zero() -> None:
    z = torch.tensor([-1.0, -2.0])
    for outputs, labels in ((z, [0, 0]), (z, [1, 0]), (-z, [0, 0])):
        assert compute("f1", outputs, torch.tensor(labels)) == 0.0


def test_r2_of_constant_labels_is_scikit_learns() -> None:
    y = torch.full((3,), 2.0)
    for x in (y, y + 1):
        assert compute("r2", x, y) == reference.r2_score(y, x)


def test_large_logits_do_not_overflow() -> None:
    z = torch.tensor([1000.0, -1000.0])
    assert compute("log_loss", z, torch.tensor([1, 0])) == 0
    assert compute("log_loss", z, torch.tensor([0, 0])) == 500
    wide = torch.tensor([[1000.0, 0.0, -1000.0]])
    assert compute("log_loss", wide, torch.tensor([2])) == 2000
    assert compute("log_loss", torch.tensor([inf]), torch.tensor([0])) == inf


@pytest.mark.parametrize("name", METRICS)
def test_outputs_with_nan_give_nan(name: str) -> None:
    outputs = torch.tensor([[nan, 1.0]] * 2) if name == "accuracy@5" else torch.tensor([nan, 1.0])
    assert isnan(compute(name, outputs, torch.tensor([0, 1])))


@pytest.mark.parametrize("value", [0, 1])
def test_auc_needs_both_classes(value: int) -> None:
    with pytest.raises(BadInput, match=f"AUC needs both classes: all 4 rows have class {value}"):
        compute("auc", torch.randn(4), torch.full((4,), value))


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "message"),
    [
        ("accuracy", torch.zeros(3), torch.zeros(2), r"outputs of shape \(3,\) do not fit labels"),
        ("accuracy", torch.zeros(0), torch.zeros(0), "B at least 1"),
        ("accuracy", torch.zeros(3), torch.tensor([-1, 1, 1]), "integers from 0 to 1, got -1"),
        ("accuracy", torch.zeros(2, 3), torch.tensor([0, 3]), "integers from 0 to 2, got 3"),
        ("accuracy@5", torch.zeros(2), torch.zeros(2), "accuracy@5 needs one logit per class"),
        ("accuracy@5", torch.zeros(2, 6), torch.zeros(2, 2), "accuracy@5: outputs of shape"),
        ("auc", torch.zeros(2, 3), torch.tensor([0, 1]), "auc is for two classes, the outputs have 3"),
        ("f1", torch.zeros(2, 3), torch.tensor([0, 1]), "f1 is for two classes"),
        ("mse", torch.zeros(2, 3), torch.zeros(2), "mse is for one prediction per row"),
        ("mae", torch.zeros(2), torch.tensor([nan, 0.0]), "the labels hold NaN"),
    ],
)
def test_wrong_input_is_named(name: str, outputs: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(BadTensor, match=message):
        compute(name, outputs, labels)


def test_names_and_directions() -> None:
    assert [name for name, entry in METRICS.items() if not entry.higher_is_better] == ["log_loss", "mse", "mae"]
    assert all(metric(name).name == name for name in METRICS)
    with pytest.raises(BadParameter, match=r"metric 'acuracy' is not one of accuracy, .*mean 'accuracy'\?"):
        metric("acuracy")
    with pytest.raises(BadParameter, match=r"is not one of accuracy, accuracy@5, auc, f1, log_loss.*r2$"):
        metric("zzz")


def test_a_metric_is_tried_on_each_label_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.engine.models.metrics._SORTED", 4)
    labels = torch.tensor([1, 0, 1, 1, 0, 2, 1, 0, 1])
    assert find_different(labels).tolist() == [0, 1, 2]
    try_metric("auc", torch.zeros(1), labels.clamp(max=1))
    with pytest.raises(BadInput, match="all 9 rows have class 1"):
        try_metric("auc", torch.zeros(1), torch.ones(9, dtype=torch.long))
    with pytest.raises(BadInput, match="from 0 to 1, got 2"):
        try_metric("accuracy", torch.zeros(1, 2), labels)
