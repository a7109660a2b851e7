"""How methods read their arguments."""

from __future__ import annotations

from thinwire.base.errors import BadParameter
from thinwire.engine.privacy import Labels
from thinwire.engine.schedule import EveryBatch, LocalSteps, Overlap, Schedule


def parse_labels(method: str, labels: str) -> Labels:
    try:
        return {"shared": Labels.SHARED, "private": Labels.PRIVATE}[labels]
    except KeyError:
        raise BadParameter.about(method, "labels", f"must be 'shared' or 'private', got {labels!r}") from None


def parse_overlap(method: str, overlap: bool | str) -> Overlap:
    match overlap:
        case False:
            return Overlap.NONE
        case True | "deterministic":
            return Overlap.DETERMINISTIC
        case "filling":
            return Overlap.FILLING
        case "ahead":
            return Overlap.AHEAD
    raise BadParameter.about(method, "overlap", f"must be False, True, 'ahead' or 'filling', got {overlap!r}")


def build_schedule(labels: Labels, local_steps: int) -> Schedule:
    """Shared labels: local steps on the batch. Private ones: the exchange's own update (check refuses more)."""
    return EveryBatch() if labels is Labels.PRIVATE and local_steps == 1 else LocalSteps(local_steps)
