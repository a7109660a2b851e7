"""How good answers are, against scikit-learn and by identities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    brier_score_loss,
    classification_report,
    confusion_matrix,
    f1_score,
    log_loss,
    precision_score,
    r2_score,
    recall_score,
    roc_auc_score,
)

import thinwire as tw
from report.records import small_job
from thinwire.report.record import DecisionThreshold
from thinwire.training.quality import assess_quality, count_quality, recommend_threshold

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


# What a bank looks at ---------------------------------------------------------------------------------------


def a_binary_model() -> tuple[np.ndarray, np.ndarray]:
    label = (RNG.random(1000) < 0.2).astype(int)
    return label * 1.3 + RNG.normal(size=1000) - 1.5, label


def test_scores_of_two_classes_as_scikit_learn_and_scipy_count_them() -> None:
    score, label = a_binary_model()
    found = count_quality(torch.tensor(score), torch.tensor(label), 1)
    chance = 1 / (1 + np.exp(-score))
    assert found is not None
    assert found.gini == pytest.approx(2 * roc_auc_score(label, score) - 1)
    assert found.ks == pytest.approx(ks_2samp(score[label == 1], score[label == 0]).statistic)
    assert found.brier == pytest.approx(brier_score_loss(label, chance))
    assert found.log_loss == pytest.approx(log_loss(label, chance))
    assert found.class_counts == ((label == 0).sum(), label.sum())
    assert found.headline.keys() == {"auc", "gini", "ks", "brier", "log_loss"}


def test_lift_and_gains_by_decile() -> None:
    score, label = a_binary_model()
    found = count_quality(torch.tensor(score), torch.tensor(label), 1)
    assert found is not None
    best_first = label[np.argsort(-score)].reshape(10, 100)
    assert [one.rows for one in found.lift] == [100] * 10
    assert [one.rate for one in found.lift] == pytest.approx(best_first.mean(axis=1))
    assert [one.lift for one in found.lift] == pytest.approx(best_first.mean(axis=1) / label.mean())
    assert [one.gain for one in found.lift] == pytest.approx(best_first.sum(axis=1).cumsum() / label.sum())


def test_a_model_that_says_the_same_of_every_row_has_no_lift_whatever_the_order_of_the_rows() -> None:
    found = count_quality(torch.zeros(100), (torch.arange(100) < 30).long(), 1)
    assert found is not None
    assert [one.lift for one in found.lift] == pytest.approx([1] * 10)
    assert (found.ks, found.gini) == (0, 0)


@pytest.mark.parametrize("shift", [0.0, -4.0, 6.0])
def test_the_threshold_table_as_scikit_learn_counts_it(shift: float) -> None:
    score, label = a_binary_model()
    found = count_quality(torch.tensor(score + shift), torch.tensor(label), 1)
    assert found is not None
    assert 6 <= len(found.thresholds) <= 12
    assert sum(0.005 < one.flagged < 0.95 for one in found.thresholds) >= 6, "rare and frequent classes have some"
    for one in found.thresholds:
        flagged = 1 / (1 + np.exp(-score - shift)) > one.threshold
        assert one.flagged == pytest.approx(flagged.mean())
        assert one.precision == (pytest.approx(precision_score(label, flagged)) if flagged.any() else None)
        assert one.recall == pytest.approx(recall_score(label, flagged))
        assert one.f1 == pytest.approx(f1_score(label, flagged))
        assert one.specificity == pytest.approx(recall_score(label, flagged, pos_label=0))


def test_the_threshold_is_chosen_on_validation_rows_or_said_not_to_be() -> None:
    score, label = a_binary_model()
    test, chosen_on = slice(500), slice(500, None)
    plain = count_quality(torch.tensor(score[test]), torch.tensor(label[test]), 1)
    assert plain is not None
    assert plain.threshold == DecisionThreshold(value=0.5, chosen_by=None, rows=0)
    threshold = recommend_threshold(torch.tensor(score[chosen_on]), torch.tensor(label[chosen_on]))
    assert threshold is not None
    assert (threshold.chosen_by, threshold.rows) == ("f1", 500)
    chance = 1 / (1 + np.exp(-score[chosen_on]))
    best = max(f1_score(label[chosen_on], chance >= cut) for cut in chance)
    reached = f1_score(label[chosen_on], chance > threshold.value)
    assert best - 0.02 < reached <= best
    found = count_quality(torch.tensor(score[test]), torch.tensor(label[test]), 1, threshold=threshold)
    assert found is not None
    assert found.threshold == threshold
    assert threshold.value in [one.threshold for one in found.thresholds]
    assert recommend_threshold(torch.randn(50, 3), torch.arange(50) % 3) is None


def test_a_label_party_gives_its_validation_rows_to_the_threshold() -> None:
    score, label = map(torch.tensor, a_binary_model())
    party = tw.LabelParty("shop", label, torch.nn.Linear(1, 1), label, loss=tw.losses.binary_cross_entropy)
    found = assess_quality(score, party, 3, validation=(score, label))
    assert found is not None
    assert found.threshold == recommend_threshold(score, label)
    alone = assess_quality(score, party, 3)
    assert alone is not None
    assert alone.threshold == DecisionThreshold()


def test_no_row_has_a_decile_of_its_own() -> None:
    """Nor is a threshold a row's own probability: figures over a few rows would tell of single ones."""
    for rows in (1, 4, 9, 12, 49):
        score = torch.randn(rows, generator=torch.Generator().manual_seed(rows))
        label = (torch.arange(rows) % 2).long()
        found = count_quality(score, label, 1)
        assert found is not None
        assert all(one.rows >= 5 for one in found.lift)
        assert not {one.threshold for one in found.thresholds} & set(torch.sigmoid(score.double()).tolist())
        values = count_quality(score, label + 0.5, 1)
        assert values is not None
        assert all(one.rows >= 5 for one in values.deciles)
        assert all(count >= 5 for _, _, count in values.predicted)


