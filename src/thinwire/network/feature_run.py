"""A feature party's process: it dials the label party, trains, and dials again whenever the line breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from thinwire.at_rest import layout
from thinwire.conversations.label_side import LabelSide
from thinwire.conversations.learner import Learner, Untrained
from thinwire.conversations.spending import Spending
from thinwire.group import Group
from thinwire.job.init_from import InitFrom
from thinwire.job.party_view import PartyView
from thinwire.job.program_factory import PartySecrets, ProgramFactory
from thinwire.network.introduction import About, compare, read_about, read_news
from thinwire.network.party_run import Audience, Held, PartyRun
from thinwire.network.recording import spent_so_far
from thinwire.party import Control, FeatureParty, FeatureProgram
from thinwire.privacy import Labels, SecureSum
from thinwire.privacy.context import framed
from thinwire.privacy.keys import derived_key
from thinwire.runs import ChargeLog, FolderLock
from thinwire.transport.certificates import Revocations
from thinwire.transport.grpc_channel import Dialer, Target, Unreached
from thinwire.transport.service import Refused
from thinwire.transport.signing import CertifiedIdentity
from thinwire.types import PartyName, Round

__all__ = ["FeatureRun", "run_secret"]

_TELL_SECONDS = 10.0
_LABEL_PARTY_FIRST = 30.0  # seconds: it stops first, and names whom all have waited for


def run_secret(secret: bytes, nonce: str) -> bytes:
    """A party's secret for one run: a folder that was copied before its run began serves no second one."""
    return derived_key(secret, framed("thinwire run secret 1", nonce))


