"""Linear, logistic and Poisson regression over the columns of several parties, exact on all rows.

feature party                                   label party
u = X v along a new direction v           --->  the least loss over all parties' directions so far and an intercept
the next v                                <---  dL/dh there, for every row
coefficients = V c                        <---  c: how much each of this party's directions counts

A party's next direction is its own Newton step, made orthogonal to those before: a block Krylov method. Directions
span all columns after as many exchanges as the widest party has columns, so that it ends surely, usually long before.
Derivatives only choose directions: noise or rounding on them costs exchanges, not exactness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.base.types import Round
from thinwire.engine.compress.parameters import require_number, require_size
from thinwire.engine.models.losses import binary_cross_entropy, poisson, squared_error
from thinwire.engine.models.networks import check_input, flat_rows

__all__ = ["Linear", "RegressionTop"]

REGRESSION_LOSSES = (binary_cross_entropy, squared_error, poisson)
_CHUNK = 1 << 16  # rows that are looked at in double precision at once
_ALIASED = 1e-10  # of a column's variance: what is left of it when earlier columns are known
_FLAT = 1e-4  # second derivative along a direction of deviation 1: its standard error would be over 100 logits
_MOST_STEPS = 100  # of Newton; a finite optimum takes about ten
_LEAST_FALL = 1e-18  # of the loss a row, that a step still promises
_LEAST_CURVATURE = 1e-3
_SEPARATED = (
    "the columns together separate some rows perfectly (perfect separation), so the loss has no finite optimum and "
    "the coefficients would grow without bound; set the same l2 above 0, such as 1.0, at every party and in the "
    "top model, or leave columns out"
)


class Outcome(IntEnum):
    """Of the question for standard errors. The numbers are on the wire and in models: add, never change."""

    NOT_ASKED = 0
    KNOWN = 1
    DECLINED = 2  # by another party
    PENALISED = 3
    WEIGHTED = 4
    UNSETTLED = 5
    DISTURBED = 6  # labels were changed by a defence


class Facts(NamedTuple):
    """What a party knows of the fit that its coefficients come from."""

    loss: float = 0  # the place among REGRESSION_LOSSES, from 1; 0: nothing was fitted yet
    settled: float = 0
    outcome: float = Outcome.NOT_ASKED
    freedom: float = 0  # degrees of freedom of the residuals; 0 where estimates are taken to be normal


RowLoss = Callable[[Tensor, slice], Tensor]  # (outputs, which rows) -> a loss a row


class Linear(nn.Module):
    """X b: one output per row, no bias; together with `RegressionTop`, which adds the intercept, an exact regression.

    `l2` adds l2 / 2 |b|^2 to the sum of the rows' losses; it is the same at all parties and in the top model.
    `inference` asks for standard errors: at the end the label party is sent the rest of the columns' directions.

    Args:
        in_features: columns of the party.
        l2: ridge penalty.
        inference: standard errors and p-values too.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.learners.Linear(4, l2=1.0).coefficients.shape
        torch.Size([4])
    """

    def __init__(self, in_features: int, *, l2: float = 0.0, inference: bool = False) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.l2 = require_number(self, "l2", l2, at_least=0)
        self.inference = bool(inference)
        self.register_buffer("coefficients", torch.zeros(self.in_features, dtype=torch.float64))
        self.register_buffer("errors", torch.zeros(self.in_features, dtype=torch.float64))  # 0: not known
        self.register_buffer("facts", torch.zeros(4, dtype=torch.float64))  # as `Facts` reads them

    coefficients: Tensor
    errors: Tensor
    facts: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, 1]."""
        outputs = flat_rows(self, x, self.in_features).double() @ self.coefficients
        return outputs.to(torch.float32)[:, None]


class RegressionTop(nn.Module):
    """h + intercept: [B, 1] -> [B, 1]. The label party fits it, and the step of every party's coefficients, exactly.

    Args:
        l2: ridge penalty of all coefficients.
        tolerance: the run ends once no coefficient changes by more than this fraction of the largest.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> tw.learners.RegressionTop(l2=0.1).intercept.item()
        0.0
    """

    first_direction: ClassVar[Round] = 0  # the round in which parties first send one

    def __init__(self, *, l2: float = 0.0, tolerance: float = 1e-5) -> None:
        super().__init__()
        self.l2 = require_number(self, "l2", l2, at_least=0)
        self.tolerance = require_number(self, "tolerance", tolerance, above=0)
        self.intercept = nn.Parameter(torch.zeros(1), requires_grad=False)  # no optimiser's
        self.register_buffer("facts", torch.zeros(4, dtype=torch.float64))  # as `Linear`
        self.register_buffer("error", torch.zeros(1, dtype=torch.float64))  # the intercept's; 0: not known

    facts: Tensor
    error: Tensor

    def forward(self, h: Tensor) -> Tensor:
        check_input(self, h, 1)
        return h + self.intercept


