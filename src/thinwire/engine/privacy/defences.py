"""What the label party may do so that derivatives tell less about labels.

A defence changes the derivatives of a batch before they leave, or the labels before the run begins. None of them
makes labels safe for nothing: `thinwire audit` puts the leak beside what the model has lost.

Noise comes from an argument, a `Keystream` with a secret key of the label party's (`NoiseKey`): whoever can draw it
again, for example from the run's seed, takes it away again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil, exp
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.parameters import check_number
from thinwire.engine.compress.randomness import Keystream


class Labels(Enum):
    """Who may see the labels, and so what travels down.

    Examples:
        >>> tw.methods.efvfl(tw.compress.TopK(0.1), labels="private").labels is tw.privacy.Labels.PRIVATE
        True
    """

    PRIVATE = "private"
    """Only the label party sees labels; the others see gradients (derivatives), which leak labels unless defended."""

    SHARED = "shared"
    """Every party sees the labels, the top model and all parties' embeddings as they were sent."""


@dataclass(frozen=True, slots=True)
class NoDefence:
    """Derivatives and labels as they are: the derivatives reveal the labels.

    Examples:
        >>> tw.methods.svfl().defence == tw.privacy.NoDefence()
        True
    """

    def labels(self, labels: Tensor, classes: int, rng: Keystream) -> Tensor:
        """The labels to train on; drawn once a run."""
        return labels

    def protect(self, derivatives: Tensor, labels: Tensor, rng: Keystream) -> Tensor:
        """What to send of a batch's derivatives [B, E]."""
        return derivatives


@dataclass(frozen=True, slots=True)
class MaxNorm:
    """Noise along each row's own derivative until its norm is the batch's largest, on average (Li et al., 2022).

    E |g + noise|^2 = max |g|^2 for every row, and the mean is still g. It hides norms only: a row with the largest
    norm is sent as it is, with its direction.

    Examples:
        >>> tw.privacy.MaxNorm() == tw.privacy.MaxNorm()
        True
    """

    def labels(self, labels: Tensor, classes: int, rng: Keystream) -> Tensor:
        return labels

    def protect(self, derivatives: Tensor, labels: Tensor, rng: Keystream) -> Tensor:
        _require_batch(derivatives, labels, "MaxNorm")
        values = derivatives.detach().cpu().double()
        normal = torch.from_numpy(standard_normal(rng, (len(values), values.shape[1] + 1)))
        norms = values.norm(dim=1, keepdim=True)
        # A derivative of 0 has no direction: any will do.
        along = torch.where(norms > 0, values, normal[:, 1:])
        along = along / along.norm(dim=1, keepdim=True)
        missing = (norms.max().square() - norms.square()).clamp(min=0).sqrt()
        return _like(derivatives, values + missing * normal[:, :1] * along)


@dataclass(frozen=True, slots=True)
class Marvell:
    """Noise per class that makes the two classes' derivatives hardest to tell apart for its power (Li et al., 2022).

    Means and variances are the batch's own. For labels 0 and 1.

    Args:
        power: the noise's mean squared norm, in units of |mean of class 1 - mean of class 0|^2.

    Raises:
        BadParameter: `power` is not positive.

    Examples:
        >>> tw.privacy.Marvell(power=4.0).power
        4.0
    """

    power: float

    def __post_init__(self) -> None:
        check_number(self, "power", above=0)

    def labels(self, labels: Tensor, classes: int, rng: Keystream) -> Tensor:
        if classes != 2:
            raise _not_binary(f"there are {classes} classes")
        return labels

    def protect(self, derivatives: Tensor, labels: Tensor, rng: Keystream) -> Tensor:
        _require_batch(derivatives, labels, "Marvell")
        truth = labels.detach().cpu().double().reshape(-1).numpy()
        if not np.isin(truth, (0, 1)).all():
            raise _not_binary(f"a label is {truth[~np.isin(truth, (0, 1))][0]:g}")
        values = derivatives.detach().cpu().double().numpy()
        noise = class_noise(values, truth == 1, self.power)
        normal = standard_normal(rng, values.shape)
        along = (normal @ noise.direction)[:, None] * noise.direction
        across = normal - along
        spread = np.where(truth == 1, noise.along[1], noise.along[0])[:, None]
        others = np.where(truth == 1, noise.across[1], noise.across[0])[:, None]
        return _like(derivatives, torch.from_numpy(values + np.sqrt(spread) * along + np.sqrt(others) * across))


