"""A feature party's role: it dials the label party, trains, and dials again whenever the line breaks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from thinwire.base.types import PartyName
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.privacy.keys import derive_key, frame_values
from thinwire.engine.programs.parties import FeatureParty
from thinwire.engine.programs.program import Control, FeatureProgram
from thinwire.engine.protocols.bottom import Learner
from thinwire.engine.protocols.ends import LabelSide
from thinwire.engine.protocols.sealing import Spending
from thinwire.engine.wire.frame import MAX_BODY
from thinwire.net.grpc.client import Dialer, Unreached
from thinwire.net.grpc.service import Refused
from thinwire.net.handshake import TrainingHello, check_training_hello, read_training_hello, read_training_news
from thinwire.report.record import Importance
from thinwire.storage import layout
from thinwire.training.importance import describe_unmeasured, rank_columns, rank_gains
from thinwire.training.party.party_checkpoints import InitialWeights
from thinwire.training.party.party_run import PartyRole, PreparedProgram
from thinwire.training.party.session import PartySession
from thinwire.training.program_factory import PartySecrets, ProgramFactory
from thinwire.training.ranks.rank_share import RankGroup
from thinwire.training.recording import list_spending


def derive_run_secret(secret: bytes, nonce: str) -> bytes:
    """A party's secret for one run: a folder that was copied before its run began serves no second one."""
    return derive_key(secret, frame_values("thinwire run secret 1", nonce))


