"""Labels as classes from 0 up, with the row named where one is not a class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.data.hashing import encoded
from thinwire.errors import BadInput

__all__ = ["class_labels"]


def class_labels(file: Path, column: str, words: Sequence[str]) -> Callable[[Any, int], NDArray[np.int64]]:
    """A function that reads a block's column: the place of each label among `words`."""
    places = {word.encode(): place for place, word in enumerate(words)}

    def labels(block: Any, start: int) -> NDArray[np.int64]:
        def table(some: list[bytes]) -> NDArray[np.float32]:
            return np.array([*(places.get(word, -1) for word in some), -1], dtype=np.float32)

        found = encoded(block[column], table).astype(np.int64)
        if len(found) and found.min() < 0:
            row = int(np.argmin(found))
            raise BadInput(
                f"{file}: row {start + row + 1}, column {column!r} holds {block[column][row].as_py()!r}; a label "
                f"is one of {', '.join(words)}"
            )
        return found

    return labels