def test_each_class_as_scikit_learn_counts_it() -> None:
    logits, label = RNG.normal(size=(300, 4)), RNG.integers(0, 3, 300)  # the last class has no rows
    found = count_quality(torch.tensor(logits), torch.tensor(label), 1)
    assert found is not None
    table = classification_report(label, logits.argmax(1), labels=range(4), output_dict=True, zero_division=0)
    for number, one in enumerate(found.per_class):
        row = table[str(number)]
        assert (one.precision, one.recall, one.f1) == pytest.approx(
            (row["precision"], row["recall"], row["f1-score"])
        )
        assert one.rows == row["support"]
    assert found.class_counts == tuple(np.bincount(label, minlength=4))
    assert found.macro["macro_f1"] == pytest.approx(f1_score(label, logits.argmax(1), average="macro"))
    assert found.macro["accuracy"] == pytest.approx((logits.argmax(1) == label).mean())


def test_error_by_decile_of_prediction() -> None:
    said, truth = RNG.normal(size=400), RNG.normal(size=400)
    found = count_quality(torch.tensor(said), torch.tensor(truth), 1)
    assert found is not None
    order = np.argsort(said).reshape(10, 40)
    error = (truth - said)[order]
    assert [one.rmse for one in found.deciles] == pytest.approx(np.sqrt((error**2).mean(axis=1)))
    assert [one.mae for one in found.deciles] == pytest.approx(np.abs(error).mean(axis=1))
    assert [one.prediction for one in found.deciles] == pytest.approx(said[order].mean(axis=1))
    assert [one.label for one in found.deciles] == pytest.approx(truth[order].mean(axis=1))


def test_a_run_ends_with_the_main_figures_in_its_summary() -> None:
    result = tw.train(small_job(), callbacks=[])
    assert result.summary()["quality"]["gini"] == pytest.approx(2 * result.summary()["quality"]["auc"] - 1)
