"""A credit scorecard over the columns of several parties: bins, their weight of evidence, a regression of it, points.

feature party                                  label party
zeros, in the first exchange             --->  the intercept alone: p, the share of bad rows
each bin's good and bad rows             <---  dL/dh = p - y of every row: its sign is the label
weight of evidence and information value
        ... from here on the regression of these columns: models/regression.py ...

Label 1 is the bad outcome. The weight of evidence (WoE) of a bin is ln(its share of all good rows / its share of all
bad rows), a column's information value (IV) the sum of (share of good - share of bad) * WoE over its bins (Siddiqi,
2006). A row's score is the sum of all parties' points: the label party's base points, and those of a bin a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadParameter
from thinwire.base.types import Round
from thinwire.engine.compress.parameters import require_number, require_size, require_sizes
from thinwire.engine.models.networks import flat_rows
from thinwire.engine.models.regression import Linear, RegressionTop

__all__ = ["Scorecard", "ScorecardTop"]

_CHUNK = 1 << 16  # rows that are looked at at once
POINTS_TO_DOUBLE_ODDS = 20.0
_SAME = 1e-6
_MOST_BINS = 100
_MOST_CODES = 1 << 20

Doubles = NDArray[np.float64]
Groups = list[list[int]]  # slots that are one bin


@dataclass(frozen=True)
class Bin:
    """Some values of a column, as slots: codes, or places between edges, of which the last is for missing values."""

    column: int
    slots: tuple[int, ...]
    good: float  # rows, or their weight
    bad: float
    woe: float
    iv: float  # its part of the column's


class Scorecard(Linear):
    """WoE(x) b: one output per row, under a `ScorecardTop`. Columns stay as they are, with missing values.

    Numbers fall into quantile bins. Bins that are too small, or hold one class only, are merged: numbers with a
    neighbour, categories with each other. The first columns, as many as `fields_vocab` has entries, hold category
    codes.

    Args:
        in_features: number of columns.
        bins: quantile bins per numeric column.
        min_share: smallest bin, as a fraction of the rows.
        monotone: merge until the WoE of a numeric column only rises or only falls.
        min_iv: columns with a lower information value are left out.
        smoothing: number of average rows added to every bin.
        points_to_double_odds: points that double the odds of a good row; the same as the top model's.
        l2: ridge penalty of the coefficients.
        inference: standard errors and p-values of the coefficients, at the end.
        fields_vocab: number of categories of each of the first columns.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> tw.learners.Scorecard(3, bins=5).in_features
        3
    """

    accepts_gaps: ClassVar[bool] = True

    def __init__(
        self,
        in_features: int,
        *,
        bins: int = 10,
        min_share: float = 0.05,
        monotone: bool = True,
        min_iv: float = 0.02,
        smoothing: float = 1.0,
        points_to_double_odds: float = POINTS_TO_DOUBLE_ODDS,
        l2: float = 0.0,
        inference: bool = False,
        fields_vocab: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, l2=l2, inference=inference)
        self.bins = require_size(self, "bins", bins)
        self.min_share = require_number(self, "min_share", min_share, at_least=0, at_most=0.5)
        self.monotone = bool(monotone)
        self.min_iv = require_number(self, "min_iv", min_iv, at_least=0)
        self.smoothing = require_number(self, "smoothing", smoothing, above=0)
        self.points_to_double_odds = require_number(self, "points_to_double_odds", points_to_double_odds, above=0)
        self.fields_vocab = require_sizes(self, "fields_vocab", fields_vocab)
        numbers = self.in_features - len(self.fields_vocab)
        if numbers < 0 or self.bins > _MOST_BINS or max(self.fields_vocab, default=0) > _MOST_CODES:
            raise BadParameter(
                f"Scorecard: bins go up to {_MOST_BINS}, fields_vocab to {_MOST_CODES} codes for each of the first "
                f"columns; got bins={self.bins} and {len(self.fields_vocab)} categories in {self.in_features} columns"
            )
        sizes = [*self.fields_vocab, *[self.bins + 1] * numbers]  # slots of each column
        self._ends = list(accumulate(sizes))
        starts = [end - size for end, size in zip(self._ends, sizes, strict=True)]
        self.register_buffer("starts", torch.tensor(starts), persistent=False)
        self.register_buffer("sizes", torch.tensor(self.fields_vocab, dtype=torch.int64), persistent=False)
        self.register_buffer("edges", torch.full((numbers, self.bins - 1), torch.inf))  # a bin reaches up to its edge
        self.register_buffer("groups", torch.arange(self._ends[-1]))  # the first slot of the bin that a slot is in
        self.register_buffer("counts", torch.zeros(self._ends[-1], 2, dtype=torch.float64))  # good and bad, by slot
        self.register_buffer("woe", torch.zeros(self._ends[-1]))

    starts: Tensor
    sizes: Tensor
    edges: Tensor
    groups: Tensor
    counts: Tensor
    woe: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[B, columns] -> [B, 1]."""
        return super().forward(self.encode(x))

    def encode(self, x: Tensor) -> Tensor:
        """The weight of evidence of every cell, [B, columns]."""
        return self.woe[self._locate(x)]

    def _locate(self, x: Tensor) -> Tensor:
        """The slot of every cell; codes beyond the vocabulary count as code 0."""
        table = flat_rows(self, x, self.in_features)
        codes, numbers = table.tensor_split([len(self.fields_vocab)], dim=1)
        known = torch.where((codes >= 0) & (codes < self.sizes), codes, torch.zeros_like(codes)).long()
        above = torch.zeros_like(numbers, dtype=torch.int64)
        for edge in self.edges.unbind(1):
            above = above + (numbers > edge)
        places = torch.where(numbers.isnan(), torch.full_like(above, self.bins), above)
        return torch.cat([known, places], dim=1) + self.starts

    # From rows and their first derivative ------------------------------------------------------------------------

    def fit(self, features: Tensor, slope: Tensor) -> None:
        """Bins of these rows; `slope` is dL/dh of each row's loss where there is nothing but an intercept."""
        self._place_edges(features)
        self.counts.copy_(torch.from_numpy(self._count(features, slope)))
        for column, counts in enumerate(self._split_counts()):
            start, is_number = int(self.starts[column]), column >= len(self.fields_vocab)
            for group in self._group_numbers(counts) if is_number else self._group_codes(counts):
                slots = torch.tensor(group) + start
                self.groups[slots] = int(slots[0])
                self.woe[slots] = float(self._weigh(counts[group].sum(0)))

    def encode_kept(self, features: Tensor) -> Tensor:
        """The weight of evidence of all rows; zeros in columns that are left out."""
        kept = (self.find_information() >= self.min_iv).to(self.woe)
        parts = [kept * self.encode(features[start : start + _CHUNK]) for start in range(0, len(features), _CHUNK)]
        return torch.cat(parts)

    def _place_edges(self, features: Tensor) -> None:
        """At quantiles, each of them a row's own value."""
        self.edges.fill_(torch.inf)
        shares = np.arange(1, self.bins) / self.bins
        for column, edges in enumerate(self.edges, start=len(self.fields_vocab)):
            values = features[:, column].cpu().numpy()
            there = values[~np.isnan(values)]
            if len(there) and len(shares):
                found = np.unique(np.quantile(there, shares, method="inverted_cdf"))
                found = found[found < there.max()]
                edges[: len(found)] = torch.from_numpy(found.astype(np.float32))

    def _count(self, features: Tensor, slope: Tensor) -> Doubles:
        """Good and bad rows of each slot; weighted rows count by their weight, 1 on average in their class."""
        size, is_bad = slope.abs().cpu().numpy(), (slope < 0).cpu().numpy()
        weights = np.stack([np.where(is_bad, 0.0, size), np.where(is_bad, size, 0.0)])
        weights *= (np.array([(~is_bad).sum(), is_bad.sum()]) / weights.sum(1))[:, None]
        weights[np.abs(weights - 1) < _SAME] = 1.0  # p - y of rows that weigh the same, but for its last bits
        found = np.zeros((self._ends[-1], 2))
        for start in range(0, len(features), _CHUNK):
            slots = self._locate(features[start : start + _CHUNK]).T.cpu().numpy()
            for kind, weight in enumerate(weights[:, start : start + _CHUNK]):
                tiled = np.broadcast_to(weight, slots.shape).ravel()
                found[:, kind] += np.bincount(slots.ravel(), tiled, minlength=len(found))
        return found

    def _group_codes(self, counts: Doubles) -> Groups:
        """Each code a bin; rare ones, unseen among them, together."""
        small = self._find_small(counts)
        rare = np.flatnonzero(small).tolist()
        return [*([rare] if rare else []), *([slot] for slot in np.flatnonzero(~small).tolist())]

    def _group_numbers(self, counts: Doubles) -> Groups:
        """Neighbours together; missing values have a bin of their own."""
        groups = [[slot] for slot in range(self.bins)]
        while len(groups) > 1:
            sums = np.stack([counts[one].sum(0) for one in groups])
            small = self._find_small(sums)
            if not small.any():
                break
            place = int(np.where(small, sums.sum(1), np.inf).argmin())
            near = [other for other in (place - 1, place + 1) if 0 <= other < len(groups)]
            rate = _find_rate(sums[place])
            first = min(place, min(near, key=lambda other: abs(_find_rate(sums[other]) - rate)))
            groups[first : first + 2] = [groups[first] + groups[first + 1]]
        if self.monotone:
            groups = max((_pool(groups, counts, sign) for sign in (1, -1)), key=lambda one: self._inform(counts, one))
        return [*groups, [self.bins]]

    def _find_small(self, counts: Doubles) -> NDArray[np.bool_]:
        """Which of these bins have too few rows, or rows of one class."""
        found: NDArray[np.bool_] = (counts.sum(1) < self.min_share * self._total.sum()) | (counts.min(1) <= 0)
        return found

    def _inform(self, counts: Doubles, groups: Groups) -> float:
        """The information value of these bins."""
        sums = np.stack([counts[group].sum(0) for group in groups])
        return float((sums / self._total @ [1, -1] * self._weigh(sums)).sum())

    def _weigh(self, counts: Doubles) -> Doubles:
        """The weight of evidence of [..., 2] good and bad rows; 0 where there are none."""
        good, bad = np.moveaxis(counts + self.smoothing * self._total / self._total.sum(), -1, 0)
        found: Doubles = np.log(good / bad) - np.log(self._total[0] / self._total[1])
        return found

    @property
    def _total(self) -> Doubles:
        """Good and bad rows of all, which every column's slots hold."""
        found: Doubles = self._split_counts()[0].sum(0)
        return found

    def _split_counts(self) -> list[Doubles]:
        """By column."""
        return np.split(self.counts.cpu().numpy(), self._ends[:-1])

    # What was found ----------------------------------------------------------------------------------------------

    def list_bins(self) -> Iterator[Bin]:
        """Of all columns in order; those that no row was in are left out."""
        groups, total = self.groups.tolist(), self._total
        for column, counts in enumerate(self._split_counts()):
            start = int(self.starts[column])
            slots: dict[int, list[int]] = {}
            for slot in range(len(counts)):
                slots.setdefault(groups[start + slot], []).append(slot)
            for first, mine in slots.items():
                rows, woe = counts[mine].sum(0), float(self.woe[first])
                if rows.any():
                    good, bad = rows.tolist()
                    yield Bin(column, tuple(mine), good, bad, woe, float(rows / total @ [1, -1]) * woe)

    def find_information(self) -> Tensor:
        """The information value of every column."""
        found = torch.zeros(self.in_features, dtype=torch.float64)
        for one in self.list_bins():
            found[one.column] += one.iv
        return found

    def score(self, column: int, woe: float) -> float:
        """Points of a cell: the less its odds of being bad, the more."""
        return 0.0 - find_factor(self.points_to_double_odds) * float(self.coefficients[column]) * woe


