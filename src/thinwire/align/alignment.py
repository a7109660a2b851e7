"""What parties ask of an alignment, and what it ends in: an error, or rows and their file.

The file is safetensors, with all else as JSON in the metadata.

::

    ThinwireError
      NoOverlap                the parties have no id in common
      TooLittleOverlap         fewer ids in common than a party asks for
      AlignmentsDiffer         the parties ended with different rows
      WorkersFailed            the processes that compute have ended

The metadata's `sha256` is that of the whole file as it is with 64 zeros in the place of the digest, so that no byte
can change unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from thinwire.align.ids import Ids, RowNumbers
from thinwire.base.errors import BadFile, BadIds, BadInput, BadParameter, ThinwireError
from thinwire.base.numbering import number_by_appearance
from thinwire.base.types import PartyName
from thinwire.storage.atomic_file import map_write_errors, stage_file
from thinwire.storage.encrypted_files import PLAIN, Files


class NoOverlap(ThinwireError):
    """No id is held by all parties."""


class TooLittleOverlap(ThinwireError):
    """Fewer ids are in common than some party requires; no party learned which.

    Args:
        what: the overlap, in words.
        refusing: parties whose `min_overlap` is not met.
        needed: rows, by this party's own `min_overlap`.
    """

    def __init__(self, what: str, refusing: Sequence[PartyName], needed: int) -> None:
        self.refusing = tuple(refusing)
        self.needed = needed  # rows, by this party's own min_overlap
        super().__init__(
            f"{what}, too few for {', '.join(map(repr, refusing))} (min_overlap; this party requires {needed}), so "
            "no party learned which rows they are. Add rows, or agree on a lower min_overlap"
        )


class AlignmentsDiffer(ThinwireError):
    """The rows of these parties do not match the label party's; none may be used.

    Args:
        parties: whose rows differ.
    """

    def __init__(self, parties: Sequence[PartyName]) -> None:
        self.parties = tuple(parties)
        super().__init__(
            f"the rows of {', '.join(map(repr, parties))} do not match those of the label party; align again, with "
            "the same versions of thinwire and Python at all parties"
        )


class WorkersFailed(ThinwireError):
    """A worker process could not start, or was killed by the system."""


_MOST_IDS = 1 << 31  # rounds of messages have 32 bits, and a party's tags must fit into memory


@dataclass(frozen=True, slots=True)
class Terms:
    """What a party requires of an alignment.

    `min_overlap` decides whether rows are revealed, not what the label party learns: it has seen every pairwise
    overlap by then. Where set sizes alone show that it cannot be met, nobody sends a single point.

    Args:
        min_overlap: fewest common rows (an integer), or fraction of this party's rows (a float).
        max_peer_ids: most ids accepted from another party.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> tw.align.Terms(min_overlap=0.5).minimum_rows(own=100)
        50
    """

    min_overlap: int | float = 1
    max_peer_ids: int = 100_000_000

    def __post_init__(self) -> None:
        rows = self.min_overlap
        fits = isinstance(rows, int) and rows >= 1 and not isinstance(rows, bool)
        if not fits and not (isinstance(rows, float) and 0 < rows <= 1):
            raise BadParameter(
                "min_overlap must be a number of rows, at least 1, or a fraction of this party's rows above 0.0 "
                f"and up to 1.0, got {rows!r}"
            )
        most = self.max_peer_ids
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _MOST_IDS:
            raise BadParameter(f"max_peer_ids must be an integer from 1 to {_MOST_IDS}, got {most!r}")

    def minimum_rows(self, own: int) -> int:
        """Of a party that has so many rows of its own."""
        if isinstance(self.min_overlap, int):
            return self.min_overlap
        return ceil(Fraction(str(self.min_overlap)) * own)  # 0.1 is a tenth, as it is written


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """The rows that all parties have, in the same order at every party.

    Args:
        me: this party.
        label_party: its name.
        parties: all of them.
        rows: row numbers in this party's table, from 0, in the common order; of a grouped party, each common row's
            owner.
        digest: of the common ids in their order; the same at all parties.
        sizes: number of ids of this party and of those it talked to.
        pairwise: at the label party, number of ids in common with each of the others.
        ids_digest: of all of this party's ids.
        when: UTC.
        grouped: parties that hold owners of rows.
        owners: at the label party, the owner of each common row, by grouped party.

    Examples:
        >>> found = tw.align.intersect({"shop": ["a", "b", "c"], "bank": ["c", "b"]}, label_party="shop")
        >>> len(found["bank"]), found["bank"].digest == found["shop"].digest
        (2, True)
    """

    me: PartyName
    label_party: PartyName
    parties: tuple[PartyName, ...]
    rows: RowNumbers  # of this party's table, from 0
    digest: str  # of the common ids in their order; the same at all parties
    sizes: Mapping[PartyName, int]  # ids of this party and of those it talked to
    pairwise: Mapping[PartyName, int] | None  # at the label party: ids in common with each of the others
    ids_digest: str  # of this party's own ids, all of them
    when: datetime  # UTC
    grouped: tuple[PartyName, ...] = ()  # parties that hold owners of rows
    owners: Mapping[PartyName, RowNumbers] = field(default_factory=dict)  # at the label party: of each common row

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Alignment):
            return NotImplemented
        names = [name for name in self.__slots__ if name not in ("rows", "owners")]
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        mine, theirs = self.list_tensors(), other.list_tensors()
        return same and mine.keys() == theirs.keys() and all(np.array_equal(mine[key], theirs[key]) for key in mine)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_grouped(self) -> bool:
        """Does this party hold owners of rows?"""
        return self.me in self.grouped

    @property
    def match_count(self) -> int:
        """How many of this party's own rows are common."""
        return len(np.unique(self.rows)) if self.is_grouped else len(self.rows)

    def list_tensors(self) -> dict[str, RowNumbers]:
        """By their names in the file."""
        return {"rows": self.rows} | {f"owners.{party}": index for party, index in self.owners.items()}

    def require_same_ids(self, ids: Ids) -> None:
        """Refuses a table whose ids, or their order, are not those that were aligned."""
        if ids.digest() != self.ids_digest:
            raise BadIds(
                f"the ids of {self.me!r} differ from those that were aligned on {self.when:%Y-%m-%d %H:%M} UTC "
                f"({self.sizes[self.me]} then, {len(ids)} now); restore that table, or align again"
            )


