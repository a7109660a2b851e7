"""Where a party sits in a run: who it is, who the others are, and its way to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from thinwire.base.errors import Malformed, WireError
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Channel, Message, Stopwatch
from thinwire.engine.compress import Symbols
from thinwire.engine.compress.randomness import Randomness
from thinwire.engine.compress.symbols import Sparse, Zeros
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import (
    Flow,
    RoundSeeds,
    RowOwners,
    Rows,
    Storage,
    Stream,
    StreamSpec,
    release_touched_pages,
)
from thinwire.engine.streams.surrogate import are_all
from thinwire.engine.wire.codec import decode, encode
from thinwire.engine.wire.entropy import Effort


@dataclass(frozen=True, eq=False)
class Groups:
    """The owners of one party's rows."""

    training: RowOwners
    held_out: Mapping[str, RowOwners] = field(default_factory=dict)  # of validation and test rows


@dataclass(frozen=True)
class PartyContext:
    """One party's place."""

    me: PartyName
    label_party: PartyName
    feature_parties: tuple[PartyName, ...]  # in the job's order
    channel: Channel
    recipe: Recipe
    rows: int  # N
    seed: int
    run: int
    effort: Effort = "small"
    storage: Storage = field(default_factory=Storage)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    groups: Mapping[PartyName, Groups] = field(default_factory=dict)  # of parties whose rows have owners in common

    def stream(
        self,
        spec: StreamSpec,
        name: str,
        width: int,
        randomness: Callable[[Round, Tensor], Randomness] | None = None,
        rows: int | None = None,
    ) -> Stream:
        """One end of a stream; the other end opens it under the same name. `rows`: all of the run unless given."""
        count = self.rows if rows is None else rows
        return spec.open(Flow(name, count, width, randomness or RoundSeeds(self.seed, name), self.storage))

    def owners(self, party: PartyName) -> RowOwners:
        """Of the training rows, at this party; each row its own where it has no group."""
        return self.groups[party].training if party in self.groups else RowOwners(self.rows)

    def find_held_out_owners(self, party: PartyName, which: str, rows: int) -> RowOwners:
        """Of validation or test rows."""
        return self.groups[party].held_out[which] if party in self.groups else RowOwners(rows)

    def send(self, receiver: PartyName, kind: Kind, round: Round, body: bytes) -> None:
        self.channel.send(Message(self.me, receiver, kind, round, body))

    def receive(self, sender: PartyName, kind: Kind, round: Round) -> bytes | memoryview:
        return self.channel.receive(sender, kind, round).body

    def encode(self, symbols: Symbols) -> bytes:
        return encode(symbols, self.effort)

    def decode(self, body: bytes | memoryview, sender: PartyName, shape: tuple[int, ...]) -> Symbols:
        """What `sender` sent, of this shape: no memory is taken for more. What is wrong is said with its name."""
        try:
            symbols = decode(body, prod(shape))
        except WireError as error:
            raise type(error)(f"{sender!r} sent an invalid message body: {error}") from error
        if symbols.shape != shape:
            raise Malformed(f"{sender!r} sent values of shape {list(symbols.shape)}, expected {list(shape)}")
        if getattr(symbols, "parties", 1) not in (1, len(self.feature_parties)):
            raise Malformed(f"{sender!r} sent a sum of {symbols.parties} parties' values")  # type: ignore[attr-defined]
        return symbols

    def announce(self, rows: Rows, round: Round) -> None:
        """Tells every feature party this round's rows, which are in rising order."""
        body = self.encode(Sparse((self.rows,), rows.numpy(), Zeros((len(rows),))))
        for party in self.feature_parties:
            self.send(party, Kind.ROWS, round, body)

    def receive_rows(self, round: Round) -> Rows:
        """The rows that the label party chose."""
        symbols = self.decode(self.receive(self.label_party, Kind.ROWS, round), self.label_party, (self.rows,))
        if not isinstance(symbols, Sparse):
            raise Malformed(f"round {round}: {self.label_party!r} announced rows of another table")
        return torch.from_numpy(symbols.indices.astype("int64"))

    def count_update(self) -> None:
        """Tells the link clock that an update was taken."""
        self.channel.count_steps(1)


def select_rows(table: Tensor, rows: Rows) -> Tensor:
    """table[rows]; the table itself, not a copy, where the rows are all of them in order."""
    if are_all(rows, len(table)):
        return table
    found = table.index_select(0, rows)
    release_touched_pages(table, len(rows))
    return found


def cast_like(like: Tensor, tensor: Tensor) -> Tensor:
    """The tensor where and as `like` is."""
    return tensor.to(device=like.device, dtype=like.dtype)


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def remove_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


class Saved(Protocol):
    """What a checkpoint keeps of one part of a party."""

    def tensors(self) -> dict[str, Tensor]:
        """Not copies, so save them before the next round."""

    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


def collect_tensors(parts: Mapping[str, Saved]) -> dict[str, Tensor]:
    """Those of all parts, each behind its name."""
    return {name: t for prefix, part in parts.items() for name, t in add_prefix(prefix, part.tensors()).items()}


def load_tensors(parts: Mapping[str, Saved], tensors: Mapping[str, Tensor]) -> None:
    for prefix, part in parts.items():
        part.load(remove_prefix(prefix, tensors))
