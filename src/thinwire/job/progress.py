"""One line on the terminal that follows a run, for those who train from Python."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from thinwire.job.callbacks import Callback

__all__ = ["line_on_terminal"]


def line_on_terminal(rounds: int) -> Sequence[Callback]:
    """A callback that rewrites one line on stderr; none where nobody looks."""
    if not sys.stderr.isatty():
        return ()

    def show(event: dict[str, Any]) -> None:
        scores = event["test"] or event["train"]
        shown = " ".join(f"{name} {value:.4g}" for name, value in scores.items())
        sent = event["bytes"]
        end = "\n" if event["round"] >= rounds else ""
        text = f"\rround {event['round']}/{rounds}  {shown}  up {sent['up']:,} B  down {sent['down']:,} B \x1b[K{end}"
        sys.stderr.write(text)
        sys.stderr.flush()

    return (show,)
