"""How large a step the papers' theorems allow, from what they assume of the loss.

Smoothness is L, the Lipschitz constant of the gradient. The bounds are sufficient, not necessary: experiments, the
papers' own too, use far larger steps. Each is of plain SGD, `tw.SGD(lr=...)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.parameters import require_number, require_size


def bound_efvfl_step(
    smoothness: float, slope: float, parties: int, contraction: float, private_labels: bool = False
) -> float:
    """EF-VFL's largest learning rate, Theorem 1: 1 / (sqrt(rho) L + L).

    rho = K H^4 ((1 + sqrt(1 - alpha)) / alpha - 1)^2.

    Args:
        smoothness: L, of the loss in all weights or in all embeddings, whichever is larger.
        slope: H, the largest Euclidean norm of a bottom model's derivative, all rows and columns together.
        parties: K.
        contraction: alpha, as `compressor.contraction(shape)` returns it.
        private_labels: K + 1 instead of K (Appendix B.1).

    Raises:
        BadParameter: a value is out of range.

    Examples:
        >>> tw.models.bound_efvfl_step(smoothness=2.0, slope=1.0, parties=4, contraction=1.0)
        0.5
    """
    owner = "bound_efvfl_step"
    smoothness, slope = (_require_positive(owner, *pair) for pair in (("smoothness", smoothness), ("slope", slope)))
    alpha = require_number(owner, "contraction", contraction, above=0, at_most=1)
    count = require_size(owner, "parties", parties) + bool(private_labels)
    rho = count * slope**4 * ((1 + sqrt(1 - alpha)) / alpha - 1) ** 2
    return 1 / (sqrt(rho) * smoothness + smoothness)


def bound_efvfl_linear_step(smoothness: float, curvature: float, contraction: float) -> float:
    """EF-VFL's largest learning rate, Theorem 2: the largest eta with eta^2 L^2 (1 - mu / L) + eta mu <= alpha^2.

    With this learning rate the loss falls by a factor of 1 - eta mu per round.

    Args:
        smoothness: L, of the loss in all parameters.
        curvature: mu of the Polyak-Lojasiewicz inequality, at most L.
        contraction: alpha, as `compressor.contraction(shape)` returns it.

    Raises:
        BadParameter: a value is out of range.

    Examples:
        >>> tw.models.bound_efvfl_linear_step(1.0, 1.0, 0.5)
        0.25
    """
    owner = "bound_efvfl_linear_step"
    smoothness, mu = (
        _require_positive(owner, *pair) for pair in (("smoothness", smoothness), ("curvature", curvature))
    )
    if mu > smoothness:
        raise BadParameter.about(owner, "curvature", f"is at most the smoothness {smoothness:g}, got {mu:g}")
    alpha = require_number(owner, "contraction", contraction, above=0, at_most=1)
    square = smoothness**2 * (1 - mu / smoothness)
    # The positive root, without a difference of near numbers; square may be 0.
    return 2 * alpha**2 / (mu + sqrt(mu**2 + 4 * square * alpha**2))


def bound_cvfl_step(smoothness: float, local_steps: int, party_smoothness: Sequence[float] = ()) -> float:
    """C-VFL's largest learning rate, Theorems 4.2 and 4.4: 1 / (16 Q max(L, max_m L_m)), and below 1.

    Args:
        smoothness: L, of the loss in all parameters.
        local_steps: Q.
        party_smoothness: L_m, of the loss in each party's own parameters; none exceeds L.

    Raises:
        BadParameter: a value is not positive.

    Examples:
        >>> tw.models.bound_cvfl_step(smoothness=1.0, local_steps=1)
        0.0625
    """
    owner = "bound_cvfl_step"
    steps = require_size(owner, "local_steps", local_steps)
    largest = max(_require_positive(owner, "smoothness", one) for one in (smoothness, *party_smoothness))
    return min(1.0, 1 / (16 * steps * largest))


def bound_pbm_step(smoothness: float) -> float:
    """PBM-VFL's largest learning rate, Theorem 5.2: 1 / (2 L).

    Args:
        smoothness: L, of the loss in all parameters.

    Raises:
        BadParameter: `smoothness` is not positive.

    Examples:
        >>> tw.models.bound_pbm_step(2.0)
        0.25
    """
    return 1 / (2 * _require_positive("bound_pbm_step", "smoothness", smoothness))


def choose_celu_step(smoothness: float, gap: float, steps: int, variance: float) -> float:
    """CELU-VFL's learning rate, Theorem 1 (its proof): min(3 / (2 L), sqrt((f(x_0) - f*) / (L T V))).

    Args:
        smoothness: L, of the loss in all parameters.
        gap: f(x_0) - f*.
        steps: T.
        variance: V, the mean squared error of stale and sampled gradients.

    Raises:
        BadParameter: a value is not positive.

    Examples:
        >>> tw.models.choose_celu_step(smoothness=1.0, gap=1.0, steps=100, variance=1.0)
        0.1
    """
    owner = "choose_celu_step"
    given = {"smoothness": smoothness, "gap": gap, "variance": variance}
    smoothness, gap, variance = (_require_positive(owner, name, value) for name, value in given.items())
    return min(3 / (2 * smoothness), sqrt(gap / (smoothness * require_size(owner, "steps", steps) * variance)))


def _require_positive(owner: str, name: str, value: float) -> float:
    return require_number(owner, name, value, above=0)
