"""One party's half of a private alignment between organisations.

The same port, certificates and links as a run. Keys live as long as the process: a party that is started again in
the middle ends the attempt of all. Nobody keeps anything of it but the buckets that are done, where sets are large.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from thinwire import __version__
from thinwire.align import (
    Alignment,
    AlignmentsDiffer,
    Backend,
    Conversation,
    Ids,
    NoOverlap,
    OwnerIds,
    Progress,
    TooLittleOverlap,
    Workspace,
    align_feature_party,
    align_label_party,
)
from thinwire.align import Terms as AlignTerms
from thinwire.align.bucket_files import open_workspace
from thinwire.align.protocol import NO_GROUPS
from thinwire.base.errors import ThinwireError
from thinwire.base.format import printable
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.ledger import Ledger
from thinwire.net.grpc.client import Dialer
from thinwire.net.grpc.service import PROTOCOL, NotYet, Refused, Rpc
from thinwire.net.handshake import check_protocol
from thinwire.net.links.network_channel import NetworkChannel, PartyMissing, Patience
from thinwire.net.links.network_party import NetworkParty
from thinwire.net.links.outgoing_log import OutgoingLog
from thinwire.net.links.peer_end import LinkEnds
from thinwire.net.links.peer_link import PeerLink
from thinwire.storage import layout
from thinwire.storage.atomic_file import WriteFailed

_TELL_SECONDS = 10.0
_LAST_WORDS_SECONDS = 10.0
_MOST_BYTES = 1 << 25  # of a message, beside 64 an id: the largest chunk of points
_PURPOSE = "alignment"
_KNOWN_TO_ALL = (NoOverlap, TooLittleOverlap, AlignmentsDiffer)  # by the messages themselves


@dataclass(frozen=True)
class _Attempt:
    """What two parties must say alike when they connect."""

    what: str  # training rows or test rows
    parties: tuple[PartyName, ...]

    def hello(self, me: PartyName, instance: str) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            "purpose": _PURPOSE,
            "what": self.what,
            "parties": list(self.parties),
            "party": me,
            "instance": instance,
        }

    def require(self, peer: PartyName, me: PartyName, said: dict[str, Any]) -> str:
        """The peer's process; raises Refused where it wants something else."""
        check_protocol(peer, me, said, _PURPOSE)
        for field, ours in (("what", self.what), ("parties", list(self.parties)), ("party", peer)):
            if said.get(field) != ours:
                raise Refused(f"{peer!r} aligns with {field} {printable(said.get(field))}, this side with {ours}")
        return printable(said.get("instance"))


