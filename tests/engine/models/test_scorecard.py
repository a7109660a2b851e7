"""Bins, their weight of evidence and their points, from a table and the first derivative."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import pytest
import torch

from thinwire.base.errors import BadParameter
from thinwire.engine.models.scorecard import Scorecard, ScorecardTop

ROWS = 4000


def make_rows() -> tuple[Any, Any]:
    """A code of seven, two of them rare; a number with gaps that counts; one that bends; noise. And labels."""
    rng = np.random.default_rng(0)
    codes = rng.choice(7, ROWS, p=[0.0, 0.4, 0.3, 0.2, 0.07, 0.02, 0.01])
    table = np.column_stack([codes, rng.normal(size=(ROWS, 3))])
    score = table[:, 1] - 1 + (codes == 2) + table[:, 2] ** 2 / 2
    table[rng.random(ROWS) < 0.1, 1] = np.nan
    return table.astype(np.float32), (rng.random(ROWS) < 1 / (1 + np.exp(-score))).astype(np.int64)


TABLE, LABELS = make_rows()


def fit(weights: Any = 1.0, **settings: Any) -> Scorecard:
    card = Scorecard(4, fields_vocab=[7], **settings)
    weights = np.broadcast_to(weights, LABELS.shape)
    slope = weights * (np.average(LABELS, weights=weights) - LABELS)
    slope *= 1 + 1e-7 * (np.arange(ROWS) % 3)  # as float32 rounds
    card.fit(torch.from_numpy(TABLE), torch.from_numpy(slope.astype(np.float32)).double())
    return card


def weigh(chosen: Any, weights: Any = 1.0, smoothing: float = 1.0) -> float:
    """ln(share of good / share of bad), with a part of an average row on either side."""
    weights = np.broadcast_to(weights, LABELS.shape)
    counts = []
    for label in (0, 1):
        mine = weights * (label == LABELS) / weights[label == LABELS].mean()
        counts.append(((mine * chosen).sum() + smoothing * (label == LABELS).mean()) / mine.sum())
    return float(np.log(counts[0] / counts[1]))


def test_every_bin_has_the_weight_of_evidence_of_its_rows() -> None:
    card = fit()
    encoded = card.encode(torch.from_numpy(TABLE)).numpy()
    total = np.zeros(4)
    for column in range(4):
        for value in np.unique(encoded[:, column]):
            chosen = encoded[:, column] == value
            assert value == pytest.approx(weigh(chosen), abs=1e-6)
            shares = [(chosen & (label == LABELS)).sum() / (label == LABELS).sum() for label in (0, 1)]
            total[column] += (shares[0] - shares[1]) * weigh(chosen)
    np.testing.assert_allclose(card.find_information(), total, rtol=1e-5)
    assert card.counts.sum() == 4 * ROWS
    assert (card.counts == card.counts.round()).all()
    missing = encoded[np.isnan(TABLE[:, 1]), 1]
    assert set(missing) == {missing[0]}  # a bin of their own
    assert missing[0] not in encoded[~np.isnan(TABLE[:, 1]), 1]


def test_numbers_rise_or_fall_from_bin_to_bin_unless_told_otherwise() -> None:
    for column in (1, 2, 3):
        card, free = fit(), fit(monotone=False)
        order = np.argsort(TABLE[~np.isnan(TABLE[:, column]), column])
        there = torch.from_numpy(TABLE[~np.isnan(TABLE[:, column])][order])
        steps = np.diff(card.encode(there)[:, column].numpy())
        assert (steps >= 0).all() or (steps <= 0).all()
        assert card.find_information()[column] <= free.find_information()[column]
    assert free.find_information()[2] > 2 * card.find_information()[2]  # the bend
    assert len({one.slots for one in free.list_bins() if one.column == 2}) == 10


def test_small_bins_are_merged_and_words_that_no_row_had_count_as_rare() -> None:
    card = fit()
    bins = [one for one in card.list_bins() if one.column == 0]
    assert [one.slots for one in bins] == [(0, 5, 6), (1,), (2,), (3,), (4,)]
    strange = torch.tensor([[0.0] * 4, [5.0, 0, 0, 0], [99.0, 0, 0, 0], [-3.0, 0, 0, 0], [torch.nan, 0, 0, 0]])
    assert len(card.encode(strange)[:, 0].unique()) == 1
    assert all(one.good + one.bad >= 0.05 * ROWS for one in fit(bins=60).list_bins() if one.column)
    two = TABLE.copy()
    two[:, 3] = np.where(np.arange(ROWS) % 3, -1e30, 7)  # two values make two bins, whatever the quantiles
    card = Scorecard(4, fields_vocab=[7])
    card.fit(torch.from_numpy(two), torch.from_numpy(LABELS.mean() - LABELS))
    assert card.edges[2].isfinite().sum() == 1


def test_a_bin_without_rows_says_nothing() -> None:
    rows = torch.from_numpy(TABLE).clone()
    rows[:, 1] = 0.5
    card = Scorecard(4, fields_vocab=[7])
    card.fit(rows, torch.from_numpy(LABELS.mean() - LABELS))
    assert not card.encode(torch.tensor([[1.0, torch.nan, 0, 0]]))[0, 1]
    assert card.find_information()[1] == 0


def test_weights_of_rows_count_and_weights_of_classes_cancel() -> None:
    plain, classes = fit(), fit(np.where(LABELS == 1, 5.0, 1.0))
    torch.testing.assert_close(classes.woe, plain.woe)
    torch.testing.assert_close(classes.counts, plain.counts)
    weights = np.random.default_rng(1).uniform(0.5, 3, ROWS)
    card = fit(weights, monotone=False)
    encoded = card.encode(torch.from_numpy(TABLE)).numpy()
    for value in np.unique(encoded[:, 1]):
        assert value == pytest.approx(weigh(encoded[:, 1] == value, weights), abs=1e-5)


def test_points_are_the_score_of_the_log_odds() -> None:
    top = ScorecardTop(base_score=600, base_odds=50, points_to_double_odds=20)
    assert float(top.score(torch.tensor(-log(50)))) == pytest.approx(600)
    assert float(top.score(torch.tensor(-log(100)))) == pytest.approx(620)
    card = fit()
    card.coefficients.copy_(torch.tensor([-1.0, -0.8, 0.0, 0.3]))
    top.intercept.fill_(-1.2)
    rows = torch.from_numpy(TABLE[:50])
    points = [sum(card.score(column, float(one)) for column, one in enumerate(row)) for row in card.encode(rows)]
    expected = top.score(top(card(rows)))[:, 0]
    np.testing.assert_allclose(np.array(points) + top.find_base_points(), expected.detach(), rtol=1e-6)


def test_left_out_columns_are_zeros() -> None:
    card = fit()
    information = card.find_information()
    assert (information < 0.02).tolist() == [False, False, False, True]
    assert card.encode_kept(torch.from_numpy(TABLE)).any(0).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bins": 0}, "bins must be an integer from 1 up"),
        ({"bins": 101}, "bins go up to 100"),
        ({"min_share": 0.6}, "min_share must be at least 0 and at most 0.5"),
        ({"smoothing": 0.0}, "smoothing must be above 0"),
        ({"points_to_double_odds": -1.0}, "points_to_double_odds must be above 0"),
        ({"fields_vocab": [3] * 5}, "5 categories in 4 columns"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadParameter, match=says):
        Scorecard(4, **settings)
