"""Why a party's process ends before its run does."""

from __future__ import annotations

from time import monotonic

from thinwire.base.errors import ThinwireError
from thinwire.engine.channel.base import Stopped

_PATIENCE_TO_STOP = 3.0  # seconds that a round may take to end after SIGTERM


class Aborted(ThinwireError):
    """A party ended the run for all."""


class FailedInRun(ThinwireError):
    """What was given turned out to be wrong only after the start."""


class ToldToStop(Stopped):
    """A peer cannot go on, and nobody can without it."""


class Interrupted(Stopped):
    """SIGTERM or Ctrl-C came, and the round could not be ended in time."""


class Stopping:
    """Whether, and since when, this process is asked to stop; set by signal handlers."""

    def __init__(self) -> None:
        self._since: float | None = None  # no lock: a signal may come while it is held

    def ask(self) -> None:
        self._since = self._since or monotonic()

    @property
    def asked(self) -> bool:
        return self._since is not None

    def require_patience(self) -> None:
        """For whoever waits: raises once the round has had its time to end."""
        if self._since is not None and monotonic() - self._since > _PATIENCE_TO_STOP:
            raise Interrupted("stopped; nothing is lost: start the same command again")
