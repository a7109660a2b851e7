"""From a party's first call to its last word: who must be here, how it pauses, why it ends, and what it leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Protocol

from torch import Tensor

from thinwire.base.errors import BadInput, Diverged, SurrogatesDiffer, WireError
from thinwire.base.types import PartyName
from thinwire.engine.compress.randomness import digest_tensors
from thinwire.engine.privacy.accounting import BudgetExceeded
from thinwire.net.grpc.client import HandshakeFailed
from thinwire.net.grpc.service import Denied, Refused, RunAborted
from thinwire.net.links.network_channel import PartyMissing
from thinwire.net.links.peer_link import PeerLink, WrongMessage
from thinwire.training.party.session import Aborted, FailedInRun, Interrupted, PartySession, ToldToStop

_LAST_WORD_SECONDS = 10.0  # that a finished party waits to hear that its end was noted
_STOPPED_WORD_SECONDS = 1.0  # and one whose people have stopped it: they wait too
# Starting again would only fail again: the others are told to stop too.
_TOLD = (BudgetExceeded, SurrogatesDiffer, WireError, WrongMessage)
_INCURABLE = (BadInput, BudgetExceeded, Diverged, SurrogatesDiffer, WireError, WrongMessage)


@dataclass(frozen=True)
class PartyOutcome:
    """The summary that `thinwire party --json` prints."""

    summary: dict[str, Any]
    interrupted: bool


class Meeting(Protocol):
    """How a party meets the others: it dials, or it listens."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def missing_party(self) -> PartyName | None:
        """Whom to wait for before the first round; None once all is agreed."""

    def tell_absent(self) -> None:
        """After an abort: those who were not there must hear of it too."""


class LifeCycle:
    """One process of a run, around what it does in between."""

    def __init__(self, session: PartySession, meeting: Meeting) -> None:
        self.begun = False  # the first round of this process may come
        self._session = session
        self._meeting = meeting

    def execute(self, run: Callable[[], PartyOutcome]) -> PartyOutcome:
        """Connects, runs, and tells the others why it ends where they cannot go on without us."""
        session = self._session
        try:
            self._meeting.connect()
            outcome = run()
            if outcome.interrupted:
                self._pause()
            return outcome
        except (Interrupted, KeyboardInterrupt):
            self._pause()
            raise
        except Aborted:
            self._meeting.tell_absent()
            raise
        except (Refused, Denied, HandshakeFailed) as error:
            if isinstance(error, RunAborted):
                session.note_abort(session.own.label_party)
            if isinstance(
                error, Denied
            ):  # a peer's signature, unless we are the one who is denied: then nobody hears
                session.tell_all({"stopped": f"{session.own.me!r} stopped: {error}"})
            if self.begun:
                raise
            raise BadInput(str(error)) from error  # nothing was started
        except _INCURABLE as error:
            # What went wrong with one's own rows, and where, is no matter of the others.
            why = str(error) if isinstance(error, _TOLD) else f"{type(error).__name__}; see its own log"
            session.tell_all({"stopped": f"{session.own.me!r} stopped: {why}"})
            if self.begun and isinstance(error, BadInput):
                raise FailedInRun(str(error)) from error
            raise
        except (PartyMissing, ToldToStop) as error:
            session.tell_all({"stopped": str(error)})
            raise
        finally:
            session.channel.drain(2.0)
            self._meeting.disconnect()
            session.close()

    def gather(self) -> None:
        """Waits until everybody is here and agrees, with a countdown that names who is missing."""
        began, reported, seconds = monotonic(), monotonic(), self._session.patience_seconds
        while (missing := self._meeting.missing_party()) is not None:
            self._session.require_alive()
            left = seconds - (monotonic() - began)
            if left <= 0:
                raise PartyMissing(missing, "the run has not started", seconds)
            if monotonic() - reported >= 10:
                reported = monotonic()
                self._session.events("waiting", missing, what="it is not connected", left_seconds=left)
            sleep(0.02)

    def linger(self) -> None:
        """A peer that fails now needs our last messages again: stay until all have finished, and know of our end."""
        session = self._session
        session.tell_all({"finished": True})
        began = reported = monotonic()
        while unfinished := session.peers.list_unfinished():
            session.require_alive()
            if monotonic() - began > session.patience_seconds:
                session.events("unreported", unfinished[0])
                return
            if monotonic() - reported >= 10:
                reported = monotonic()
                session.events("lingering", unfinished[0])
            sleep(0.02)
        session.tell_all({"noted": True})  # from this thread: the one that notes an end may not have said so yet
        self._await_acknowledgement(lambda _: not session.stopping.is_asked, _LAST_WORD_SECONDS)

    def _pause(self) -> None:
        """Stopped by whoever runs it: those who look at the folder, and the others, need not guess."""
        session = self._session
        if not session.private.is_finished:
            at_round = session.events.round or 0
            session.tell_all({"paused": at_round})
            session.events("stopped", at_round=at_round)
            with suppress(KeyboardInterrupt):  # once more: it is the wait that ends
                self._await_acknowledgement(lambda link: link.is_connected, _STOPPED_WORD_SECONDS)

    def _await_acknowledgement(self, matters: Callable[[PeerLink], bool], seconds: float) -> None:
        """Until the peers say that they know of our end: what a closed connection still held may be lost."""
        began = monotonic()
        while any(matters(link) and link.news.get("noted") is not True for link in self._session.links.values()):
            if monotonic() - began > seconds:
                return
            sleep(0.02)


def digest_state(tensors: Mapping[str, Tensor], ledger: list[dict[str, Any]]) -> str:
    """SHA-256 over every tensor of a party's state, and over its messages; the same after any failure."""
    names = sorted(tensors)
    held = [names, digest_tensors(*(tensors[name] for name in names)), ledger]
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
