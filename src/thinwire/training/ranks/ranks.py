"""The processes of one party, as torchrun started them: who is who, and tensors between them (gloo)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from thinwire.base.errors import BadInput, ThinwireError

_KNOWN = ("torch.nn.", "thinwire.")
_SOURCE = re.compile(r"\[/[^\]]*\] ")


class GroupBroken(ThinwireError):
    """Another rank of this party is gone, or does not answer."""


class RankOrder(IntEnum):
    """What rank 0 tells the others to do."""

    READ = 0  # the party has agreed: read the rows
    OPEN = 1  # build the model, for so many rounds
    STATE = 2  # take over weights, and what the optimiser remembers
    BEGIN = 3  # a round
    EMBED = 4  # a round's rows, to learn from
    EMBED_ONLY = 5  # a round's rows
    EMBED_ALL = 6  # all training rows
    EMBED_VALIDATION = 7
    EMBED_TEST = 8
    LEARN = 9  # from what was embedded last
    GATHER = 10  # put weights together that are shared out
    END = 11


@dataclass(frozen=True, slots=True)
class RankCommand:
    """One order; `rows` follow it where they cannot be derived from the round."""

    order: RankOrder
    round: int = 0
    rows: Tensor | None = None


def is_group() -> bool:
    """Was this process started as one of several?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def join_ranks(seconds: float, device: str = "cpu", shards: bool = False) -> Ranks:
    """Meets the other processes; nobody waits longer than `seconds` for another one.

    On GPUs each takes the one of its number on its machine, and gradients travel by NCCL, the rest by gloo.
    """
    limit = timedelta(seconds=seconds)
    backend = "gloo"
    if torch.device(device).type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        store, rank, size = next(rendezvous("env://", timeout=limit))
        # torchrun's store outlives a restart: a rank must not find the addresses of those that were there before.
        own = PrefixStore(f"thinwire/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=limit)
    except ValueError as error:
        raise BadInput(
            f"the processes of this party cannot connect to each other: {_said(error)}; start them with "
            "`torchrun --nproc-per-node N -m thinwire party ...`"
        ) from None
    except RuntimeError as error:
        raise GroupBroken(f"the processes of this party cannot connect to each other: {_said(error)}") from error
    return Ranks(rank, size, shards=shards)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of its party; rank 0 decides, the others follow."""

    rank: int
    size: int
    group: dist.ProcessGroup | None = None  # torch's own of all processes, unless given
    shards: bool = False  # has each rank a part of the weights alone?

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def tell(self, order: RankOrder, round: int = 0, rows: Tensor | None = None) -> None:
        """To all others."""
        with self.map_errors("telling the other ranks what to do"):
            self._broadcast(torch.tensor([order, round, 0 if rows is None else len(rows)]))
            if rows is not None:
                self._broadcast(rows)

    def receive_order(self) -> RankCommand:
        """Waits for rank 0."""
        with self.map_errors("waiting for rank 0"):
            order, round, count = self._broadcast(torch.zeros(3, dtype=torch.int64)).tolist()
            rows = self._broadcast(torch.zeros(count, dtype=torch.int64)) if count else None
            return RankCommand(RankOrder(order), round, rows)

    def share(self, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Rank 0's, at every rank."""
        with self.map_errors("passing on weights"):
            held = {} if tensors is None else {name: one.detach().cpu().clone() for name, one in tensors.items()}
            body = torch.frombuffer(bytearray(save(held)), dtype=torch.uint8)  # of other ranks, no tensors
            size = int(self._broadcast(torch.tensor([len(body)])))
            received = self._broadcast(body if self.is_first else torch.zeros(size, dtype=torch.uint8))
            return held if self.is_first else load(received.numpy().tobytes())

    def _broadcast(self, tensor: Tensor) -> Tensor:
        dist.broadcast(tensor, group=self.group, group_src=0)
        return tensor

    def gather_all(self, line: Tensor) -> Tensor:
        """Every rank's, one below the other, at every rank."""
        with self.map_errors("adding up"):
            every = [torch.empty_like(line) for _ in range(self.size)]
            dist.all_gather(every, line, group=self.group)
            return torch.stack(every)

    def send(self, tensor: Tensor, to: int) -> None:
        with self.map_errors(f"sending to rank {to}"):
            self._processes.send([tensor.contiguous()], to, 0).wait()

    def receive(self, into: Tensor, sender: int) -> None:
        with self.map_errors(f"waiting for rank {sender}"):
            self._processes.recv([into], sender, 0).wait()

    @property
    def _processes(self) -> dist.ProcessGroup:
        found = self.group or dist.group.WORLD
        if found is None:
            raise GroupBroken("the processes of this party are not connected")
        return found

    def synchronise(self, module: nn.Module) -> nn.Module:
        """The module with gradients that are a mean over all ranks, which all must ask for; weights are rank 0's."""
        # Code of the user's may leave weights out of an embedding: torch then has to look for them, in every round.
        foreign = any(not type(part).__module__.startswith(_KNOWN) for part in module.modules())
        with self.map_errors("building the model"):
            return DistributedDataParallel(module, process_group=self.group, find_unused_parameters=foreign)

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
    def map_errors(self, what: str) -> Iterator[None]:
        """Another rank's end, where this one depends on it."""
        try:
            yield
        except RuntimeError as error:
            raise GroupBroken(
                f"rank {self.rank} of {self.size}, {what}: {_said(error)}; torchrun starts the group again "
                "where it was given --max-restarts, and the run resumes from its last checkpoint"
            ) from error


def _said(error: Exception) -> str:
    """What gloo says, without where in its sources and what it guesses."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return _SOURCE.sub("", first).partition(". This is typically")[0]
