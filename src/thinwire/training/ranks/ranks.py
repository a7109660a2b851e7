"""The processes of one party, as torchrun started them: who is who, and tensors between them (gloo)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from thinwire.base.errors import BadInput, ThinwireError

_SOURCE = re.compile(r"\[/[^\]]*\] ")


class GroupBroken(ThinwireError):
    """Another rank of this party is gone, or does not answer."""


class RankOrder(IntEnum):
    """What rank 0 tells the others to do."""

    READ = 0  # the party has agreed: read the rows
    WEIGHTS = 1  # take over the weights
    BEGIN = 2  # a round
    EMBED = 3  # a round's rows
    EMBED_ALL = 4  # all training rows
    EMBED_TEST = 5
    LEARN = 6  # from what was embedded last
    END = 7
    EMBED_VALIDATION = 8


@dataclass(frozen=True, slots=True)
class RankCommand:
    """One order; `rows` follow it where they cannot be derived from the round."""

    order: RankOrder
    round: int = 0
    rows: Tensor | None = None


def is_group() -> bool:
    """Was this process started as one of several?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def join_ranks(seconds: float) -> Ranks:
    """Meets the other processes; nobody waits longer than `seconds` for another one."""
    limit = timedelta(seconds=seconds)
    try:
        store, rank, size = next(rendezvous("env://", timeout=limit))
        # torchrun's store outlives a restart: a rank must not find the addresses of those that were there before.
        own = PrefixStore(f"thinwire/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=limit)
    except ValueError as error:
        raise BadInput(
            f"the processes of this party cannot meet: {_said(error)}; start them with `torchrun --nproc-per-node N "
            "-m thinwire party ...`"
        ) from None
    except RuntimeError as error:
        raise GroupBroken(f"the processes of this party cannot meet: {_said(error)}") from error
    return Ranks(rank, size)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of its party; rank 0 decides, the others follow."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def tell(self, order: RankOrder, round: int = 0, rows: Tensor | None = None) -> None:
        """To all others."""
        with self._whole("telling the other ranks what to do"):
            dist.broadcast(torch.tensor([order, round, 0 if rows is None else len(rows)]), 0)
            if rows is not None:
                dist.broadcast(rows, 0)

    def receive_order(self) -> RankCommand:
        """Waits for rank 0."""
        with self._whole("waiting for rank 0"):
            head = torch.zeros(3, dtype=torch.int64)
            dist.broadcast(head, 0)
            order, round, count = head.tolist()
            if not count:
                return RankCommand(RankOrder(order), round)
            rows = torch.zeros(count, dtype=torch.int64)
            dist.broadcast(rows, 0)
            return RankCommand(RankOrder(order), round, rows)

    def share(self, tensor: Tensor) -> None:
        """Rank 0's values, at every rank."""
        with self._whole("passing on weights"):
            dist.broadcast(tensor, 0)

    def add_up(self, tensor: Tensor) -> None:
        """The sum over all ranks, at rank 0."""
        with self._whole("adding gradients"):
            dist.reduce(tensor, 0)

    def send(self, tensor: Tensor, to: int) -> None:
        with self._whole(f"sending to rank {to}"):
            dist.send(tensor.contiguous(), to)

    def receive(self, into: Tensor, sender: int) -> None:
        with self._whole(f"waiting for rank {sender}"):
            dist.recv(into, sender)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """At rank 0: the others begin to read, and end with the block; those that are gone are no matter then."""
        self.tell(RankOrder.READ)
        try:
            yield
        finally:
            with suppress(GroupBroken):
                self.tell(RankOrder.END)
            self.leave()

    def leave(self) -> None:
        dist.destroy_process_group()

    @contextmanager
    def _whole(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise GroupBroken(
                f"rank {self.rank} of {self.size}, {what}: {_said(error)}; torchrun starts the group again "
                "where it was given --max-restarts, and the run goes on from its last checkpoint"
            ) from error


def _said(error: Exception) -> str:
    """What gloo says, without where in its sources and what it guesses."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return _SOURCE.sub("", first).partition(". This is typically")[0]
