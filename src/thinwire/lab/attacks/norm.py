"""Labels from the length of derivatives.

Li et al., 2022, "Label leakage and protection in two-party split learning".

For one logit a row's derivative is (p - y) w: as long as the model is wrong. Where one class is rare the model says p
near its share, so that rare rows have long derivatives and common rows short ones. The attacker needs to know nothing
but that the class it looks for is the rare one.
"""

from __future__ import annotations

from torch import Tensor


def norm_scores(derivatives: Tensor) -> Tensor:
    """|g| of each row of [N, E]: the longer, the more likely the rare class."""
    norms: Tensor = derivatives.detach().double().norm(dim=1)
    return norms
