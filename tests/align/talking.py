"""Role functions over a simulated channel: all that is sent is on record, and changed where a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from thinwire.align import (
    Alignment,
    Backend,
    Conversation,
    RistrettoBackend,
    Terms,
    Workspace,
    align_feature_party,
    align_label_party,
    normalize_ids,
    normalize_owner_ids,
)
from thinwire.align.ristretto import WorkerPool
from thinwire.base.errors import ThinwireError
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Channel, Message
from thinwire.engine.channel.simulated import Simulation

LABEL = "shop"
Change = Callable[[Message], Message]

CREW = WorkerPool(ThreadPoolExecutor(2))
SMALL = RistrettoBackend(CREW, chunk=8)


@dataclass
class Wire:
    """All messages in the order they were sent, and how many were unread at most."""

    messages: list[Message] = field(default_factory=list)
    most_unread: int = 0
    unread: dict[tuple[PartyName, PartyName], deque[tuple[Kind, Round]]] = field(default_factory=dict)

    def bodies(self, kind: Kind, sender: PartyName | None = None, receiver: PartyName | None = None) -> list[bytes]:
        return [
            bytes(message.body)
            for message in self.messages
            if message.kind is kind and sender in (None, message.sender) and receiver in (None, message.receiver)
        ]

    def points(self, sender: PartyName | None = None, receiver: PartyName | None = None) -> list[bytes]:
        body = b"".join(self.bodies(Kind.BLINDED_IDS, sender, receiver))
        return [body[at : at + 32] for at in range(0, len(body), 32)]


@dataclass
class Recording:
    """A `Channel` that notes what is sent, as changed."""

    channel: Channel
    simulation: Simulation
    wire: Wire
    change: Change

    def send(self, message: Message) -> None:
        changed = self.change(message)
        self.channel.send(changed)
        self.wire.messages.append(changed)
        self.wire.unread.setdefault((message.sender, message.receiver), deque()).append((message.kind, message.round))
        self.wire.most_unread = max(self.wire.most_unread, len(self.simulation._inbox))

    def receive(self, sender: PartyName, kind: Kind, round: Round) -> Message:
        message = self.channel.receive(sender, kind, round)
        # A link between processes gives messages out in the order they were sent, and in no other.
        assert self.wire.unread[sender, message.receiver].popleft() == (kind, round)
        return message

    def ready(self, sender: PartyName, kind: Kind, round: Round) -> bool:
        return self.channel.ready(sender, kind, round)

    def away(self, awaited: Sequence[tuple[PartyName, Kind, Round]]) -> bool:
        return self.channel.away(awaited)

    def pause_clock(self) -> AbstractContextManager[None]:
        return self.channel.pause_clock()

    def count_steps(self, steps: int) -> None:
        self.channel.count_steps(steps)


def same(message: Message) -> Message:
    return message


def changed_body(kind: Kind, change: Callable[[bytes], bytes], number: int = 0, times: int = 1) -> Change:
    """Changes the body of one message, the first `times` that are sent of it."""
    left = [times]

    def changed(message: Message) -> Message:
        if message.kind is not kind or message.round != number or not left[0]:
            return message
        left[0] -= 1
        return replace(message, body=change(bytes(message.body)))

    return changed


def aligned(
    ids: Mapping[PartyName, Iterable[Any]],
    *,
    terms: Mapping[PartyName, Terms] | None = None,
    changes: Mapping[PartyName, Change] | None = None,
    backend: Backend | Mapping[PartyName, Backend] = SMALL,
    wire: Wire | None = None,
    kept: bool = False,
    groups: Mapping[PartyName, Iterable[Any]] | None = None,
    workspaces: Mapping[PartyName, Workspace] | None = None,
) -> dict[PartyName, Alignment]:
    """Every party's result; raises what the first program to fail raised, or keeps it as that party's result."""
    features = [party for party in ids if party != LABEL]
    simulation = Simulation([*features, LABEL], run=3, label_party=LABEL)
    record = Wire() if wire is None else wire

    def program(party: PartyName) -> Callable[[], Alignment]:
        change = (changes or {}).get(party, same)
        channel = Recording(simulation.channel(party), simulation, record, change)
        talk = Conversation(party, LABEL, features, channel, list(groups or {}))
        used = backend[party] if isinstance(backend, Mapping) else backend
        words = (normalize_ids(ids[party]), talk, used, (terms or {}).get(party, Terms()))
        owners = {name: normalize_owner_ids(values) for name, values in (groups or {}).items()}
        room = (workspaces or {}).get(party)
        whole: Callable[[], Alignment] = partial(align_feature_party, *words, workspace=room)
        if party == LABEL:
            whole = partial(align_label_party, *words, groups=owners, workspace=room)
        return _kept(whole) if kept else whole

    return simulation.run({party: program(party) for party in ids})


def outcomes(ids: Mapping[PartyName, Iterable[Any]], **settings: Any) -> dict[PartyName, Alignment | ThinwireError]:
    """What each party comes to by itself, as where each is a process of its own."""
    return aligned(ids, kept=True, **settings)  # type: ignore[return-value]


def _kept(program: Callable[[], Alignment]) -> Callable[[], Any]:
    def run() -> Any:
        try:
            return program()
        except ThinwireError as error:
            return error

    return run


def common_ids(
    ids: Mapping[PartyName, Sequence[Any]], found: Mapping[PartyName, Alignment]
) -> dict[PartyName, list[Any]]:
    """The ids behind each party's rows, in order."""
    return {party: [ids[party][row] for row in alignment.rows.tolist()] for party, alignment in found.items()}