@dataclass(frozen=True, slots=True)
class LabelDP:
    """Trains on labels that are flipped at random: epsilon-differentially private labels (Warner, 1965).

    They are drawn once, before the first round, so one epsilon covers all derivatives of all epochs. It does not
    cover evaluation scores, which use the true labels.

    Args:
        epsilon: above 0, at most 50.

    Raises:
        BadParameter: `epsilon` is out of range.

    Examples:
        >>> tw.privacy.LabelDP(epsilon=1.0).epsilon
        1.0
    """

    epsilon: float

    def __post_init__(self) -> None:
        check_number(self, "epsilon", above=0, up_to=50)

    def labels(self, labels: Tensor, classes: int, rng: Keystream) -> Tensor:
        return randomise_labels(labels, classes, self.epsilon, rng)

    def protect(self, derivatives: Tensor, labels: Tensor, rng: Keystream) -> Tensor:
        return derivatives


Defence: TypeAlias = NoDefence | MaxNorm | Marvell | LabelDP


def randomise_labels(labels: Tensor, classes: int, epsilon: float, noise: Keystream) -> Tensor:
    """Each label kept with probability e^epsilon / (e^epsilon + classes - 1), or else any other one.

    The same key gives the same labels again, for a resumed run; a draw under another key costs another epsilon.
    """
    _require_secret(noise, "randomised_labels")
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise BadParameter(f"randomised_labels: classes must be an integer, 2 or more, got {classes!r}")
    truth = labels.detach().cpu().reshape(-1)
    whole = truth.long()
    wrong = (whole != truth) | (whole < 0) | (whole >= classes)
    if bool(wrong.any()):
        raise BadTensor(
            f"randomised_labels: labels must be integers from 0 to {classes - 1}, got {truth[wrong][0].item()}"
        )
    # A little more often another one than exact: never less private.
    changed = ceil((classes - 1) / (exp(epsilon) + classes - 1) * 2**53)
    draws = noise.words(4 * len(whole)).view("<u8").reshape(2, -1)
    shift = (draws[1] % np.uint64(classes - 1)).astype(np.int64) + 1
    moved = torch.from_numpy(np.where(draws[0] >> np.uint64(11) < changed, shift, 0))
    return ((whole + moved) % classes).to(labels.dtype).to(labels.device).reshape(labels.shape)


