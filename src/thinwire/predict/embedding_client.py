"""The label party that asks: it listens, admits the others, and has their embeddings for the rows it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Condition, Lock
from time import monotonic
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire.base.errors import ThinwireError
from thinwire.base.format import printable
from thinwire.base.types import PartyName
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.privacy import SecureSum
from thinwire.job.party_view import PartyView
from thinwire.net.grpc.service import NotYet, Refused, Rpc
from thinwire.net.handshake import CacheTerms, OfferedModel, PredictionHello, read_prediction_hello
from thinwire.net.links.network_channel import PartyMissing
from thinwire.net.links.question_line import QuestionLine
from thinwire.predict.errors import ModelMismatch, PartyAway, QuestionFailed
from thinwire.predict.party_models import LabelModel, ReadyModel, drop_surplus, is_new_run
from thinwire.predict.pending_requests import PendingRequests, open_line

_TELL_SECONDS = 10.0
_MOST_BYTES = 9  # that the codec spends on a value
_MOST_ROWS = 1 << 16


class _Models(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    models: list[OfferedModel] = Field(max_length=8)


class EmbeddingClient:
    """Implements `Desk` for the listener."""

    def __init__(
        self, own: PartyView, model: LabelModel, say: Callable[[str], None], clients: Sequence[str] = ()
    ) -> None:
        self.own = own
        self.ledger = Ledger()
        self.models: dict[str, LabelModel] = {model.run: model}  # oldest first
        self.refused: dict[PartyName, QuestionFailed] = {}  # why a party was not admitted, until it is
        self.cache_terms: dict[PartyName, CacheTerms | None] = {}
        self._say = say
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._choosing = Lock()
        self._offers: dict[PartyName, dict[str, OfferedModel]] = {}  # by party and run, of those that were met
        self.ready: ReadyModel | None = None  # the newest model that every party has, or had when it was last here
        self.lines: dict[PartyName, QuestionLine] = {}
        self.pending = PendingRequests(self.lines, self.explain_absence)
        for party in own.feature_parties:
            receive = partial(self.pending.receive_answer, party)
            self.lines[party] = open_line(own, party, self.ledger, self._heard, receive)
        self._listener = own.network_party.listener(self, self._heard, clients)
        self.score_handler: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def start(self) -> None:
        self._listener.start()
        self._say(f"waiting at {self.own.network_party.listen_address()} for {', '.join(self.own.feature_parties)}")

    def close(self, news: dict[str, Any] | None = None) -> None:
        for line in self.lines.values():
            if news is not None:
                line.tell(news)
            line.drain(2.0)
        self._listener.stop()

    # Who is there ---------------------------------------------------------------------------------------------------

    def list_absent(self) -> list[PartyName]:
        return [party for party, line in self.lines.items() if not line.is_connected]

    def wait_for_parties(self, seconds: float) -> ReadyModel:
        """Waits until all parties are here with one model; names whom it waits for."""
        began = told = monotonic()
        while (ready := self.ready) is None or self.list_absent():
            missing = self.list_absent() or list(self.own.feature_parties)
            if monotonic() - began > seconds:
                why = self.refused.get(missing[0])
                raise PartyMissing(missing[0], str(why or "nothing can be scored without it"), seconds)
            if monotonic() - told > _TELL_SECONDS:
                told = monotonic()
                self._say(f"waiting for {', '.join(missing)}")
            with self._lock:
                self._changed.wait(0.1)
        return ready

    def add(self, model: LabelModel) -> None:
        """A newer model beside the one in use, which takes its place once all parties have it."""
        if not is_new_run(model, self.models):
            return
        with self._lock:
            self.models[model.run] = model
            drop_surplus(self.models, None if self.ready is None else self.ready.run)
            offers = {party: held[model.run] for party, held in self._offers.items() if model.run in held}
        for party, offered in offers.items():  # of those that had it first
            self._pin(party, offered)
        self._choose()

    def _choose(self) -> None:
        """The newest model that all offer takes over; questions that are under way carry the old one."""
        with self._choosing:
            with self._lock:
                models = list(self.models.values())
            for model in reversed(models):
                known = self._offered_by_all(model)
                if known is None:  # the one in use too, where a party has dropped it
                    continue
                if self.ready is not None and self.ready.run == model.run:
                    return
                try:
                    self._use(model, known)
                except ThinwireError as error:
                    self._say(f"the model {model.hash[:12]} cannot be used: {error}")
                    continue
                return

    def _offered_by_all(self, model: LabelModel) -> dict[PartyName, OfferedModel] | None:
        known = {}
        for party in self.own.feature_parties:
            offered = self._find_offer(model, party)
            if offered is None or offered.recipe != model.recipe or model.find_reference_hash(party) != offered.hash:
                return None
            known[party] = offered
        return known

    def _find_offer(self, model: LabelModel, party: PartyName) -> OfferedModel | None:
        """As the party told last; as it told once, where it is away and a default stands for it."""
        with self._lock:
            offered = self._offers.get(party, {}).get(model.run)
        if offered is not None or self.lines[party].is_connected or self._uses_secure_sum:
            return offered
        pinned = model.pins.find(model.run, party)
        return None if pinned is None or pinned.default is None else pinned

    @property
    def _uses_secure_sum(self) -> bool:
        return isinstance(self.own.recipe.aggregation, SecureSum)

    def _use(self, model: LabelModel, known: dict[PartyName, OfferedModel]) -> None:
        scorer = model.build_scorer({party: one.width for party, one in known.items()})
        stated = {party: one.default for party, one in known.items() if one.default is not None}
        defaults = {} if scorer.uses_secure_sum else stated
        with self._lock:
            self.ready = ReadyModel(model, scorer, {p: one.hash for p, one in known.items()}, defaults)
            for party, line in self.lines.items():
                line.max_body = (1 << 16) + _MOST_BYTES * _MOST_ROWS * known[party].width
            self._changed.notify_all()
        self._pass_on_keys(model.run, known)
        for line in self.lines.values():
            line.tell({"serving": model.run})
        self._say(f"the model {self.ready.version[:12]} is in use")

    def _pass_on_keys(self, run: str, known: Mapping[PartyName, OfferedModel]) -> None:
        """Signed by their owners; this party can neither read what they protect nor change them unnoticed."""
        if not self._uses_secure_sum:
            return
        keys = {party: one.key for party, one in known.items()}
        self.pending.tell({p: {"keys": {run: {o: key for o, key in keys.items() if o != p}}} for p in self.lines})

    # The desk -------------------------------------------------------------------------------------------------------

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> QuestionLine:
        try:
            theirs = read_prediction_hello(peer, hello, self._introduce())
        except Refused as error:
            self.refused[peer] = PartyAway(peer, str(error))
            raise
        try:
            self._require_models(peer, theirs.models)
        except (Refused, NotYet) as error:
            self.refused[peer] = ModelMismatch(peer, str(error))
            raise
        self.refused.pop(peer, None)
        self.cache_terms[peer] = theirs.cache
        self._note(peer, theirs.models)
        return self.lines[peer]

    def _require_models(self, peer: PartyName, offered: Sequence[OfferedModel]) -> None:
        """A model that has changed since this run was first served is another one; charges are never fewer."""
        for one in offered:
            model = self.models.get(one.run)
            expected = None if model is None else model.find_reference_hash(peer)
            pinned = None if model is None else model.pins.find(one.run, peer)
            if pinned is not None and one.next_number < pinned.next_number:
                raise Refused(
                    f"{peer!r} was started from an older copy of its run's folder: it has answered questions of "
                    "this run that its record of charges does not hold. Restore the newest copy, or train a new run"
                )
            if self._uses_secure_sum and not one.key:
                raise Refused(f"{peer!r} brings no key, which the other parties of a secure sum need to mask theirs")
            if expected is not None and expected != one.hash:
                raise Refused(
                    f"{peer!r} brings the model {one.hash[:12]}, but this run's is {expected[:12]}: its file has "
                    "changed. Restore the file that the run wrote, or train a new run"
                )
        if not any(one.run in self.models for one in offered):
            runs = ", ".join(run[:12] for run in self.models)
            # A newer run may come to this side too: it is worth to call again.
            raise NotYet(
                f"{peer!r} brings models of the run {', '.join(one.run[:12] for one in offered)}, {self.own.me!r} "
                f"has {runs}: give every party the folder of the same run"
            )

    def _note(self, peer: PartyName, offered: Sequence[OfferedModel]) -> None:
        with self._lock:
            self._offers[peer] = {one.run: one for one in offered}
        self.pending.skip_to(max((one.next_number for one in offered), default=0))
        for one in offered:
            self._pin(peer, one)

    def _pin(self, peer: PartyName, offered: OfferedModel) -> None:
        """From the first time on that this run is served here."""
        model = self.models.get(offered.run)
        if model is None:
            return
        if model.find_reference_hash(peer) in (None, offered.hash):
            model.pins.pin(peer, offered)
        else:
            self._say(
                f"{peer!r} brings another model of the run {offered.run[:12]} than the one that was served before"
            )

    def welcome(self, peer: PartyName) -> dict[str, Any]:
        return self._introduce().to_message()

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        if rpc.name == "Score" and self.score_handler is not None:
            return self.score_handler(request)
        raise NotYet("this party is predicting; there is no training run to ask about")

    def _introduce(self) -> PredictionHello:
        return next(iter(self.models.values())).rows.introduce(self.own)

    # Questions ------------------------------------------------------------------------------------------------------

    def explain_absence(self, party: PartyName) -> QuestionFailed:
        """What to tell whoever asks for a party that is not there."""
        return self.refused.get(party) or PartyAway(party)

    # What happens meanwhile -----------------------------------------------------------------------------------------

    def _heard(self, event: str, peer: PartyName | None = None, **facts: Any) -> None:
        match event:
            case "connected":
                self._say(f"{peer!r} is connected")
                self._choose()
                self._welcome_back(peer)
            case "disconnected":
                self._say(f"{peer!r} disconnected: {printable(facts.get('why', ''))}")
                self.pending.fail_party(str(peer))
            case "news" if peer is not None:
                self._take_news(peer, facts["told"])
            case "denied" | "refused" | "damaged":
                self._say(f"{event}: {printable(facts.get('why', ''))}")

    def _welcome_back(self, peer: PartyName | None) -> None:
        """A party that was started again needs the others' keys again."""
        ready = self.ready
        if ready is None or peer is None:
            return
        known = self._offered_by_all(ready.model)
        if known is not None:
            self._pass_on_keys(ready.run, known)
        self.lines[peer].tell({"serving": ready.run})

    def _take_news(self, peer: PartyName, told: Mapping[str, Any]) -> None:
        try:
            offered = _Models.model_validate(told).models
            self._require_models(peer, offered)
        except (ValidationError, Refused, NotYet) as error:
            self._say(f"{peer!r} sent an invalid message: {printable(error)[:300]}")
            return
        self._note(peer, offered)
        self._choose()