class FeatureRun(PartyRun):
    """Implements `Greeter` for the dialler, and `Charges` for the privacy ledger."""

    program: FeatureProgram
    _spending: Spending

    def __init__(
        self,
        own: PartyView,
        lock: FolderLock,
        folder: Path,
        held: Held,
        party: FeatureParty,
        audience: Audience,
        *,
        beginning: InitFrom | None = None,
        group: Group | None = None,
    ) -> None:
        super().__init__(own, lock, folder, held, audience.say, beginning)
        self._party = party
        self._group = group
        self._audience = audience
        self._widths: dict[PartyName, int] | None = None
        label = own.label_party
        self.links[label].max_body = self._max_body(held.width)
        target = Target(own.network.dial_address(), own.certificate_names[label], own.me, self.credentials)
        self._address = target.address
        self._charges = ChargeLog(folder / layout.CHARGES, self.directory.files.lines(folder / layout.CHARGES))
        self._said = ("", 0.0)  # why nobody answered, and after how many seconds
        self._dialer = Dialer(target, self.links[label], self)

    def _peer_names(self) -> tuple[PartyName, ...]:
        return (self.own.label_party,)

    def _connect(self) -> None:
        self.events("dialling", self.own.label_party, address=self._address)
        self._dialer.start()

    def _disconnect(self) -> None:
        self._dialer.close()

    def _patience_seconds(self) -> float:
        return super()._patience_seconds() + _LABEL_PARTY_FIRST

    def _ready_to_begin(self) -> PartyName | None:
        if self._widths is None:
            self._widths = self._told_widths()
        if self._widths is not None:
            return None
        away = self.links[self.own.label_party].news.get("away")
        return away[0] if away and self.links[self.own.label_party].connected else self.own.label_party

    def _told_widths(self) -> dict[PartyName, int] | None:
        told = self.links[self.own.label_party].news.get("begin")
        if told is None:
            return None
        names = {*self.own.feature_parties, self.own.label_party}
        if not set(self.own.feature_parties) <= set(told) <= names:
            raise Refused(f"{self.own.label_party!r} begins with other parties than the job's")
        widths = {name: told[name] for name in (*self.own.feature_parties, self.own.label_party) if name in told}
        if widths[self.own.me] != self._held.width:
            raise Refused(f"{self.own.label_party!r} takes our embedding to be {widths[self.own.me]} wide")
        if isinstance(self.own.recipe.aggregation, SecureSum) and set(widths.values()) != {self._held.width}:
            raise Refused(f"{self.own.label_party!r} tells of other widths than ours, and a sum has one")
        return widths

    def _known_widths(self) -> dict[PartyName, int]:
        return self._widths or {}

    def _seating(self) -> ProgramFactory:
        return replace(super()._seating(), group=self._group)

    def _program(self, seating: ProgramFactory, control: Control) -> FeatureProgram:
        widths = self._known_widths()
        seating = self._inherited(seating, {self.own.me: self._party.bottom}, None)
        side = None
        if self.own.recipe.labels is Labels.SHARED:
            side = self._shared_side(widths)
        seat = seating.seat(self.own.me, self.channel)
        identity = CertifiedIdentity(self.credentials, self.own.certificate_names, Revocations(self.own.revoked))
        ledger = self.own.privacy_plan(widths).ledger(self.own.me, self._held.rows + self._held.test_rows)
        self._spending = Spending(ledger, self._held.rows, self)
        nonce = self.private.run_nonce or ""
        own = PartySecrets(identity, run_secret(self.private.noise_secret, nonce), self._spending, nonce)
        return seating.feature_program(self._party, seat, widths, control, own=own, side=side)

    def _described(self) -> FeatureParty:
        return self._party

    def _spent_so_far(self) -> list[dict[str, Any]]:
        return spent_so_far(self.own, self._spending.ledger.spent)

    def record(self, charge: str, spent: Callable[[], dict[str, Any]]) -> None:
        """Of the privacy ledger; waits where the disk is full."""
        self.persistently(lambda: self._charges.record(charge, spent))

    def _shared_side(self, widths: dict[PartyName, int]) -> LabelSide:
        """The label party's top model as this party's own job file describes it; its weights come every round."""
        top, loss, fusion = self.own.top_module(widths)
        labels = self._party.features.new_zeros(0).long()
        learner = Learner(f"{self.own.label_party}/top", top.to(self.own.settings.device), Untrained(), 0, 1)
        return LabelSide(learner, labels.to(self.own.settings.device), loss, fusion)

    # The greeter: what is said when the line is up -----------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        return {**self.about().model_dump(), **self.links[self.own.label_party].standing()}

    def welcomed(self, welcome: dict[str, Any]) -> None:
        label = self.own.label_party
        theirs = read_about(label, welcome)
        if theirs.party != label:
            raise Refused(f"{self._address} is {theirs.party!r}; expected {label!r}")
        compare(self.about(), theirs)
        self._require_same_process(theirs)
        if theirs.nonce is None:
            raise Refused(f"{label!r} names no run")
        if self.private.run_nonce is None:
            self.private.set_run_nonce(theirs.nonce)
        self.persistently(lambda: self.peers.note(theirs))
        told: dict[str, Any] = {topic: welcome[topic] for topic in ("begin", "noted") if topic in welcome}
        believed = read_news(told, from_label_party=True)
        if "begin" in told and "begin" not in believed:
            raise Refused(f"{label!r} begins with widths that cannot be")
        self.links[label].news |= believed

    def _require_same_process(self, theirs: About) -> None:
        known = self.peers[theirs.party]
        if theirs.incarnation < known.incarnation:
            raise Unreached(f"an old process of {theirs.party!r} answers, which a later one has replaced")
        if theirs.incarnation == known.incarnation and theirs.instance != known.instance:
            raise Refused(
                f"{theirs.party!r} was started from an older copy of its folder; bring the newest one back, or begin "
                "a new run at every party in new folders"
            )

    def unreached(self, why: str, seconds: float) -> None:
        # Once, and then every ten seconds: it may be minutes.
        said_why, said_at = self._said
        if why != said_why or seconds < said_at or seconds - said_at >= _TELL_SECONDS:
            self._said = (why, seconds)
            self.events("unreached", self.own.label_party, why=why)

    def begin_round(self, round: Round) -> bool:
        self._audience.round(round)
        return super().begin_round(round)

    def _to_save(self) -> dict[str, Any]:
        return {}

    def _resumed(self, data: dict[str, Any]) -> None:
        """There is nothing more to take."""

    # The end ----------------------------------------------------------------------------------------------------

    def _models(self) -> dict[str, Any]:
        return {self.own.me: self.program.bottom.module}

    def _tell_those_away(self) -> None:
        """The label party does."""

    def _results(self) -> dict[str, Any]:
        return {"privacy": [self._spending.ledger.spent()]}