class AligningParty:
    """Connects to the others and aligns; implements `Desk` for a listener and `Greeter` for a dialler."""

    def __init__(
        self, own: NetworkParty, what: str, say: Callable[[str], None], grouped: Sequence[PartyName] = ()
    ) -> None:
        """`grouped` are the parties that hold owners of rows."""
        self.own = own
        self.ledger = Ledger()
        self._say = say
        self._attempt = _Attempt(what, (*own.feature_parties, own.label_party))
        self._grouped = tuple(grouped)
        self._instance = secrets.token_hex(8)
        self._instances: dict[PartyName, str] = {}  # of the peers' processes
        self._links: dict[PartyName, PeerLink] = {}

    def align(
        self,
        ids: Ids,
        backend: Backend,
        terms: AlignTerms,
        on_progress: Progress,
        groups: Mapping[PartyName, OwnerIds] = NO_GROUPS,
        workspace: Workspace | None = None,
    ) -> Alignment:
        """Blocks until it is done. `groups`: owners of the label party's rows; the workspace is for large sets."""
        most = _MOST_BYTES + 64 * len(ids)
        with (
            open_workspace(workspace) as room,
            TemporaryDirectory(prefix="thinwire-align-") as folder,
            self._connected(Path(folder), most) as channel,
        ):
            self._gather()
            used = replace(room, say=self._say, on_bucket=lambda: channel.on_checkpoint(channel.state()))
            own = self.own
            talk = Conversation(own.me, own.label_party, own.feature_parties, channel, self._grouped)
            try:
                if own.is_label_party:
                    return align_label_party(ids, talk, backend, terms, on_progress, groups, used)
                return align_feature_party(ids, talk, backend, terms, on_progress, used)
            except _KNOWN_TO_ALL:
                raise
            except ThinwireError as error:
                for link in self._links.values():
                    link.tell({"stopped": f"{self.own.me!r}: {error}"})
                raise
            finally:
                channel.drain(_LAST_WORDS_SECONDS)

    @contextmanager
    def _connected(self, folder: Path, max_body: int) -> Iterator[NetworkChannel]:
        own = self.own
        run = derive_seed(_PURPOSE, self._attempt.what, *self._attempt.parties)
        self._links = {
            peer: PeerLink(
                LinkEnds(run, own.me, peer, self._attempt.parties),
                OutgoingLog(folder / peer, 1, self._full),
                self.ledger,
                self._heard,
            )
            for peer in own.peers
        }
        for link in self._links.values():
            link.max_body = max_body
        patience = Patience(own.wait_seconds, self._waiting, self._interrupted)
        channel = NetworkChannel(
            own.me, self._links, self.ledger, OutgoingLog(folder / layout.ANSWERS, 1, self._full), patience
        )
        disconnect = self._listen() if own.is_label_party else self._dial()
        try:
            yield channel
        finally:
            disconnect()
            channel.close()

    def _listen(self) -> Callable[[], None]:
        own = self.own
        address = own.listen_address()
        listener = own.listener(self, self._heard)
        listener.start()
        self._say(f"waiting at {address} for {', '.join(own.feature_parties)}")
        return listener.stop

    def _dial(self) -> Callable[[], None]:
        own = self.own
        target = own.target()
        self._say(f"calling {own.label_party!r} at {target.address}")
        dialer = Dialer(target, self._links[own.label_party], self)
        dialer.start()
        return dialer.close

    def _gather(self) -> None:
        began = told = monotonic()
        while missing := [name for name, link in self._links.items() if not link.is_connected]:
            self._interrupted()
            if monotonic() - began > self.own.wait_seconds:
                raise PartyMissing(missing[0], "the alignment has not begun", self.own.wait_seconds)
            if monotonic() - told > _TELL_SECONDS:
                told = monotonic()
                self._say(f"waiting for {', '.join(missing)}")
            sleep(0.05)

    # The desk and the greeter ------------------------------------------------------------------------------------

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> PeerLink:
        if peer in self._instances and hello.get("purpose") != _PURPOSE:
            raise NotYet(f"{self.own.me!r} still aligns with the others; {peer!r} is already at the next step")
        self._note(peer, self._attempt.require(peer, self.own.me, hello))
        return self._links[peer]

    def welcome(self, peer: PartyName) -> dict[str, Any]:
        return self._attempt.hello(self.own.me, self._instance)

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        raise NotYet("an alignment is in progress; there is no run to ask about")

    def hello(self) -> dict[str, Any]:
        link = self._links[self.own.label_party]
        return {**self._attempt.hello(self.own.me, self._instance), **link.describe_state()}

    def check_welcome(self, welcome: dict[str, Any]) -> None:
        self._note(self.own.label_party, self._attempt.require(self.own.label_party, self.own.me, welcome))

    def report_no_answer(self, why: str) -> None:
        self._say(printable(why))

    def _note(self, peer: PartyName, instance: str) -> None:
        """A process that was started again has other keys: what it says no longer fits."""
        if self._instances.setdefault(peer, instance) != instance:
            way_out = "start the alignment again at every party (of large sets, the buckets that are done are kept)"
            error = Refused(f"{peer!r} was restarted during the alignment; {way_out}")
            self._links[peer].fail(error)
            raise error

    # What happens meanwhile --------------------------------------------------------------------------------------

    def _heard(self, event: str, peer: PartyName | None = None, **facts: Any) -> None:
        if event in ("connected", "disconnected"):
            self._say(f"{event}: {peer}")
        elif event == "news" and peer is not None and isinstance(facts.get("told"), dict):
            why = facts["told"].get("stopped")
            if why is not None:
                self._links[peer].fail(Refused(f"stopped by another party: {printable(why)}"))
        elif "why" in facts:
            self._say(f"{event}: {printable(facts['why'])}")

    def _waiting(self, peer: PartyName, kind: Kind, round: Round, waited: float, left: float) -> None:
        self._say(f"waiting for {peer!r} for {waited:.0f} s, {left:.0f} s more")

    def _interrupted(self) -> None:
        for link in self._links.values():
            link.require_no_failure()

    def _full(self, failed: WriteFailed) -> None:
        self._say(f"{failed}; waiting for disk space")
        self._interrupted()
        sleep(1.0)
