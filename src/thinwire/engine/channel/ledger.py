"""Every frame that was sent, by sender, receiver and kind: the only place that counts bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any

from thinwire.base.errors import BadState
from thinwire.base.types import Kind, PartyName

EVALUATION = frozenset({Kind.EVALUATION, Kind.TEST, Kind.INFERENCE})
TRAINING = frozenset(Kind) - EVALUATION - {Kind.PREDICTION}


@dataclass(slots=True)
class Count:
    """Frames of one sort; `retransmitted` bytes were sent again and are not in `bytes`."""

    bytes: int = 0
    messages: int = 0
    retransmitted: int = 0

    def __iadd__(self, other: Count) -> Count:
        self.bytes += other.bytes
        self.messages += other.messages
        self.retransmitted += other.retransmitted
        return self


@dataclass(frozen=True, slots=True)
class Traffic:
    """A run's bytes, headers included. Training is everything but evaluation."""

    up: int  # to the label party
    down: int  # from the label party
    total: int  # up, down, and what feature parties sent each other
    evaluation: int  # not in the columns before
    retransmitted: int  # sent again after a failure, of every kind; not in the columns before
    messages: int  # of training

    @property
    def all(self) -> int:
        """Training, evaluation and retransmissions."""
        return self.total + self.evaluation + self.retransmitted


class Ledger:
    """Counts frames; may be read while another thread adds."""

    def __init__(self) -> None:
        self._counts: dict[tuple[PartyName, PartyName, Kind], Count] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """For copies: a lock has none."""
        return {"rows": self.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._lock = Lock()
        self.load(state["rows"])

    def add(self, sender: PartyName, receiver: PartyName, kind: Kind, size: int, again: bool = False) -> None:
        """A frame of `size` bytes was sent; `again`: it had been counted before."""
        self._add(sender, receiver, kind, Count(retransmitted=size) if again else Count(size, 1))

    def total(
        self,
        senders: Collection[PartyName] | None = None,
        receivers: Collection[PartyName] | None = None,
        kinds: Collection[Kind] | None = None,
    ) -> Count:
        """The sum over what is named; None stands for all."""
        found = Count()
        for (sender, receiver, kind), count in self._sorted():
            if (
                (senders is None or sender in senders)
                and (receivers is None or receiver in receivers)
                and (kinds is None or kind in kinds)
            ):
                found += count
        return found

    def traffic(self, label_party: PartyName) -> Traffic:
        """The summary as seen from the label party."""
        training = self.total(kinds=TRAINING)
        return Traffic(
            up=self.total(receivers={label_party}, kinds=TRAINING).bytes,
            down=self.total(senders={label_party}, kinds=TRAINING).bytes,
            total=training.bytes,
            evaluation=self.total(kinds=EVALUATION).bytes,
            retransmitted=self.total().retransmitted,
            messages=training.messages,
        )

    def entries(self) -> list[dict[str, Any]]:
        """What was sent, one row per (sender, receiver, kind), without retransmissions."""
        return [{name: value for name, value in row.items() if name != "retransmitted"} for row in self.state()]

    def state(self, sender: PartyName | None = None) -> list[dict[str, Any]]:
        """Rows for `load`, as plain data; those of one sender if named."""
        return [
            {"sender": source, "receiver": receiver, "kind": kind.name, **asdict(count)}
            for (source, receiver, kind), count in self._sorted()
            if sender in (None, source)
        ]

    def load(self, state: Iterable[dict[str, Any]]) -> None:
        """Replaces every count; the states of several senders load as one list."""
        fresh = Ledger()
        for row in state:
            try:
                count = Count(int(row["bytes"]), int(row["messages"]), int(row["retransmitted"]))
                fresh._add(row["sender"], row["receiver"], Kind[row["kind"]], count)
            except (KeyError, TypeError, ValueError) as error:
                raise BadState(f"ledger: the saved row {row!r} does not fit ({error!r})") from None
        with self._lock:
            self._counts = fresh._counts

    def _add(self, sender: PartyName, receiver: PartyName, kind: Kind, count: Count) -> None:
        with self._lock:
            known = self._counts.get((sender, receiver, kind))
            if known is None:
                self._counts[sender, receiver, kind] = count
            else:
                known += count

    def _sorted(self) -> list[tuple[tuple[PartyName, PartyName, Kind], Count]]:
        with self._lock:
            return sorted(self._counts.items(), key=lambda item: item[0])