def standard_normal(noise: Keystream, shape: tuple[int, ...]) -> Array:
    """Gaussian values of mean 0 and variance 1 in float64, by Box and Muller's way."""
    _require_secret(noise, "standard_normal")
    count = int(np.prod(shape))
    pairs = (count + 1) // 2
    uniform = (noise.words(4 * pairs).view("<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2 * np.log1p(-uniform[:pairs]))
    angle = 2 * np.pi * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)


def _require_batch(derivatives: Tensor, labels: Tensor, name: str) -> None:
    if derivatives.dim() != 2 or not len(derivatives):
        raise BadTensor(f"{name}: derivatives must be [rows, width], got {tuple(derivatives.shape)}")
    if labels.numel() != len(derivatives):
        raise BadTensor(f"{name}: {len(derivatives)} rows of derivatives but {labels.numel()} labels")


def _require_secret(noise: Keystream, name: str) -> None:
    if not isinstance(noise, Keystream):
        raise BadParameter(
            f"{name}: noise comes from a Keystream with a secret key, as NoiseKey gives, not from a "
            f"{type(noise).__name__}: anyone who knows the seed can subtract the noise"
        )


def _not_binary(what: str) -> BadTensor:
    return BadTensor(f"Marvell is for labels 0 and 1, and {what}; use MaxNorm or LabelDP")


def _like(derivatives: Tensor, values: Tensor) -> Tensor:
    return values.to(dtype=derivatives.dtype, device=derivatives.device)


# Which noise hides the class of a derivative best, for its power (Li et al., 2022, "Marvell") ---------------------
#
# Take the derivatives of class 1 as N(g1, v I) and those of class 0 as N(g0, u I), in d dimensions. Noise N(0, S1)
# and N(0, S0) is added to them, of limited power, with p the share of class 1:
#
#     p tr S1 + (1 - p) tr S0 <= power |g1 - g0|^2
#
# What any attacker can make of it is bounded by KL(1 || 0) + KL(0 || 1), which is smallest where S1 and S0 have one
# variance along g1 - g0 and one across it. With a1, a0 the total variances along, b1, b0 those across:
#
#     2 sum KL = (a1^2 + a0^2 + |g1 - g0|^2 (a1 + a0)) / (a1 a0) - 2  +  (d - 1) (b1 - b0)^2 / (b1 b0)
#
# Across, only the class that spreads less needs noise, up to the other's spread, never past it. Along, the first term
# is a convex over a concave function of how the rest of the power is shared, so it has one valley. That leaves one
# number to search, the power that is spent across.

_TINY = 1e-12  # of the largest variance: keeps 0 / 0 away where a class does not spread at all


@dataclass(frozen=True, slots=True)
class Spread:
    """Two classes as the noise sees them."""

    share: float  # of class 1
    distance: float  # |g1 - g0|^2
    variances: tuple[float, float]  # u of class 0, v of class 1: of each coordinate
    width: int  # d


@dataclass(frozen=True, slots=True)
class ClassNoise:
    """The noise's variance for class 0 and class 1, along one direction and in every other."""

    direction: Array  # [d], of length 1
    along: tuple[float, float]
    across: tuple[float, float]


def class_noise(derivatives: Array, positive: Array, power: float) -> ClassNoise:
    """The best noise for a batch of derivatives [B, d]; `positive` says which rows are of class 1."""
    width = derivatives.shape[1]
    if positive.all() or not positive.any():
        # One class alone: it is hidden from its mirror image, where the other one's derivatives would lie.
        mean = derivatives.mean(axis=0)
        variance = power * float(np.square(2 * mean).sum())
        return ClassNoise(_unit(mean), (variance, variance), (0.0, 0.0))
    classes = [derivatives[~positive], derivatives[positive]]
    means = [rows.mean(axis=0) for rows in classes]
    u, v = (float(np.square(rows - mean).mean()) for rows, mean in zip(classes, means, strict=True))
    difference = means[1] - means[0]
    spread = Spread(float(positive.mean()), float(np.square(difference).sum()), (u, v), width)
    along, across = least_divergent(spread, power)
    return ClassNoise(_unit(difference), along, across)


def least_divergent(spread: Spread, power: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The noise's variances along and across, for class 0 and class 1, with the least sum of divergences."""
    budget = power * spread.distance
    if budget == 0:
        return (0.0, 0.0), (0.0, 0.0)
    u, v = spread.variances
    shares = (1 - spread.share, spread.share)
    narrow = 0 if u < v else 1
    # The power that makes both classes spread alike across.
    enough = shares[narrow] * (spread.width - 1) * abs(u - v)
    low, high = 0.0, min(enough, budget)
    for _ in range(4):  # a sum of valleys may have several: look everywhere first, then closer
        spent = np.linspace(low, high, 65)
        best = int(np.argmin(_best_along(spread, budget - spent)[1] + _across(spread, narrow, spent)[1]))
        low, high = spent[max(best - 1, 0)], spent[min(best + 1, 64)]
    chosen = spent[best : best + 1]
    split = _best_along(spread, budget - chosen)[0]
    rest = float(budget - chosen[0])
    along = (float(rest * (1 - split[0]) / shares[0]), float(rest * split[0] / shares[1]))
    raised = float(_across(spread, narrow, chosen)[0][0])
    return along, ((raised, 0.0) if narrow == 0 else (0.0, raised))


def _best_along(spread: Spread, budget: Array) -> tuple[Array, Array]:
    """Class 1's share of the power along the difference, and twice its divergence, for each budget."""
    (u, v), floor = spread.variances, _floor(spread)
    # a1 = v + up t and a0 = high - down t, for a share t: the divergence is one quadratic N over another D.
    up, down = budget / spread.share, budget / (1 - spread.share)
    high = u + down
    n2, n1 = up**2 + down**2, 2 * (v * up - high * down) + spread.distance * (up - down)
    n0 = v**2 + high**2 + spread.distance * (v + high)
    d2, d1, d0 = -up * down, up * high - down * v, v * high
    # N' D - N D' has no third power left; its rising root is the valley.
    q2, q1, q0 = n2 * d1 - n1 * d2, 2 * (n2 * d0 - n0 * d2), n1 * d0 - n0 * d1
    root = q1 + np.sqrt(np.maximum(q1**2 - 4 * q2 * q0, 0))
    split = np.clip(-2 * q0 / np.where(root > 0, root, 1), 0, 1)
    a1, a0 = np.maximum(v + up * split, floor), np.maximum(high - down * split, floor)
    divergence: Array = (a1**2 + a0**2 + spread.distance * (a1 + a0)) / (a1 * a0) - 2
    return split, divergence


def _across(spread: Spread, narrow: int, spent: Array) -> tuple[Array, Array]:
    """The variance added to the narrow class across the difference, and twice the divergence that is left."""
    if spread.width == 1:
        return np.zeros_like(spent), np.zeros_like(spent)
    share = spread.share if narrow else 1 - spread.share
    added = spent / (share * (spread.width - 1))
    floor = _floor(spread)
    thin = np.maximum(min(spread.variances) + added, floor)
    wide = max(*spread.variances, floor)
    return added, (spread.width - 1) * (thin - wide) ** 2 / (thin * wide)


def _floor(spread: Spread) -> float:
    return _TINY * max(*spread.variances, spread.distance)


def _unit(vector: Array) -> Array:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else np.eye(len(vector))[0]
