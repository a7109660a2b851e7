"""A served job: the label party's server and the feature parties as threads, or as processes; and small clients."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from processes import until
from thinwire.job.party_view import read_party_view
from thinwire.job.row_selection import RowSet
from thinwire.predict.online.server import FeatureServer, LabelServer
from thinwire.predict.party_models import RunSource
from training.party.parties import LABEL_PARTY, Place, free_port

SECONDS = 300.0


@dataclass
class Reply:
    status: int
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body["error"]["type"])


class Client:
    """Plain HTTP, one connection for each call."""

    def __init__(self, address: str) -> None:
        self._host = address.removeprefix("http://")

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection(self._host, timeout=SECONDS)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        return Reply(answer.status, json.loads(content) if content.startswith(b"{") else {"text": content.decode()})

    def score(self, value: Any, headers: Mapping[str, str] | None = None) -> Reply:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.call("POST", "/v1/predict", body, {"Content-Type": "application/json", **(headers or {})})

    def get(self, path: str) -> Reply:
        return self.call("GET", path)


class Feature:
    """A feature party's server in a thread."""

    def __init__(self, place: Place, name: str, run: Path, which: RowSet | None = None) -> None:
        own = read_party_view(place.job, name)
        self.sentences: list[str] = []
        self.error: BaseException | None = None
        self.server = FeatureServer(RunSource(own, run, which), self.sentences.append)
        self.server._watcher._seconds = 0.05
        self._thread = Thread(target=self._run, name=f"serve {name}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.server.run()
        except BaseException as error:  # noqa: BLE001  shown where it is looked at
            self.error = error

    def end(self) -> None:
        self.server.stop()
        self._thread.join(SECONDS)


@dataclass
class Served:
    """All of it."""

    place: Place
    server: LabelServer
    features: dict[str, Feature]
    client: Client
    sentences: list[str]

    def is_whole(self) -> None:
        until(lambda: self.client.get("/healthz").status == 200)


@contextmanager
def served(
    place: Place,
    runs: Mapping[str, Path],
    which: RowSet | None = None,
    without: tuple[str, ...] = (),
    **settings: Any,
) -> Iterator[Served]:
    """Waits until all are there, unless some are left out."""
    own = read_party_view(place.job, LABEL_PARTY)
    sentences: list[str] = []
    chosen = own.serve.model_copy(update={"http": f"127.0.0.1:{free_port()}", "deadline_ms": 10_000.0, **settings})
    server = LabelServer(RunSource(own, runs[LABEL_PARTY], which), sentences.append, chosen)
    server._watcher._seconds = 0.05
    thread = Thread(target=server.run, name="serve")
    thread.start()
    features: dict[str, Feature] = {}
    try:
        until(lambda: server._server.started)
        for name in place.feature_parties:
            if name not in without:
                features[name] = Feature(place, name, runs[name], which)
        found = Served(place, server, features, Client(server.address), sentences)
        if not without:
            found.is_whole()
        yield found
    finally:
        for feature in features.values():
            feature.end()
        server.stop()
        thread.join(SECONDS)
