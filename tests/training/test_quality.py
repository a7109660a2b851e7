"""How good answers are, against scikit-learn and by identities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix, r2_score, roc_auc_score

import thinwire as tw
from thinwire.training.quality import count_quality

RNG = np.random.default_rng(3)


def test_binary_answers_as_scikit_learn_counts_them() -> None:
    score, label = RNG.normal(size=500).round(1) + 0.013, RNG.integers(0, 2, 500)  # rounded: there are ties
    for outputs in (torch.tensor(score), torch.tensor(score)[:, None], torch.tensor(np.stack([0 * score, score], 1))):
        found = count_quality(outputs, torch.tensor(label), 7)
        assert found is not None
        assert (found.task, found.rows, found.round) == ("binary", 500, 7)
        assert found.auc == pytest.approx(roc_auc_score(label, score))
        assert np.array_equal(found.confusion, confusion_matrix(label, score > 0))
        share, said = calibration_curve(label, 1 / (1 + np.exp(-score)), n_bins=10)
        assert [one[0] for one in found.calibration] == pytest.approx(said)
        assert [one[1] for one in found.calibration] == pytest.approx(share)
        assert found.roc[0] == (0, 0)
        assert found.roc[-1] == (1, 1)
        assert sorted(found.roc) == list(found.roc)


def test_classes_as_scikit_learn_counts_them() -> None:
    logits, label = RNG.normal(size=(300, 4)), RNG.integers(0, 4, 300)
    found = count_quality(torch.tensor(logits), torch.tensor(label), 1)
    assert found is not None
    assert found.task == "classes"
    assert np.array_equal(found.confusion, confusion_matrix(label, logits.argmax(1)))
    assert sum(count for _, _, count in found.calibration) == 300
    right = sum(share * count for _, share, count in found.calibration) / 300
    assert right == pytest.approx((logits.argmax(1) == label).mean())


def test_a_certain_and_right_model_is_calibrated() -> None:
    label = torch.arange(3).repeat(10)
    found = count_quality(100.0 * torch.nn.functional.one_hot(label).double(), label, 1)
    assert found is not None
    assert found.calibration_error == pytest.approx(0, abs=1e-9)


def test_regression_as_scikit_learn_counts_it() -> None:
    said, truth = RNG.normal(size=400), RNG.normal(size=400)
    found = count_quality(torch.tensor(said)[:, None], torch.tensor(truth), 1)
    assert found is not None
    assert found.task == "regression"
    assert found.errors["r2"] == pytest.approx(r2_score(truth, said))
    assert found.errors["mae"] == pytest.approx(np.abs(truth - said).mean())
    assert sum(count for _, _, count in found.residuals) == 400
    mean = sum(so * count for _, so, count in found.predicted) / 400
    assert mean == pytest.approx(truth.mean())


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([0, 1])),
        (torch.zeros(2, 3, 4), torch.tensor([0, 1])),
        (torch.zeros(3), torch.tensor([0, 1])),
    ],
)
def test_what_cannot_be_counted_is_left_out(outputs: torch.Tensor, labels: torch.Tensor) -> None:
    assert count_quality(outputs, labels, 1) is None


def test_labels_of_one_class_have_no_roc() -> None:
    found = count_quality(torch.randn(20), torch.ones(20).long(), 1)
    assert found is not None
    assert found.roc == ()
    assert found.auc is None


def test_one_row_of_a_regression() -> None:
    found = count_quality(torch.tensor([1.5]), torch.tensor([2.25]), 1)
    assert found is not None
    assert found.errors == {"rmse": 0.75, "mae": 0.75}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_counts_and_years_are_quantities_whatever_their_type(dtype: torch.dtype) -> None:
    truth = torch.tensor([3, 7, 0, 1, 12, 5], dtype=dtype)
    found = count_quality(truth.float()[:, None] + 1, truth, 1)
    assert found is not None
    assert (found.task, found.errors["mae"]) == ("regression", 1)


def test_a_regression_on_whole_numbers_ends_with_its_quality() -> None:
    """Even where the test rows hold nothing but 0 and 1: the loss says what it is."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) * 4).round().long() + 40
    party = tw.FeatureParty("bank", x, torch.nn.Linear(3, 2), test_features=x[:8])
    for test_labels in (y[:8], torch.arange(8) % 2):
        label = tw.LabelParty("clinic", y, torch.nn.Linear(2, 1), test_labels, loss=tw.losses.squared_error)
        job = tw.Job([party], label, tw.methods.svfl(), tw.SGD(0.01), epochs=1, batch_size=8, metrics=["mae"])
        result = tw.train(job, callbacks=[])
        assert result.record is not None
        assert result.record.quality is not None
        assert result.record.quality.task == "regression"