def _find_rate(counts: Doubles) -> float:
    """Of bad rows."""
    return float(counts[1] / max(counts.sum(), 1e-300))


def _pool(groups: Groups, counts: Doubles, sign: int) -> Groups:
    """Adjacent bins together until the rate of bad rows rises, or falls, from each to the next."""
    found: Groups = []
    for group in groups:
        found.append(group)
        while len(found) > 1:
            before, last = (sign * _find_rate(counts[one].sum(0)) for one in found[-2:])
            if before < last:
                break
            found[-2:] = [found[-2] + found[-1]]
    return found


def find_factor(points_to_double_odds: float) -> float:
    """Points for each unit of log-odds."""
    return points_to_double_odds / log(2)


class ScorecardTop(RegressionTop):
    """h + intercept, and the scale of points.

    score = base_score + factor * (ln(odds of good) - ln(base_odds)), factor = points_to_double_odds / ln 2.

    Args:
        base_score: score of a row whose odds of being good are `base_odds`.
        base_odds: good rows per bad row at the base score.
        points_to_double_odds: points that double the odds.
        l2: ridge penalty of all coefficients.
        tolerance: the run ends once no coefficient changes by more than this fraction of the largest.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> import math, torch
        >>> odds_of_bad = torch.tensor([[-math.log(50)]])
        >>> round(tw.learners.ScorecardTop().score(odds_of_bad).item())
        600
    """

    first_direction: ClassVar[Round] = 1  # in round 0 bins are counted

    def __init__(
        self,
        *,
        base_score: float = 600.0,
        base_odds: float = 50.0,
        points_to_double_odds: float = POINTS_TO_DOUBLE_ODDS,
        l2: float = 0.0,
        tolerance: float = 1e-5,
    ) -> None:
        super().__init__(l2=l2, tolerance=tolerance)
        self.base_score = require_number(self, "base_score", base_score)
        self.base_odds = require_number(self, "base_odds", base_odds, above=0)
        self.points_to_double_odds = require_number(self, "points_to_double_odds", points_to_double_odds, above=0)

    def score(self, outputs: Tensor) -> Tensor:
        """Scores of rows with these outputs, log-odds of being bad."""
        return self.base_score - find_factor(self.points_to_double_odds) * (outputs + log(self.base_odds))

    def find_base_points(self) -> float:
        """What every row begins with: the score where all parties' outputs are 0."""
        return float(self.score(self.intercept.detach().double()))
