"""Scoring many rows into a file: block by block, resumable, with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.predict.answers import Answers
from thinwire.predict.run import ASKED_AT_ONCE
from thinwire.predict.score_file import Heading, ScoreFile
from thinwire.predict.table import IdTable

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
        digest = sha256(self.rows.tobytes())
        if self.ids is not None:
            for row in self.rows.tolist():
                digest.update(self.ids.ids[row].encode() + b"\0")
        return digest.hexdigest()


def write_scores(
    out: Path, asked: Asked, scored: Callable[[Tensor], Iterator[Tensor]], progress: Progress, resume: bool
) -> dict[str, Any]:
    """Writes the file; `scored` gives outputs a question at a time for the rows that are still missing."""
    heading = Heading(asked.model, asked.digest(), "row" if asked.ids is None else "id", ASKED_AT_ONCE)
    file = ScoreFile(out, heading, resume)
    resumed_at = min(file.done * ASKED_AT_ONCE, len(asked.rows))
    rest = asked.rows[resumed_at:]
    progress(resumed_at, len(asked.rows))
    done = resumed_at
    columns: tuple[str, ...] = ()
    for outputs in scored(torch.from_numpy(rest)) if len(rest) else ():
        table = asked.outputs.shown(outputs).numpy()
        columns = asked.outputs.columns(table.shape[1])
        rows = asked.rows[done : done + len(table)]
        keys = rows if asked.ids is None else [asked.ids.ids[row] for row in rows.tolist()]
        file.add(keys, columns, table)
        done += len(table)
        progress(done, len(asked.rows))
    file.finish()
    return {"rows": len(asked.rows), "resumed_at": resumed_at, "model": asked.model, "out": str(out)}