# At a party that has columns --------------------------------------------------------------------------------------


class DirectionSearch:
    """Directions of a party's columns, each of them orthogonal to those before.

    Without a penalty columns count in their deviations, and those that follow from earlier ones are left out, as R
    does; with one they count as they are, as the penalty does.
    """

    def __init__(self, features: Tensor, l2: float) -> None:
        self._features = features
        self._l2 = l2
        ones = torch.ones(len(features), dtype=torch.float64, device=features.device)
        self._mean = torch.stack([x.sum(0) for _, x in _split(features)]).sum(0) / len(features)
        scatter = self._sum_products(ones, ones)[0] / len(features)
        variance = scatter.diagonal()
        varies = variance > 1e-12 * (variance + self._mean.square())
        deviation = torch.where(varies, variance, torch.ones_like(variance)).sqrt()
        self.kept = varies if l2 else _find_independent(scatter / torch.outer(deviation, deviation), varies)
        self._scale = (torch.ones_like(deviation) if l2 else 1 / deviation)[self.kept]
        # The first direction is the columns' principal component: nothing is known of the labels yet.
        self.restore(torch.linalg.eigh(self._rescale(scatter))[1][:, -1:], True)

    def restore(self, found: Tensor, is_new: bool) -> None:
        self.found = found.to(self._features.device)  # [columns that are kept, directions]
        self.is_new = is_new  # the last one has not been sent yet

    def embed(self, direction: Tensor) -> Tensor:
        """All rows along a direction, [N, 1]."""
        coefficients = self.to_coefficients(direction)
        return torch.cat([(x @ coefficients).float() for _, x in _split(self._features)])[:, None]

    def embed_next(self) -> Tensor:
        """Along the direction that was found last; zeros where there is no new one."""
        if self.is_new:
            return self.embed(self.found[:, -1])
        return self._features.new_zeros(len(self._features), 1, dtype=torch.float32)

    def find_next(self, slope: Tensor, curvature: Tensor) -> None:
        """From dL/dh of each row's loss, and d2L/dh2: the Newton step of these columns while all others rest."""
        products, gradient = self._sum_products(curvature, slope)
        metric = self._rescale(products)
        metric.diagonal().add_(self._l2 + 1e-12 * metric.trace())  # rows where a column varies may weigh nothing
        # What earlier directions could still reach was reached by the fit; a penalty's gradient lies along them.
        step = torch.linalg.solve(metric, -self._remove_found(self._scale * gradient[self.kept]))
        fresh = self._remove_found(self._remove_found(step))
        self.is_new = self.found.shape[1] < len(step) and bool(fresh.norm() > 1e-8 * step.norm())
        if self.is_new:
            self.found = torch.cat([self.found, (fresh / fresh.norm())[:, None]], dim=1)

    def complete(self) -> Tensor:
        """All directions: those that were found, then the rest."""
        whole: Tensor = torch.linalg.qr(self.found, mode="complete")[0]
        return torch.cat([self.found, whole[:, self.found.shape[1] :]], dim=1)

    def to_coefficients(self, direction: Tensor) -> Tensor:
        """Of all columns; 0 for those that are left out."""
        found = torch.zeros_like(self._mean)
        found[self.kept] = self._scale * direction.to(found)
        return found

    def _rescale(self, products: Tensor) -> Tensor:
        return torch.outer(self._scale, self._scale) * products[self.kept][:, self.kept]

    def _remove_found(self, direction: Tensor) -> Tensor:
        return direction - self.found @ (self.found.T @ direction)

    def _sum_products(self, weights: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted products of centred columns, [columns, columns], and their products with `slope`."""
        parts = [
            (x.T @ (weights[rows, None] * x), x.T @ torch.stack([weights[rows], slope[rows]], 1))
            for rows, x in _split(self._features, self._mean)
        ]
        products, sums = (torch.stack(found).sum(0) for found in zip(*parts, strict=True))
        total = weights.sum()
        products = products - torch.outer(sums[:, 0], sums[:, 0]) / total
        return products, sums[:, 1] - sums[:, 0] * slope.sum() / total


def _split(table: Tensor, centre: Tensor | float = 0.0) -> Iterator[tuple[slice, Tensor]]:
    """Some rows at a time, in double precision."""
    for start in range(0, len(table), _CHUNK):
        rows = slice(start, start + _CHUNK)
        yield rows, table[rows].flatten(1).double() - centre


def _find_independent(correlation: Tensor, varies: Tensor) -> Tensor:
    """Which columns do not follow from earlier ones; by Cholesky's factors, a column at a time."""
    left = correlation.clone()
    kept = torch.zeros_like(varies)
    for place in range(len(left)):
        kept[place] = varies[place] & (left[place, place] > _ALIASED)
        if kept[place]:
            left = left - torch.outer(left[:, place], left[place]) / left[place, place]
    return kept


def derive_curvature(slope: Tensor) -> Tensor:
    """Of each row, from dL/dh alone: |g| (1 - |g|), as of a logit; 1 where it cannot be one."""
    size = slope.abs()
    return (size * (1 - size)).clamp(min=_LEAST_CURVATURE) if bool((size <= 1).all()) else torch.ones_like(slope)


# At the label party -----------------------------------------------------------------------------------------------


class SubspaceFit:
    """The least loss over the directions that all parties have sent, and the intercept."""

    def __init__(self, top: RegressionTop, parties: int, rows: int) -> None:
        """`parties` are those that have columns, the label party last."""
        self.top = top
        self.settled = False  # no more exchanges are needed
        self._parties = parties
        self._columns = torch.zeros(rows, 0, device=top.intercept.device)  # [N, directions]
        self._owners = torch.zeros(0, dtype=torch.int64)
        self._weights = torch.zeros(0, dtype=torch.float64)  # of each direction

    def extend(self, embeddings: Sequence[Tensor], loss: RowLoss, round: Round) -> list[Tensor]:
        """By one direction of each party, zeros being none; each party's part of the outputs then, [N, 1]."""
        for owner, h in enumerate(embeddings):
            if bool(h.any()):
                self.add(owner, h)
        self._solve(loss)
        self.settled = self.settled and round >= self.top.first_direction
        counts = torch.zeros(len(self._owners), self._parties, dtype=torch.float64)
        counts[torch.arange(len(self._owners)), self._owners] = self._weights
        parts = torch.cat([x @ counts.to(x.device) for _, x in _split(self._columns)])
        return list(parts.float().split(1, dim=1))

    def add(self, owner: int, direction: Tensor) -> None:
        """[N, 1]; it does not count yet."""
        column = direction.detach().float().to(self._columns.device)
        self._columns = torch.cat([self._columns, column], dim=1)
        self._owners = torch.cat([self._owners, torch.tensor([owner])])
        self._weights = torch.cat([self._weights, torch.zeros(1, dtype=torch.float64)])

    def _solve(self, loss: RowLoss) -> None:
        """By Newton's method, along what differs between rows; refuses an optimum at infinity."""
        before = self._weights
        self._weights, intercept = _Problem(self._columns, loss, self.top.l2).solve(before, self.top.intercept)
        with torch.no_grad():
            self.top.intercept.copy_(intercept)
        change = max(float(one.norm()) for one in self._split_by_party(self._weights - before))
        size = max(float(one.norm()) for one in self.split_weights())
        self.settled = change <= self.top.tolerance * size

    def split_weights(self) -> list[Tensor]:
        """How much each of a party's directions counts, by party."""
        return self._split_by_party(self._weights)

    def _split_by_party(self, weights: Tensor) -> list[Tensor]:
        return [weights[self._owners == one] for one in range(self._parties)]

    def estimate_errors(self, loss: RowLoss, is_squared: bool) -> tuple[float, int, list[Tensor]]:
        """Of the maximum likelihood, once all directions of all parties are there: the intercept's error, degrees of
        freedom, and by party its weights' covariance beside the projection on what rows cannot tell apart."""
        problem = _Problem(self._columns, loss, 0.0)
        covariance, hidden, value = problem.invert(self._weights, self.top.intercept)
        freedom = len(self._columns) - problem.basis.shape[1] if is_squared else 0
        if is_squared:
            covariance *= 2 * value / max(1, freedom)  # the loss is not halved
        places = [torch.nonzero(self._owners == one)[:, 0] for one in range(self._parties)]
        blocks = [torch.cat([covariance[mine][:, mine], hidden[mine][:, mine]], dim=1) for mine in places]
        return float(covariance[-1, -1].sqrt()), freedom, blocks

    def tensors(self) -> dict[str, Tensor]:
        settled = torch.tensor(self.settled)
        return {"columns": self._columns, "owners": self._owners, "weights": self._weights, "settled": settled}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._columns = tensors["columns"].to(self._columns.device)
        self._owners, self._weights = tensors["owners"], tensors["weights"]
        self.settled = bool(tensors["settled"])


class _Problem:
    """A convex loss of columns and an intercept, which stands last; computed around the columns' means."""

    def __init__(self, columns: Tensor, loss: RowLoss, l2: float) -> None:
        self._columns = columns
        self._loss = loss
        self._mean = torch.stack([x.sum(0) for _, x in _split(columns)]).sum(0) / len(columns)
        self._penalty = torch.tensor([l2] * columns.shape[1] + [0.0], dtype=torch.float64)
        scatter = torch.stack([x.T @ x for _, x in _split(columns, self._mean)]).sum(0).cpu() / len(columns)
        deviation = scatter.diagonal().sqrt()
        deviation[deviation == 0] = 1.0
        values, vectors = torch.linalg.eigh(scatter / torch.outer(deviation, deviation))
        varies, vectors = values > _ALIASED, vectors / deviation[:, None]
        self._hidden = vectors[:, ~varies]  # combinations of columns that are the same for all rows
        self.basis = torch.block_diag(vectors[:, varies] / values[varies].sqrt(), torch.ones(1, 1).double())

    def solve(self, weights: Tensor, intercept: Tensor) -> tuple[Tensor, Tensor]:
        """From these on."""
        at = self._shift(weights, intercept)
        here = self._measure(at)
        for _ in range(_MOST_STEPS):
            values, vectors = torch.linalg.eigh(self.basis.T @ here.bend @ self.basis)
            slope = vectors.T @ (self.basis.T @ here.gradient)
            step = -slope / values.clamp(min=1e-14 * values[-1])
            fall = float(-slope @ step)
            at, here = self._search(at, here, self.basis @ (vectors @ step), fall)
            if fall <= _LEAST_FALL * len(self._columns):
                break
        if not self._penalty.any() and values[0] < _FLAT:
            raise BadInput(_SEPARATED)
        return at[:-1], at[-1:] - self._mean.cpu() @ at[:-1]

    def invert(self, weights: Tensor, intercept: Tensor) -> tuple[Tensor, Tensor, float]:
        """The inverse of the second derivatives, the projection on what rows cannot tell, and the loss."""
        here = self._measure(self._shift(weights, intercept))
        inverse = self.basis @ torch.linalg.inv(self.basis.T @ here.bend @ self.basis) @ self.basis.T
        back = torch.eye(len(inverse), dtype=torch.float64)
        back[-1, :-1] = -self._mean
        hidden = torch.linalg.qr(self._hidden)[0]
        return back @ inverse @ back.T, hidden @ hidden.T, here.value

    def _shift(self, weights: Tensor, intercept: Tensor) -> Tensor:
        """With the intercept where columns have their means."""
        return torch.cat([weights, intercept.double().cpu() + self._mean.cpu() @ weights])

    def _search(self, at: Tensor, here: _Point, step: Tensor, fall: float) -> tuple[Tensor, _Point]:
        """Half the step until the loss falls; where it is too flat to tell, no step."""
        size = 1.0
        while size > 1e-8:
            there = self._measure(at + size * step)
            if there.value <= here.value - 1e-4 * size * fall + 1e-13 * abs(here.value):
                return at + size * step, there
            size /= 2
        return at, here

    def _measure(self, at: Tensor) -> _Point:
        value, gradient, bend = float(self._penalty @ at.square()) / 2, self._penalty * at, self._penalty.diag()
        for rows, x in _split(self._columns, self._mean):
            inputs = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
            outputs = (inputs @ at.to(x.device))[:, None].requires_grad_()
            losses = self._loss(outputs, rows)
            (slope,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)
            (curvature,) = torch.autograd.grad(slope.sum(), outputs)
            value += float(losses.detach().sum())
            gradient = gradient + (inputs.T @ slope.detach()[:, 0]).cpu()
            bend = bend + (inputs.T @ (curvature * inputs)).cpu()
        return _Point(value, gradient, bend)


class _Point(NamedTuple):
    """The loss somewhere, its gradient and its second derivatives."""

    value: float
    gradient: Tensor
    bend: Tensor
