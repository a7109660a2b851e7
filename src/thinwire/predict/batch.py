"""Scoring many rows into a file: block by block, resumable, with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.job.row_selection import IdTable
from thinwire.predict.answers import Answers
from thinwire.predict.run import ASKED_AT_ONCE
from thinwire.predict.score_file import Heading, ScoreFile

__all__ = ["Asked", "write_scores"]

Progress = Callable[[int, int], None]  # rows done, of how many


@dataclass(frozen=True)
class Asked:
    """Which rows, of which models; with their ids where they are known."""

    rows: npt.NDArray[np.int64]
    model: str
    outputs: Answers
    ids: IdTable | None = None

    def digest(self) -> str:
        """Of ids in whatever order: another alignment of the same ids has another one."""
        if self.ids is None:
            return sha256(self.rows.tobytes()).hexdigest()
        digest = sha256()
        for text in sorted(self.ids.ids[row] for row in self.rows.tolist()):
            digest.update(text.encode() + b"\0")
        return digest.hexdigest()

    def keys(self, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Ids, or row numbers where there are none."""
        return rows.tolist() if self.ids is None else [self.ids.ids[row] for row in rows.tolist()]

    def without(self, done: Iterable[Any]) -> npt.NDArray[np.int64]:
        """The rows that are not done."""
        there = set(done)
        return self.rows[[key not in there for key in self.keys(self.rows)]] if there else self.rows


def write_scores(
    out: Path, asked: Asked, scored: Callable[[Tensor], Iterator[Tensor]], progress: Progress, resume: bool
) -> dict[str, Any]:
    """Writes the file; `scored` gives outputs a question at a time for the rows that are still missing."""
    heading = Heading(asked.model, asked.digest(), "row" if asked.ids is None else "id", ASKED_AT_ONCE)
    file = ScoreFile(out, heading, resume)
    rest = asked.without(file.keys())
    resumed_at = len(asked.rows) - len(rest)
    progress(resumed_at, len(asked.rows))
    done = 0
    for outputs in scored(torch.from_numpy(rest)) if len(rest) else ():
        table = asked.outputs.shown(outputs).numpy()
        file.add(asked.keys(rest[done : done + len(table)]), asked.outputs.columns(table.shape[1]), table)
        done += len(table)
        progress(resumed_at + done, len(asked.rows))
    file.finish()
    return {"rows": len(asked.rows), "resumed_at": resumed_at, "model": asked.model, "out": str(out)}
