"""What may look on while a run goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Callback"]

Callback = Callable[[dict[str, Any]], None]  # gets each evaluation
