"""Who may see the labels."""

from __future__ import annotations

from enum import Enum

__all__ = ["Labels"]


class Labels(Enum):
    """Who may see the labels, and so what travels down."""

    PRIVATE = "private"
    """Only the label party sees labels; the others see their derivatives, which leak labels undefended."""

    SHARED = "shared"
    """Every party sees the labels, the top model and all parties' embeddings as they were sent."""
