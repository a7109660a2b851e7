"""A table of scores on disk, block by block: nothing is there under its name until all of it is.

Blocks lie in a folder beside it, `<name>.part`, each whole or not there; a resumed prediction goes on behind the last
of them. The end is one pass over the blocks into a CSV or Parquet file, which then takes its name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from thinwire.base.errors import BadInput
from thinwire.job.row_selection import IdTable
from thinwire.net.links.network_channel import PartyMissing
from thinwire.predict.embedding_client import EmbeddingClient
from thinwire.predict.errors import NoAnswer, PartyAway
from thinwire.predict.party_models import ReadyModel
from thinwire.predict.run import ASKED_AT_ONCE
from thinwire.predict.scoring import ScoreFormat
from thinwire.storage.atomic_file import map_write_errors, replace_file, stage_file
from thinwire.storage.json_file import canonical_json


def check_output_path(path: Path, resume: bool) -> None:
    """Refuses where scores cannot go."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise BadInput(f"--out {path}: the name must end with .csv or .parquet")
    if path.exists():
        raise BadInput(f"--out {path} already exists; give another name, or remove it")
    if not path.parent.is_dir():
        raise BadInput(f"--out {path}: there is no folder {path.parent}")
    if _blocks_of(path).exists() and not resume:
        raise BadInput(
            f"{_blocks_of(path)} holds an unfinished prediction; resume it with --resume, or remove that folder"
        )


def _blocks_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


class ScoreFile:
    """Writes one; `done` blocks already exist, and have the same heading."""

    def __init__(self, path: Path, heading: dict[str, Any], resume: bool) -> None:
        check_output_path(path, resume)
        self.path = path
        self._folder = _blocks_of(path)
        self._key = heading["key"]
        self.done = 0
        # A process that was killed before it wrote the heading has written nothing else.
        if not (self._folder / "heading.json").exists() and not self._block(0).exists():
            self._begin(heading)
            return
        self._require_same(heading)
        while self._block(self.done).exists():
            self.done += 1

    def keys(self) -> Iterator[Any]:
        """Ids or rows of the blocks that are there."""
        for number in range(self.done):
            yield from pa.parquet.read_table(self._block(number), columns=[self._key])[self._key].to_pylist()

    def _begin(self, heading: dict[str, Any]) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            replace_file(self._folder / "heading.json", canonical_json(heading))
        except OSError as error:
            raise BadInput(f"{self._folder} cannot be written: {error.strerror}") from None

    def _require_same(self, heading: dict[str, Any]) -> None:
        try:
            before = json.loads((self._folder / "heading.json").read_bytes())
        except (OSError, ValueError):
            raise BadInput(f"{self._folder} cannot be resumed: it is damaged; remove it") from None
        changed = [name for name in sorted(heading) if before.get(name) != heading[name]]
        if changed:
            raise BadInput(
                f"{self._folder} is of another prediction ({', '.join(changed)} differ); remove it, or ask for the "
                "same rows of the same models"
            )

    def add(self, keys: Sequence[Any] | npt.NDArray[Any], columns: Sequence[str], scores: npt.NDArray[Any]) -> None:
        """The next block; on the disk, whole, once this returns."""
        kind = pa.string() if self._key == "id" else pa.int64()
        arrays = [pa.array(keys, kind), *(pa.array(np.ascontiguousarray(scores[:, i])) for i in range(len(columns)))]
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(pa.table(arrays, names=[self._key, *columns]), sink)
        content = sink.getvalue().to_pybytes()
        with map_write_errors(self._block(self.done), len(content)):
            replace_file(self._block(self.done), content)
        self.done += 1

    def finish(self) -> None:
        """All blocks into one file, which then has its name; the blocks go."""
        with map_write_errors(self.path), stage_file(self.path) as part:
            self._gather(part, self.path.suffix.lower())
        shutil.rmtree(self._folder, ignore_errors=True)

    def _gather(self, file: Path, suffix: str) -> None:
        schema = pa.parquet.read_schema(self._block(0))
        if suffix == ".csv":
            options = pa.csv.WriteOptions(quoting_style="needed")
            writer: Any = pa.csv.CSVWriter(file, schema, write_options=options)
        else:
            writer = pa.parquet.ParquetWriter(file, schema)
        with writer:
            for number in range(self.done):
                writer.write_table(pa.parquet.read_table(self._block(number), use_threads=False))

    def _block(self, number: int) -> Path:
        return self._folder / f"{number:08d}.parquet"