class FeatureRole(PartyRole):
    """Implements `Greeter` for the dialler."""

    _spending: Spending
    _program: FeatureProgram

    def __init__(
        self, session: PartySession, weights: InitialWeights, party: FeatureParty, group: RankGroup | None = None
    ) -> None:
        own = session.own
        self._session = session
        self._own = own
        self._weights = weights
        self._party = party
        self._group = group
        self._agreed_widths: dict[PartyName, int] | None = None
        self._link = session.links[own.label_party]
        # Under shared labels everyone's widths and the top model count, which `prepare` knows.
        shared = own.recipe.labels is Labels.SHARED
        self._link.max_body = session.max_body(MAX_BODY if shared else session.sizes.width)
        target = session.network.target()
        self._address = target.address
        self._charges = session.private.open_charges(session.folder / layout.CHARGES, session.write_persistently)
        self._dialer = Dialer(target, self._link, self)

    def connect(self) -> None:
        self._session.events("dialling", self._own.label_party, address=self._address)
        self._dialer.start()

    def disconnect(self) -> None:
        self._dialer.close()

    def missing_party(self) -> PartyName | None:
        if self._agreed_widths is None:
            self._agreed_widths = self._receive_widths()
        if self._agreed_widths is not None:
            return None
        away = self._link.news.get("away")
        return away[0] if away and self._link.is_connected else self._own.label_party

    def _receive_widths(self) -> dict[PartyName, int] | None:
        own, width = self._own, self._session.sizes.width
        told = self._link.news.get("begin")
        if told is None:
            return None
        names = (*own.feature_parties, own.label_party)
        if not set(own.feature_parties) <= set(told) <= set(names):
            raise Refused(f"{own.label_party!r} starts with different parties from the job's")
        widths = {name: told[name] for name in names if name in told}
        if widths[own.me] != width:
            raise Refused(f"{own.label_party!r} expects our embedding to have width {widths[own.me]}")
        if isinstance(own.recipe.aggregation, SecureSum) and set(widths.values()) != {width}:
            raise Refused(f"{own.label_party!r} reports different embedding widths; a sum needs one")
        return widths

    def tell_absent(self) -> None:
        """The label party does."""

    def widths(self) -> dict[PartyName, int]:
        return self._agreed_widths or {}

    def prepare(self, factory: ProgramFactory, control: Control) -> PreparedProgram:
        session, own, widths = self._session, self._own, self.widths()
        owners = {} if self._party.owners is None else {own.me: self._party.owners}
        factory = replace(factory, group=self._group, owners=owners)
        factory = self._weights.apply(factory, self._party, {own.me: self._party.bottom}, widths, None)
        side = self._shared_side(widths) if own.recipe.labels is Labels.SHARED else None
        context = factory.context(own.me, session.channel)
        identity = session.network.identity()
        sizes = session.sizes
        ledger = own.privacy_plan(widths).ledger(own.me, sizes.all_rows)
        self._spending = Spending(ledger, sizes.rows, self._charges, sizes.validation_rows)
        nonce = session.private.run_nonce or ""
        secrets = PartySecrets(
            identity, derive_run_secret(session.private.noise_secret, nonce), self._spending, nonce
        )
        program = factory.feature_program(self._party, context, widths, control, own=secrets, side=side)
        self._program = program
        models = {own.me: program.bottom.module}
        spending = partial(list_spending, own.recipe, lambda: [ledger.summary()])
        return PreparedProgram(program, self._party, models, spending)

    def _shared_side(self, widths: dict[PartyName, int]) -> LabelSide:
        """The label party's top model as this party's own job file describes it; its weights come every round."""
        top, loss, fusion = self._own.build_top(widths)
        labels = self._party.features.new_zeros(0).long()
        self._link.max_body = self._session.max_body(sum(widths.values()), sum(p.numel() for p in top.parameters()))
        learner = Learner(f"{self._own.label_party}/top", top.to(self._own.settings.device), None, 0, 1)
        return LabelSide(learner, labels.to(self._own.settings.device), loss, fusion)

    # The greeter: what is said when the line is up -----------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        return {**self._session.describe_self().model_dump(), **self._link.describe_state()}

    def check_welcome(self, welcome: dict[str, Any]) -> None:
        label = self._own.label_party
        theirs = read_training_hello(label, self._own.me, welcome)
        if theirs.party != label:
            raise Refused(f"{self._address} is {theirs.party!r}; expected {label!r}")
        check_training_hello(self._session.describe_self(), theirs)
        self._require_same_process(theirs)
        if theirs.nonce is None:
            raise Refused(f"{label!r} names no run")
        if self._session.private.run_nonce is None:
            self._session.private.set_run_nonce(theirs.nonce)
        self._session.write_persistently(lambda: self._session.peers.note(theirs))
        told: dict[str, Any] = {topic: welcome[topic] for topic in ("begin", "noted") if topic in welcome}
        believed = read_training_news(told, from_label_party=True)
        if "begin" in told and "begin" not in believed:
            raise Refused(f"{label!r} starts with invalid widths")
        self._link.news |= believed

    def _require_same_process(self, theirs: TrainingHello) -> None:
        known = self._session.peers[theirs.party]
        if theirs.incarnation < known.incarnation:
            raise Unreached(f"an old process of {theirs.party!r} answers, but a newer one has replaced it")
        if theirs.incarnation == known.incarnation and theirs.instance != known.instance:
            raise Refused(
                f"{theirs.party!r} was started from an outdated copy of its folder; restore the newest one, or "
                "start a new run at every party in new folders"
            )

    def report_no_answer(self, why: str) -> None:
        if not self._session.is_over_with(self._own.label_party):
            self._session.events("unreached", self._own.label_party, why=why)

    # The end ----------------------------------------------------------------------------------------------------

    def assess(self) -> dict[str, Any]:
        """What its own columns are worth: by the gain of its trees, and where the label party was asked."""
        found, gains = self._program.column_losses, rank_gains([self._party])
        if found is None:
            only = Importance(metric="", gains=gains)
            return {"importance": only.model_dump(mode="json")} if gains else {}
        note, columns = self._describe_unmeasured(), rank_columns({self._own.me: found.lost})
        importance = Importance(metric=found.metric, columns=columns, gains=gains, note=note)
        return {"importance": importance.model_dump(mode="json")}

    def _describe_unmeasured(self) -> str:
        several = "Columns are not measured where a party has several processes: none of them holds all rows."
        return describe_unmeasured([self._party]) if self._group is None else several

    def results(self) -> dict[str, Any]:
        return {"privacy": [self._spending.ledger.summary()]}