_UNSET = "0" * 64
_PIECE = 1 << 20  # rows that are written at a time
_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Held(BaseModel):
    """The metadata: an alignment without its rows."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1] = 1
    me: str
    label_party: str
    parties: tuple[str, ...] = Field(min_length=2)
    digest: _Digest
    sizes: dict[str, NonNegativeInt]
    pairwise: dict[str, NonNegativeInt] | None
    ids_digest: _Digest
    when: AwareDatetime
    grouped: tuple[str, ...] = ()  # left out where there are none: files are older than it

    @model_validator(mode="after")
    def _names_are_parties(self) -> _Held:
        names = {self.me, self.label_party, *self.sizes, *(self.pairwise or ()), *self.grouped}
        if len(set(self.parties)) != len(self.parties) or not names <= set(self.parties) or self.me not in self.sizes:
            raise ValueError("names that do not match the parties")
        if self.label_party in self.grouped or len(set(self.grouped)) != len(self.grouped):
            raise ValueError("invalid parties with owners of rows")
        return self


def write_alignment(path: str | Path, alignment: Alignment, files: Files = PLAIN) -> None:
    """Writes an alignment atomically, readable by its owner only.

    Args:
        path: the file.
        alignment: what to write.
        files: how files are written; for encrypted folders.

    Raises:
        ThinwireError: the file cannot be written; the message says why.

    Examples:
        >>> found = tw.align.intersect({"shop": ["a"], "bank": ["a"]}, label_party="shop")
        >>> tw.align.write_alignment("shop.alignment", found["shop"])
    """
    path = Path(path)
    held = _Held(**{field: getattr(alignment, field) for field in _Held.model_fields if field != "format"})
    text = held.model_dump_json(exclude=None if held.grouped else {"grouped"})
    metadata = {"alignment": text, "sha256": _UNSET}
    if isinstance(alignment.rows, np.memmap) and not files.is_encrypted:
        _write_in_pieces(path, alignment.rows, metadata)
        return
    tensors = {name: tensor.astype("<i8") for name, tensor in alignment.list_tensors().items()}
    data = safetensors.save(tensors, metadata)
    data = _resealed(data, _UNSET, sha256(data).hexdigest())
    with map_write_errors(path, len(data)):
        files.replace(path, data)


def _write_in_pieces(path: Path, rows: RowNumbers, metadata: Mapping[str, str]) -> None:
    """The same kind of file, of rows that lie on the disk and may be more than fit into memory."""
    tensor = {"dtype": "I64", "shape": [len(rows)], "data_offsets": [0, 8 * len(rows)]}
    text = json.dumps({"__metadata__": metadata, "rows": tensor}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    digest = sha256(head)
    pieces = [slice(start, start + _PIECE) for start in range(0, len(rows), _PIECE)]
    for piece in pieces:
        digest.update(rows[piece].astype("<i8").tobytes())
    with map_write_errors(path, len(head) + 8 * len(rows)), stage_file(path) as part, PLAIN.new(part) as write:
        write(_resealed(head, _UNSET, digest.hexdigest()))
        for piece in pieces:
            write(rows[piece].astype("<i8").tobytes())


def read_alignment(path: str | Path, files: Files = PLAIN) -> Alignment:
    """Reads what `write_alignment` wrote.

    Args:
        path: the file.
        files: how files are read; for encrypted folders.

    Raises:
        BadFile: no such file, a damaged one, or one of another format.

    Examples:
        >>> found = tw.align.intersect({"shop": ["a", "b"], "bank": ["b"]}, label_party="shop")
        >>> tw.align.write_alignment("bank.alignment", found["bank"])
        >>> tw.align.read_alignment("bank.alignment") == found["bank"]
        True
    """
    path = Path(path)
    try:
        data = files.read(path)
    except OSError as error:
        raise BadFile(
            f"{path}: the alignment cannot be read: {error.strerror}; create it with `thinwire align`"
        ) from None
    metadata = _metadata(path, data)
    digest = str(metadata.get("sha256"))
    if sha256(_resealed(data, digest, _UNSET)).hexdigest() != digest:
        raise _damaged(path, "its checksum does not match")
    try:
        held = _Held.model_validate_json(str(metadata.get("alignment")))
        tensors = safetensors.load(data)
        rows = tensors.pop("rows")
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, one["loc"])) or one["msg"] for one in error.errors())
        raise _damaged(path, f"these fields are not part of format 1, which this version reads: {fields}") from None
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, f"its rows cannot be read ({error})") from None
    _check_rows(path, held, rows)
    return Alignment(rows=rows, owners=_read_owners(path, held, rows, tensors), **held.model_dump(exclude={"format"}))


def _check_rows(path: Path, held: _Held, rows: npt.NDArray[Any]) -> None:
    size, is_grouped = held.sizes[held.me], held.me in held.grouped
    if rows.dtype != np.int64 or rows.ndim != 1 or len(rows) < 1 or (len(rows) > size and not is_grouped):
        raise _damaged(path, f"its rows are {rows.dtype} {rows.shape}, expected int64 of 1 to {size}")
    is_repeated = not is_grouped and len(np.unique(rows)) != len(rows)
    if rows.min() < 0 or rows.max() >= size or is_repeated:
        raise _damaged(path, f"its rows are not distinct numbers from 0 to {size - 1}")


def _read_owners(
    path: Path, held: _Held, rows: RowNumbers, tensors: Mapping[str, npt.NDArray[Any]]
) -> dict[PartyName, RowNumbers]:
    """Of each row, at the label party; numbered in the order of their first rows."""
    wanted = held.grouped if held.me == held.label_party else ()
    if set(tensors) != {f"owners.{party}" for party in wanted}:
        raise _damaged(path, f"it holds {', '.join(sorted(tensors)) or 'no owners'}")
    for name, index in tensors.items():
        fits = index.dtype == np.int64 and index.shape == rows.shape
        if not fits or not np.array_equal(index, number_by_appearance(index)[1]):
            raise _damaged(path, f"its {name} are not row numbers of its {len(rows)} rows")
    return {party: tensors[f"owners.{party}"] for party in wanted}


def _metadata(path: Path, data: bytes) -> dict[str, Any]:
    """Of a safetensors file's header, which is 8 bytes of length and JSON."""
    length = int.from_bytes(data[:8], "little")
    try:
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    except (ValueError, TypeError, KeyError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise _damaged(path, "it was not written by `thinwire align`")
    return metadata


def _resealed(data: bytes, old: str, new: str) -> bytes:
    """With another digest. Quotes inside of values are escaped, so the field is found in one place only."""
    field = '"sha256":"{}"'
    return data.replace(field.format(old).encode(errors="replace"), field.format(new).encode(), 1)


def _damaged(path: Path, what: str) -> BadInput:
    return BadInput(f"{path}: {what}; restore it from a backup, or align again")
