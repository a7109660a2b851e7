"""What a party remembers of the others, on disk: which process it has spoken to, and who has finished."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import RLock

from thinwire.base.types import PartyName
from thinwire.net.grpc.service import Refused
from thinwire.net.handshake import TrainingHello
from thinwire.net.links.peer_link import PeerLink
from thinwire.storage import layout
from thinwire.storage.atomic_file import map_write_errors, replace_file
from thinwire.storage.json_file import canonical_json

_MOST_STARTS = 1 << 20  # of a peer while we did not hear of it: one a second for twelve days


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """The newest process of a peer that was heard of."""

    incarnation: int = 0
    instance: str = ""
    width: int = 0
    finished: bool = False


class PeerProcesses:
    """Loads and saves them."""

    def __init__(self, folder: Path, names: tuple[PartyName, ...]) -> None:
        self._path = folder / layout.PEERS
        self._lock = RLock()
        self._known = dict.fromkeys(names, PeerProcess())
        if self._path.exists():
            for name, held in json.loads(self._path.read_text()).items():
                if name in self._known:
                    self._known[name] = PeerProcess(**held)

    def __getitem__(self, name: PartyName) -> PeerProcess:
        return self._known[name]

    def admit(self, about: TrainingHello, link: PeerLink) -> None:
        """Refuses a process that is not the party's newest; otherwise it is that from now on, on disk."""
        with self._lock:
            self.require_current(about, link)
            self.note(about)

    def require_current(self, about: TrainingHello, link: PeerLink) -> None:
        """Refuses a process that another one has replaced, or that is a second one of the same party."""
        has_spoken = link.describe_state()["received"] > 0
        known = self._known[about.party]
        if about.nonce is None and has_spoken:
            raise Refused(
                f"{about.party!r} starts from scratch, but has taken part in this run before: its folder is lost, "
                "or a different --out was given. Restore the folder, or start a new run at every party in new "
                "folders"
            )
        if about.incarnation < known.incarnation:
            raise Refused(
                f"{about.party!r}: this process was replaced by a later one (it is start {about.incarnation}, the "
                f"party is at start {known.incarnation}); it must end. If there is no later one, stop this side, "
                f"take {about.party!r} out of its {layout.PEERS}, and start both again"
            )
        if about.incarnation > known.incarnation + _MOST_STARTS:
            raise Refused(
                f"{about.party!r} says that it is start {about.incarnation}, and was at start {known.incarnation} "
                "before; the gap is too large: restore its private.json from a backup, or start a new run"
            )
        other = known.instance not in ("", about.instance)
        twice = other and about.incarnation == known.incarnation and has_spoken
        if twice or (other and link.is_connected and about.nonce is None):
            raise Refused(
                f"another process already takes part as {about.party!r}; stop it first, or resume in its folder"
            )
        if known.width not in (0, about.width):
            raise Refused(f"{about.party!r} now has embeddings of width {about.width}, it began with {known.width}")

    def note(self, about: TrainingHello) -> None:
        """On disk before the peer hears that it is welcome."""
        self._set(
            about.party,
            replace(
                self._known[about.party],
                incarnation=about.incarnation,
                instance=about.instance,
                width=about.width,
                finished=self._known[about.party].finished or about.finished,
            ),
        )

    def mark_finished(self, name: PartyName) -> None:
        self._set(name, replace(self._known[name], finished=True))

    def list_unfinished(self) -> list[PartyName]:
        return [name for name, peer in self._known.items() if not peer.finished]

    def _set(self, name: PartyName, peer: PeerProcess) -> None:
        with self._lock:
            if self._known[name] == peer:
                return
            known = self._known | {name: peer}
            data = canonical_json({name: asdict(held) for name, held in known.items()})
            with map_write_errors(self._path, len(data)):
                replace_file(self._path, data)
            self._known = known
