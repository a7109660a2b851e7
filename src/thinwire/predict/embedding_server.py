"""A feature party that answers: it dials the label party, and gives embeddings of the rows it is asked for."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.format import printable
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.privacy.accounting import BudgetExceeded
from thinwire.job.party_view import PartyView
from thinwire.job.schema import ServeTerms
from thinwire.net.grpc.client import Dialer
from thinwire.net.handshake import CacheTerms, OfferedModel, PredictionHello, read_prediction_hello
from thinwire.net.links.network_channel import PartyMissing
from thinwire.net.links.question_line import NotConnected
from thinwire.net.links.records import Count, Text
from thinwire.predict.charges import QuestionRepeated
from thinwire.predict.party_models import FeatureModel, drop_surplus, is_new_run
from thinwire.predict.pending_requests import Question, answer_body, open_line, refuse_body
from thinwire.training.party.session import ToldToStop

_MOST_ROWS = 1 << 16  # of one question
_MOST_QUESTIONS = 256  # that wait
_LOOK_SECONDS = 0.2

SignedKey = Annotated[str, Field(max_length=1 << 17)]


@dataclass(frozen=True, slots=True)
class _Asked:
    number: int
    body: bytes | memoryview
    connection: int  # by which it came


class _News(BaseModel):
    """What the label party may tell beside its questions."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    done: bool | None = None
    stopped: Text | None = None
    withdrawn: Count | None = None  # the number of a question that nobody waits for any more
    serving: Text | None = None  # the run whose models answer from now on
    keys: dict[Text, dict[Text, SignedKey]] | None = None  # by run and party


