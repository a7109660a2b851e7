"""The label party that asks: it listens, admits the others, and has their embeddings for the rows it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Condition, Lock
from time import monotonic
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire.base.errors import ThinwireError
from thinwire.base.format import printable
from thinwire.base.types import PartyName
from thinwire.engine.channel.base import TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.privacy import SecureSum
from thinwire.job.party_view import PartyView
from thinwire.net.grpc.server import Listener
from thinwire.net.grpc.service import NotYet, Refused, Rpc
from thinwire.net.handshake import CacheTerms, OfferedModel, PredictionHello, read_prediction_hello
from thinwire.net.links.network_channel import PartyMissing
from thinwire.net.links.peer_link import LinkEnds
from thinwire.net.links.question_line import QuestionLine
from thinwire.predict.errors import ModelMismatch, PartyAway, QuestionFailed
from thinwire.predict.party_models import LabelModel, ReadyModel, is_new_run
from thinwire.predict.pending_requests import PendingRequests
from thinwire.training.program_factory import derive_run_number

_MOST_MODELS = 2  # the one in use, and the next
_TELL_SECONDS = 10.0
_MOST_BYTES = 9  # that the codec spends on a value
_MOST_ROWS = 1 << 16
_MOST_CLIENTS = 16  # threads for those that ask over gRPC


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
        parties = (*own.feature_parties, own.label_party)
        number = derive_run_number(own.recipe, 0, own.feature_parties)
        self.lines: dict[PartyName, QuestionLine] = {}
        self.pending = PendingRequests(self.lines, self.explain_absence)
        for party in own.feature_parties:
            ends, receive = LinkEnds(number, own.me, party, parties), partial(self.pending.receive_answer, party)
            self.lines[party] = QuestionLine(ends, self.ledger, self._heard, receive)
        network = own.network_party
        self._listener = Listener(
            network.listen_address(),
            network.load_credentials,
            network.access_list(clients),
            self,
            self._heard,
            len(own.feature_parties) + _MOST_CLIENTS,
        )
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

    def wait_for_parties(self, seconds: float, interrupted: Callable[[], None] = lambda: None) -> ReadyModel:
        """Waits until all parties are here with one model; names whom it waits for."""
        began = told = monotonic()
        while (ready := self.ready) is None or self.list_absent():
            interrupted()
            missing = self.list_absent() or list(self.own.feature_parties)
            if monotonic() - began > seconds:
                why = self.refused.get(missing[0])
                raise PartyMissing(missing[0], str(why or "nothing can be asked without it"), seconds)
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
            serving = None if self.ready is None else self.ready.run
            for run in [run for run in self.models if run != serving][:-1]:
                if len(self.models) > _MOST_MODELS:
                    del self.models[run]
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
                if self.ready is not None and self.ready.run == model.run:
                    return
                known = self._offered_by_all(model)
                if known is None:
                    continue
                try:
                    self._use(model, known)
                except ThinwireError as error:
                    self._say(f"the model {model.hash[:12]} cannot be used: {error}")
                    continue
                return

    def _offered_by_all(self, model: LabelModel) -> dict[PartyName, OfferedModel] | None:
        with self._lock:
            offers = {party: held.get(model.run) for party, held in self._offers.items()}
        known = {}
        for party in self.own.feature_parties:
            offered = offers.get(party) or model.pins.find_default_offer(model.run, party)
            if offered is None or offered.recipe != model.recipe or model.find_reference_hash(party) != offered.hash:
                return None
            known[party] = offered
        return known

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
            _told(line, {"serving": model.run})
        self._say(f"the model {self.ready.version[:12]} is in use")

    def _pass_on_keys(self, run: str, known: Mapping[PartyName, OfferedModel]) -> None:
        """Signed by their owners; this party can neither read what they protect nor change them unnoticed."""
        if not isinstance(self.own.recipe.aggregation, SecureSum):
            return
        keys = {party: one.key or "" for party, one in known.items()}
        for party, line in self.lines.items():
            _told(line, {"keys": {run: {other: key for other, key in keys.items() if other != party}}})

    # The desk -------------------------------------------------------------------------------------------------------

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> QuestionLine:
        try:
            theirs = read_prediction_hello(peer, hello, self._introduced())
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
        """A model that has changed since this run was first served is another one."""
        for one in offered:
            model = self.models.get(one.run)
            expected = None if model is None else model.find_reference_hash(peer)
            if expected is not None and expected != one.hash:
                raise Refused(
                    f"{peer!r} brings the model {one.hash[:12]}, but this run's is {expected[:12]}: its file has "
                    "changed. Bring back the file that the run wrote, or train a new run"
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
        return self._introduced().to_message()

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        if rpc.name == "Score" and self.score_handler is not None:
            return self.score_handler(request)
        raise NotYet("predictions are under way here; there is no training to ask about")

    def _introduced(self) -> PredictionHello:
        rows = next(iter(self.models.values())).rows
        return PredictionHello(
            party=self.own.me,
            parties=[*self.own.feature_parties, self.own.label_party],
            rows=rows.count,
            row_ids=rows.digest,
            models=[],
        )

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
                self._say(f"{peer!r} is gone: {printable(facts.get('why', ''))}")
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
        known = {party: held.get(ready.run) for party, held in self._offers.items()}
        offers = {party: one for party, one in known.items() if one is not None}
        if set(offers) == set(self.own.feature_parties):
            self._pass_on_keys(ready.run, offers)
        _told(self.lines[peer], {"serving": ready.run})

    def _take_news(self, peer: PartyName, told: Mapping[str, Any]) -> None:
        try:
            offered = _Models.model_validate(told).models
            self._require_models(peer, offered)
        except (ValidationError, Refused, NotYet) as error:
            self._say(f"{peer!r} told what cannot be: {printable(error)[:300]}")
            return
        self._note(peer, offered)
        self._choose()


def _told(line: QuestionLine, news: dict[str, Any]) -> None:
    """It may have left in this moment: then it hears when it is back."""
    with suppress(TransportError):
        line.tell(news)
