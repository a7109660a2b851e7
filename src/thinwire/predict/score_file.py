"""A table of scores on disk, block by block: nothing is there under its name until all of it is.

Blocks lie in a folder beside it, `<name>.part`, each whole or not there; a resumed prediction goes on behind the last
of them. The end is one pass over the blocks into a CSV or Parquet file, which then takes its name.

Shards of one prediction are such files in `<name>.shards`, written by processes that know nothing of each other; the
one that finds all of them there joins them, in the order of the rows.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from fcntl import LOCK_EX, flock
from hashlib import sha256
from itertools import islice
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
from thinwire.job.id_table import IdTable
from thinwire.net.links.network_channel import PartyMissing
from thinwire.predict.embedding_client import EmbeddingClient
from thinwire.predict.errors import NoAnswer, PartyAway
from thinwire.predict.party_models import ReadyModel
from thinwire.predict.run import ASKED_AT_ONCE
from thinwire.predict.scoring import BLOCK, ScoreFormat
from thinwire.storage.atomic_file import map_write_errors, open_descriptor, replace_file, stage_file
from thinwire.storage.json_file import canonical_json

_KEYS_AT_ONCE = 65_536


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
                f"{self._folder} belongs to another prediction ({', '.join(changed)} differ); remove it, or "
                "request the same rows of the same models"
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

    def finish(self, metadata: dict[str, str] | None = None) -> None:
        """All blocks into one file, which then has its name; the blocks go."""
        _gather([self._block(number) for number in range(self.done)], self.path, metadata)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _block(self, number: int) -> Path:
        return self._folder / f"{number:08d}.parquet"


def _gather(sources: Sequence[Path], path: Path, metadata: dict[str, str] | None = None) -> None:
    """One file of them, in their order; a block of rows in memory at a time, and a block there where one was here."""
    schema = pa.parquet.read_schema(sources[0]).with_metadata(metadata)
    with map_write_errors(path), stage_file(path) as part:
        if path.suffix.lower() == ".csv":
            options = pa.csv.WriteOptions(quoting_style="needed")
            writer: Any = pa.csv.CSVWriter(part, schema, write_options=options)
        else:
            writer = pa.parquet.ParquetWriter(part, schema)
        with writer:
            for source in sources:
                with pa.parquet.ParquetFile(source) as held:
                    for number in range(held.num_row_groups):
                        block = held.read_row_group(number, use_threads=False)
                        writer.write_table(block.replace_schema_metadata(metadata))


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
            return sha256(self.rows.data).hexdigest()
        # A sum of hashes needs no sorted list of all ids.
        total = sum(int.from_bytes(sha256(text.encode()).digest(), "big") for text in self._stream_keys())
        return f"{total % (1 << 256):064x}"

    def describe_order(self) -> str:
        """Model and rows, in their order: what all shards of one prediction have in common."""
        digest, between = sha256(f"{self.model}\n".encode()), b""
        for key in self._stream_keys():
            digest.update(between + str(key).encode())
            between = b"\0"
        return digest.hexdigest()

    def _stream_keys(self) -> Iterator[Any]:
        for start in range(0, len(self.rows), _KEYS_AT_ONCE):
            yield from self.keys(self.rows[start : start + _KEYS_AT_ONCE])

    def keys(self, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Ids, or row numbers where there are none."""
        return rows.tolist() if self.ids is None else self.ids.texts(rows)

    def without(self, done: Iterable[Any]) -> npt.NDArray[np.int64]:
        """The rows that are not done."""
        is_done = np.zeros(int(self.rows.max()) + 1 if len(self.rows) else 0, dtype=bool)
        keys = iter(done)
        while some := list(islice(keys, _KEYS_AT_ONCE)):
            found = np.array(some, np.int64) if self.ids is None else self.ids.find(some)
            is_done[found[(found >= 0) & (found < len(is_done))]] = True
        return self.rows[~is_done[self.rows]] if is_done.any() else self.rows


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`, from 1: as many rows as the others have, give or take a block, in one piece."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        number, slash, count = text.partition("/")
        if not slash or not (number.isdecimal() and count.isdecimal()) or len(text) > 12:
            raise BadInput(f"--shard {text!r}: write which of how many, such as 3/16")
        if not 1 <= int(number) <= int(count):
            raise BadInput(f"--shard {text}: shards are numbered from 1/{count} to {count}/{count}")
        return cls(int(number), int(count))

    def select(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Bounds lie between blocks where there are enough of them: all shards then ask what one process would."""
        if len(rows) < self.count:
            raise BadInput(f"--shard {self.number}/{self.count}: there are {len(rows)} rows; use fewer shards")
        step = next(size for size in (ASKED_AT_ONCE, BLOCK, 1) if size * self.count <= len(rows))
        first, last = (len(rows) * k // self.count // step * step for k in (self.number - 1, self.number))
        return rows[first : len(rows) if self.number == self.count else last]

    def find_file(self, out: Path) -> Path:
        return out.with_name(f"{out.name}.shards") / f"{self.number:05d}-of-{self.count:05d}.parquet"

    def list_files(self, out: Path) -> list[Path]:
        return [Shard(number, self.count).find_file(out) for number in range(1, self.count + 1)]


def write_scores(
    out: Path,
    asked: ScoreTask,
    scored: Callable[[Tensor], Iterator[Tensor]],
    progress: Callable[[int, int], None],
    resume: bool,
    shard: Shard | None = None,
) -> dict[str, Any]:
    """Writes the file; `scored` gives outputs a question at a time for the rows that are still missing.

    A shard writes its own file alone, and joins all of them where it was the last.
    """
    if shard is None:
        resumed_at = _write_rows(out, asked, asked.heading(), scored, progress, resume)
        return {"rows": len(asked.rows), "resumed_at": resumed_at, "model": asked.model, "out": str(out)}
    part, place = replace(asked, rows=shard.select(asked.rows)), shard.find_file(out)
    whole = asked.describe_order()
    heading = {**part.heading(), "whole": whole, "shard": f"{shard.number}/{shard.count}"}
    with map_write_errors(place.parent):
        place.parent.mkdir(exist_ok=True)
    if place.exists() and resume:
        _require_shard(place, whole)
        resumed_at = len(part.rows)
    else:
        resumed_at = _write_rows(place, part, heading, scored, progress, resume, {"thinwire": whole})
    missing = _join(out, shard, whole)
    written = str(place if missing else out)
    facts = {"rows": len(part.rows), "resumed_at": resumed_at, "model": asked.model, "out": written}
    return {**facts, "shard": heading["shard"], "missing_shards": missing}


def _write_rows(
    out: Path,
    asked: ScoreTask,
    heading: dict[str, Any],
    scored: Callable[[Tensor], Iterator[Tensor]],
    progress: Callable[[int, int], None],
    resume: bool,
    metadata: dict[str, str] | None = None,
) -> int:
    """As many rows were there already."""
    file = ScoreFile(out, heading, resume)
    rest = asked.without(file.keys())
    resumed_at = len(asked.rows) - len(rest)
    progress(resumed_at, len(asked.rows))
    done = 0
    for outputs in scored(torch.from_numpy(rest)) if len(rest) else ():
        table = asked.outputs.format_scores(outputs).numpy()
        file.add(asked.keys(rest[done : done + len(table)]), asked.outputs.name_columns(table.shape[1]), table)
        done += len(table)
        progress(resumed_at + done, len(asked.rows))
    file.finish(metadata)
    return resumed_at


def _join(out: Path, shard: Shard, whole: str) -> list[int]:
    """Numbers of the shards that are not there yet; where all are, they become the file, and go."""
    files = shard.list_files(out)
    with open_descriptor(files[0].parent, os.O_RDONLY | os.O_DIRECTORY) as folder:
        flock(folder, LOCK_EX)  # of shards that end at the same time one joins
        if out.exists():
            return []
        missing = [number for number, file in enumerate(files, 1) if not file.exists()]
        if not missing:
            for file in files:
                _require_shard(file, whole)
            _gather(files, out)
            shutil.rmtree(files[0].parent, ignore_errors=True)
        return missing


def _require_shard(file: Path, whole: str) -> None:
    try:
        written = (pa.parquet.read_schema(file).metadata or {}).get(b"thinwire", b"").decode()
    except (OSError, ValueError):
        raise BadInput(f"{file} is not a readable shard; remove it, and run that shard again") from None
    if written != whole:
        raise BadInput(f"{file} belongs to another prediction; remove it, or request the same rows and models")


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
