"""When a party's run makes a checkpoint, and what must be on disk before anybody relies on it."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from torch import Tensor

from thinwire.at_rest.atomic_file import WriteFailed
from thinwire.network.events import EventLog
from thinwire.runs import CheckpointFailed, Checkpoints, Loaded, PrivateState
from thinwire.transport.network_channel import NetworkChannel

__all__ = ["Saving"]

_SHARE = 20  # a checkpoint may cost a twentieth of the time


class Saving:
    """The private state knows the newest checkpoint before a peer forgets what the one before it needs."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        private: PrivateState,
        channel: NetworkChannel,
        events: EventLog,
        every_seconds: float,
    ) -> None:
        self._checkpoints = checkpoints
        self._private = private
        self._channel = channel
        self._events = events
        self._every_seconds = every_seconds
        self._generation = 0  # of the newest checkpoint that holds
        self._saved_at = monotonic()
        self._cost = 0.0  # seconds, of the last one

    def load(self) -> Loaded | None:
        """The newest checkpoint that holds; the links stand where it stood before anybody connects."""
        loaded = self._checkpoints.load(self._private.generation, lambda _: None)
        if loaded is None:
            return None
        self._generation = loaded.generation
        self._is_recorded()  # the process before may have been killed before it was
        for warning in loaded.warnings:
            self._events("fell_back", why=warning)
        self._channel.load(loaded.data["channel"])
        return loaded

    def is_due(self) -> bool:
        due = max(self._every_seconds, _SHARE * self._cost)
        return self._generation == 0 or monotonic() - self._saved_at >= due

    def save(self, data: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """A disk that is full costs a checkpoint, not the run."""
        began = monotonic()
        if not self._is_recorded():
            return
        self._channel.sync()  # a checkpoint must not know of frames that a power cut could take
        state = self._channel.state()
        generation = self._generation + 1
        try:
            self._checkpoints.save({**data, "channel": state}, tensors, generation)
            self._generation = generation
            self._private.set_generation(generation)
        except (CheckpointFailed, WriteFailed) as error:
            self._failed(error)
            return
        self._channel.saved(state)
        self._saved_at = monotonic()
        self._cost = self._saved_at - began
        self._events("checkpoint", generation=generation, seconds=round(self._cost, 4))

    def _is_recorded(self) -> bool:
        """Is the newest checkpoint known to the private state? Another one must wait until it is."""
        if self._generation > self._private.generation:
            try:
                self._private.set_generation(self._generation)
            except WriteFailed as error:
                self._failed(error)
                return False
        return True

    def _failed(self, error: CheckpointFailed | WriteFailed) -> None:
        self._events("checkpoint_failed", why=str(error))
        self._saved_at = monotonic()