Progress = Callable[[int, int], None]  # rows done, of how many


@dataclass(frozen=True)
class ScoreTask:
    """Which rows, of which models; with their ids where they are known."""

    rows: npt.NDArray[np.int64]
    model: str
    outputs: ScoreFormat
    ids: IdTable | None = None

    def heading(self) -> dict[str, Any]:
        """What the scores are of; a resumed prediction must have the same."""
        key = "row" if self.ids is None else "id"
        return {"model": self.model, "rows": self._digest(), "key": key, "block": ASKED_AT_ONCE}

    def _digest(self) -> str:
        """Of ids in whatever order: another alignment of the same ids has another one."""
        if self.ids is None:
            return sha256(self.rows.tobytes()).hexdigest()
        return sha256(b"".join(text.encode() + b"\0" for text in sorted(self.keys(self.rows)))).hexdigest()

    def keys(self, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Ids, or row numbers where there are none."""
        return rows.tolist() if self.ids is None else [self.ids.ids[row] for row in rows.tolist()]

    def without(self, done: Iterable[Any]) -> npt.NDArray[np.int64]:
        """The rows that are not done."""
        there = set(done)
        return self.rows[[key not in there for key in self.keys(self.rows)]] if there else self.rows


def write_scores(
    out: Path,
    asked: ScoreTask,
    scored: Callable[[Tensor], Iterator[Tensor]],
    progress: Callable[[int, int], None],
    resume: bool,
) -> dict[str, Any]:
    """Writes the file; `scored` gives outputs a question at a time for the rows that are still missing."""
    file = ScoreFile(out, asked.heading(), resume)
    rest = asked.without(file.keys())
    resumed_at = len(asked.rows) - len(rest)
    progress(resumed_at, len(asked.rows))
    done = 0
    for outputs in scored(torch.from_numpy(rest)) if len(rest) else ():
        table = asked.outputs.format_scores(outputs).numpy()
        file.add(asked.keys(rest[done : done + len(table)]), asked.outputs.name_columns(table.shape[1]), table)
        done += len(table)
        progress(resumed_at + done, len(asked.rows))
    file.finish()
    return {"rows": len(asked.rows), "resumed_at": resumed_at, "model": asked.model, "out": str(out)}


def score_over_network(party: EmbeddingClient, rows: Tensor, patience_seconds: float) -> Iterator[Tensor]:
    """Outputs of these rows, a question at a time, all of one model; a lost party is waited for and asked again."""
    run = party.wait_for_parties(patience_seconds).run
    for asked in rows.split(ASKED_AT_ONCE):
        began = monotonic()
        while True:
            ready = party.wait_for_parties(patience_seconds)
            if ready.run != run:
                raise PartyMissing(party.own.me, "another model is now in use; start over with it", 0)
            try:
                yield _ask(party, ready, asked, patience_seconds)
                break
            except PartyAway:
                if monotonic() - began > patience_seconds:
                    raise


def _ask(party: EmbeddingClient, ready: ReadyModel, rows: Tensor, seconds: float) -> Tensor:
    answers = party.pending.ask(ready, dict.fromkeys(party.own.feature_parties, rows))
    try:
        late = wait(answers.futures.values(), seconds).not_done
        for name, one in answers.futures.items():
            if one in late:
                raise NoAnswer(name, seconds)
        bodies = {name: one.result() for name, one in answers.futures.items()}
        return ready.scorer.score(ready.scorer.combine(bodies, rows, answers.number), rows)
    finally:
        party.pending.cancel(answers)