class EmbeddingServer:
    """Answers until it is told that all is done, or stopped; implements `Greeter` for the dialler."""

    def __init__(self, own: PartyView, model: FeatureModel, terms: ServeTerms, say: Callable[[str], None]) -> None:
        self.own = own
        self.ledger = Ledger()
        self.questions = 0
        self._terms = terms
        self._say = say
        self._lock = Lock()
        self._models: dict[str, FeatureModel] = {}  # by run, oldest first
        self._serving: str | None = None
        self._queue: SimpleQueue[_Asked | None] = SimpleQueue()
        self._connection = 0  # how many there have been
        self._withdrawn: set[int] = set()  # numbers in the queue that nobody waits for any more
        self._over = Event()
        self._error: ThinwireError | None = None
        self.line = open_line(own, own.label_party, self.ledger, self._heard, self._take)
        self.line.max_body = (1 << 16) + 8 * _MOST_ROWS
        self._add(model)
        self._target = own.network_party.target()
        self._dialer = Dialer(self._target, self.line, self)

    # From start to end --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._say(f"calling {self.own.label_party!r} at {self._target.address}")
        Thread(target=self._answer_all, name="answer", daemon=True).start()
        self._dialer.start()

    def wait(self, patience_seconds: float | None) -> None:
        """Until all is done. Raises where the label party is gone for too long."""
        while not self._over.wait(_LOOK_SECONDS):
            if self.line.failure is not None:
                raise self.line.failure
            away = 0.0 if self.line.is_connected else monotonic() - self.line.away_since
            if patience_seconds is not None and away > patience_seconds:
                raise PartyMissing(self.own.label_party, "nobody asks", away)
        if self._error is not None:
            raise self._error

    def stop(self, error: ThinwireError | None = None) -> None:
        self._error = self._error or error
        self._over.set()

    def close(self) -> None:
        self._queue.put(None)
        self.line.drain(1.0)
        self._dialer.close()
        for model in self._models.values():
            model.encoder.close()

    # Models ---------------------------------------------------------------------------------------------------------

    def _add(self, model: FeatureModel) -> None:
        model.make_offer(self._terms.when_missing)  # what takes time is done before anybody waits for it
        with self._lock:
            self._models[model.run] = model
            for old in drop_surplus(self._models, self._serving):
                old.encoder.close()

    def add(self, model: FeatureModel) -> None:
        """A newer model beside the one in use; the label party hears of it."""
        try:
            if not is_new_run(model, self._models):
                return
        except BadInput:
            model.encoder.close()
            raise
        self._add(model)
        self.line.tell({"models": [offered.model_dump() for offered in self._offers()]})

    def _offers(self) -> list[OfferedModel]:
        with self._lock:
            held = list(self._models.values())
        return [model.make_offer(self._terms.when_missing) for model in held]

    # The greeter ----------------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        return {**self._introduce().to_message(), **self.line.describe_state()}

    def _introduce(self) -> PredictionHello:
        cache, terms = None, self._terms
        if terms.cache_rows is not None:
            cache = CacheTerms(rows=terms.cache_rows, seconds=terms.cache_seconds)
        return next(iter(self._models.values())).rows.introduce(self.own, self._offers(), cache)

    def check_welcome(self, welcome: dict[str, Any]) -> None:
        read_prediction_hello(self.own.label_party, welcome, self._introduce())

    def report_no_answer(self, why: str) -> None:
        self._say(printable(why))

    # Questions ------------------------------------------------------------------------------------------------------

    def _take(self, number: int, body: bytes | memoryview) -> None:
        if self._queue.qsize() < _MOST_QUESTIONS:
            self._queue.put(_Asked(number, body, self._connection))
        else:
            self.line.send(number, refuse_body("party_failed", f"{_MOST_QUESTIONS} questions are already waiting"))

    def _answer_all(self) -> None:
        while (asked := self._queue.get()) is not None:
            if self._is_void(asked):
                continue
            try:
                self.line.send(asked.number, self._answer(asked.number, asked.body))
            except NotConnected:
                continue  # whoever asked is gone
            except ThinwireError as error:
                self._say(f"question {asked.number} was not answered: {error}")

    def _is_void(self, asked: _Asked) -> bool:
        """Nobody waits for it: an answer would cost time, and under a privacy budget more than that."""
        with self._lock:
            if asked.number in self._withdrawn:
                self._withdrawn.discard(asked.number)
                return True
            if self._queue.empty():
                self._withdrawn.clear()  # what is left in it came after its answer
        return asked.connection != self._connection

    def _answer(self, number: int, body: bytes | memoryview) -> bytes:
        try:
            asked = Question.parse(body)
            if len(asked.rows) > _MOST_ROWS:
                raise BadInput(f"{len(asked.rows)} rows in one question; at most {_MOST_ROWS} are allowed")
            with self._lock:
                held = self._models.get(asked.run)
            if held is None or held.hash != asked.hash:
                loaded = ", ".join(model.hash[:12] for model in self._models.values())
                return refuse_body(
                    "model_mismatch", f"asked for the model {asked.hash[:12]}, it holds {printable(loaded)}"
                )
            self.questions += 1
            return answer_body(held.scorer.encode_rows(asked.rows, number))
        except BudgetExceeded as error:
            self._say(str(error))
            return refuse_body("budget_spent", str(error))
        except QuestionRepeated as error:
            return refuse_body("party_failed", str(error))
        except ThinwireError as error:
            # What is wrong with one's own rows is no matter of the others.
            self._say(f"question {number}: {error}")
            return refuse_body("party_failed", f"{type(error).__name__}; see its own log")
        except Exception as error:  # noqa: BLE001  the end of a thread: whoever asked must not wait for ever
            self._say(f"question {number}: {type(error).__name__}: {error}")
            return refuse_body("party_failed", f"{type(error).__name__}; see its own log")

    # What happens meanwhile ---------------------------------------------------------------------------------------

    def _heard(self, event: str, peer: str | None = None, **facts: Any) -> None:
        match event:
            case "connected" | "disconnected":
                with self._lock:
                    self._connection += event == "connected"
                    self._withdrawn.clear()  # another process asks other questions under the same numbers
                self._say(f"{peer!r} is {'connected' if event == 'connected' else 'gone'}")
            case "news":
                self._take_news(facts["told"])

    def _take_news(self, told: Mapping[str, Any]) -> None:
        try:
            news = _News.model_validate(told)
        except ValidationError as error:
            self._say(f"{self.own.label_party!r} sent an invalid message: {error.errors()[0]['msg']}")
            return
        if news.keys is not None:
            self._take_keys(news.keys)
        if news.withdrawn is not None:
            with self._lock:
                if len(self._withdrawn) < _MOST_QUESTIONS:
                    self._withdrawn.add(news.withdrawn)
        if news.serving is not None:
            with self._lock:
                self._serving = news.serving
        if news.stopped is not None:
            self.stop(ToldToStop(printable(news.stopped)))
        elif news.done:
            self.stop()

    def _take_keys(self, keys: Mapping[str, Mapping[str, str]]) -> None:
        for run, offers in keys.items():
            with self._lock:
                held = self._models.get(run)
            if held is None or held.encoder.sealing is None:
                continue
            try:
                held.encoder.sealing.take({party: base64.b64decode(text) for party, text in offers.items()})
            except (ThinwireError, ValueError) as error:
                self.stop(error if isinstance(error, ThinwireError) else BadInput(f"a key cannot be: {error}"))
