"""The Gaussian mechanism: a bottom model's gradient sum, each row clipped, noise added."""

from __future__ import annotations

from thinwire.privacy.accounting.parameters import positive
from thinwire.privacy.accounting.renyi import Rdp

__all__ = ["gaussian_rdp"]


def gaussian_rdp(noise_multiplier: float) -> Rdp:
    """Of one step in which the row takes part: 2 alpha / s^2, for rows clipped at c and noise s c on the sum.

    Replacing the row moves the sum by up to 2c, twice as far as removing it: alpha (2c)^2 / (2 (s c)^2).
    """
    cost = 2 / positive("noise_multiplier", noise_multiplier) ** 2
    return lambda alpha: cost * alpha
