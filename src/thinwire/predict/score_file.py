"""A table of scores on disk, block by block: nothing is there under its name until all of it is.

Blocks lie in a folder beside it, `<name>.part`, each whole or not there; a resumed prediction goes on behind the last
of them. The end is one pass over the blocks into a CSV or Parquet file, which then takes its name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from thinwire.at_rest.atomic_file import WriteFailed, replace_file, stage_file
from thinwire.at_rest.json_file import canonical_json
from thinwire.errors import BadInput

__all__ = ["Heading", "ScoreFile", "require_place"]


@dataclass(frozen=True)
class Heading:
    """What the scores are of; a resumed prediction must have the same."""

    model: str  # a hash of the models
    rows: str  # a digest of the rows that were asked for, or of their ids in whatever order
    key: str  # "id" or "row"
    block: int  # rows

    def to_bytes(self) -> bytes:
        return canonical_json({"model": self.model, "rows": self.rows, "key": self.key, "block": self.block})


def require_place(path: Path, resume: bool) -> None:
    """Refuses where scores cannot go."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise BadInput(f"--out {path}: the name must end with .csv or .parquet")
    if path.exists():
        raise BadInput(f"--out {path} is there already; give another name, or remove it")
    if not path.parent.is_dir():
        raise BadInput(f"--out {path}: there is no folder {path.parent}")
    if _blocks_of(path).exists() and not resume:
        raise BadInput(
            f"{_blocks_of(path)} holds a prediction that was not ended; go on with --resume, or remove that folder"
        )


def _blocks_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


class ScoreFile:
    """Writes one; `done` blocks are there already."""

    def __init__(self, path: Path, heading: Heading, resume: bool) -> None:
        require_place(path, resume)
        self.path = path
        self._folder = _blocks_of(path)
        self._key = heading.key
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

    def _begin(self, heading: Heading) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            replace_file(self._folder / "heading.json", heading.to_bytes())
        except OSError as error:
            raise BadInput(f"{self._folder} cannot be written: {error.strerror}") from None

    def _require_same(self, heading: Heading) -> None:
        try:
            before = json.loads((self._folder / "heading.json").read_bytes())
        except (OSError, ValueError):
            raise BadInput(f"{self._folder} cannot be gone on with: it is damaged; remove it") from None
        now = json.loads(heading.to_bytes())
        changed = [name for name in now if before.get(name) != now[name]]
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
        try:
            replace_file(self._block(self.done), content)
        except OSError as error:
            raise WriteFailed(self._block(self.done), len(content), error) from error
        self.done += 1

    def finish(self) -> None:
        """All blocks into one file, which then has its name; the blocks go."""
        try:
            with stage_file(self.path) as part:
                self._gather(part)
        except OSError as error:
            raise WriteFailed(self.path, 0, error) from error
        shutil.rmtree(self._folder, ignore_errors=True)

    def _gather(self, file: Path) -> None:
        schema = pa.parquet.read_schema(self._block(0))
        if file.suffix == ".csv":
            options = pa.csv.WriteOptions(quoting_style="needed")
            writer: Any = pa.csv.CSVWriter(file, schema, write_options=options)
        else:
            writer = pa.parquet.ParquetWriter(file, schema)
        with writer:
            for number in range(self.done):
                writer.write_table(pa.parquet.read_table(self._block(number), use_threads=False))

    def _block(self, number: int) -> Path:
        return self._folder / f"{number:08d}.parquet"
