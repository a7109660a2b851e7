"""The small words everything else is said in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from typing import TypeAlias, TypeVar

__all__ = ["Kind", "PartyName", "Round"]

PartyName: TypeAlias = str
Round: TypeAlias = int
Progress: TypeAlias = Callable[[int, int, str], None]  # so many done, of so many, and of what

_Thing = TypeVar("_Thing")


class Kind(IntEnum):
    """What a message carries. The numbers are on the wire: add, never change.

    Examples:
        >>> tw.types.Kind.EMBEDDING.value
        1
    """

    EMBEDDING = 1  # a feature party's symbols, up
    DERIVATIVE = 2  # dL/dh, down
    REPRESENTATIONS = 3  # the other parties' symbols, down (shared labels)
    TOP_MODEL = 4  # the top model's parameters, down (shared labels)
    LABELS = 5  # labels, once at the start (shared labels)
    ROWS = 6  # an announced batch
    SURROGATE_DIGEST = 7  # do both ends still agree
    EVALUATION = 8  # counted apart from training
    CONTROL = 9  # start, stop, agree
    WARM_START = 10  # symbols of all rows before the first round
    KEYS = 11  # signed public keys for the secure sum, once at the start
    ALIGNMENT = 12  # an alignment's set sizes, verdicts and the size of the overlap
    BLINDED_IDS = 13  # ids as points under their owner's fresh key
    MATCH_TAGS = 14  # the label party's points under both keys, shortened
    COMMON_ROWS = 15  # which of a feature party's points all parties hold
    PREDICTION = 16  # after the training: rows that are asked for, and their embeddings
    TEST = 17  # test rows' embeddings, once at the end, where validation rows were evaluated before
    COLUMN = 18  # test rows' embeddings with one column permuted, up; what that costs the score, down
    WEIGHTS = 19  # what each of a party's directions counts in a regression, down
    INFERENCE = 20  # the rest of a party's directions, up; its coefficients' covariance, down: once at the end


def follow(things: Collection[_Thing], on_progress: Progress | None, stage: str) -> Iterator[_Thing]:
    """The things, counted as they are done."""
    for done, thing in enumerate(things):
        if on_progress is not None:
            on_progress(done, len(things), stage)
        yield thing
    if on_progress is not None:
        on_progress(len(things), len(things), stage)


def name_stages(on_progress: Progress | None, name: str) -> Progress | None:
    """With whose work it is before what is counted."""
    if on_progress is None:
        return None
    return lambda done, total, stage: on_progress(done, total, f"{name}: {stage}")
