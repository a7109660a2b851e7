"""A party that serves, from its start to its end; models that take the place of others meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.engine.privacy import SecureSum
from thinwire.job.party_view import PartyView
from thinwire.job.row_selection import RowSet
from thinwire.job.schema import ServeSection, ServeTerms
from thinwire.net.handshake import CacheTerms
from thinwire.net.links.endpoint import Endpoint
from thinwire.predict.embedding_client import EmbeddingClient
from thinwire.predict.embedding_server import EmbeddingServer, ServingTerms
from thinwire.predict.model_store import RunFolder
from thinwire.predict.online.service import ScoreService
from thinwire.predict.party_models import FeatureModel, LabelModel, NewRows
from thinwire.predict.run_source import RunSource
from thinwire.storage import layout

Say = Callable[[str], None]

_LOOK_SECONDS = 1.0


class RunWatcher:
    """Looks once a second; `found` gets the folder of a run that was not there before."""

    def __init__(self, path: Path, found: Callable[[RunFolder], None], say: Say) -> None:
        self._path = path
        self._found = found
        self._say = say
        self._seconds = _LOOK_SECONDS
        self._seen = _signature(path)
        self._over = Event()
        self._thread = Thread(target=self._watch, name="watch models", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _watch(self) -> None:
        before: object = self._seen
        while not self._over.wait(self._seconds):
            now = _signature(self._path)
            # Twice the same: a folder that is being written is not looked at.
            if now != self._seen and now == before and now:
                self._seen = now
                self._load()
            before = now

    def _load(self) -> None:
        try:
            folder = RunFolder(self._path.resolve())
            self._say(f"{self._path} leads to {folder.path} now: loading its models beside those in use")
            self._found(folder)
        except ThinwireError as error:
            self._say(f"the new models cannot be used, the old ones stay: {error}")
        except Exception as error:  # noqa: BLE001  a thread of its own: the old models go on
            self._say(f"the new models cannot be used, the old ones stay: {type(error).__name__}: {error}")


def _signature(path: Path) -> tuple[object, ...]:
    """Where the path leads, and what its models look like; empty where there are none."""
    try:
        files = layout.model_files(path.resolve())
        shown = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
        return (path.resolve(), *shown) if shown else ()
    except OSError:
        return ()


@dataclass(frozen=True)
class ServerSource:
    """Where the models are, and which rows are served."""

    run: RunSource
    which: RowSet | None = None
    new: NewRows | None = None

    @property
    def own(self) -> PartyView:
        return self.run.own


def read_serving_terms(own: PartyView) -> ServingTerms:
    """What this feature party's own section allows."""
    terms = own.section.serve or ServeTerms()
    default = None if terms.when_missing == "error" else terms.when_missing
    summed = isinstance(own.recipe.aggregation, SecureSum)
    for field, given in (("when_missing", default), ("cache_rows", terms.cache_rows)):
        if given is not None and summed:
            raise BadInput(
                f"party.{own.me}.serve.{field}: under a secure sum nobody sees a single party's embedding, so "
                "that none can be kept or replaced; leave it out"
            )
    cache = None if terms.cache_rows is None else CacheTerms(rows=terms.cache_rows, seconds=terms.cache_seconds)
    return ServingTerms(cache, default)


class FeatureServer:
    """Answers until stopped, through any outage of the label party."""

    def __init__(self, source: ServerSource, say: Say) -> None:
        own = source.own
        self._source = source
        terms = read_serving_terms(own)
        self._identity = own.network_party.identity()
        self._watcher = RunWatcher(source.run.path, lambda folder: self.party.add(self._model(folder)), say)
        self.party = EmbeddingServer(own, self._model(source.run.folder()), terms, say)

    def _model(self, folder: RunFolder) -> FeatureModel:
        return FeatureModel(self._source.own.me, folder, self._source.which, self._source.new, self._identity)

    def run(self) -> None:
        self.party.start()
        self._watcher.start()
        try:
            self.party.wait(None)
        finally:
            self._watcher.close()
            self.party.close()

    def stop(self) -> None:
        self.party.stop()


class LabelServer:
    """HTTP and gRPC until stopped; refuses where the extra is not installed."""

    def __init__(self, source: ServerSource, say: Say, settings: ServeSection | None = None) -> None:
        try:
            import uvicorn

            from thinwire.predict.online.http import IdleConnections, find_most_connections, make_app
        except ImportError:
            raise BadInput("thinwire serve needs starlette and uvicorn: pip install 'thinwire[serve]'") from None
        own = source.own
        self._source = source
        self._say = say
        settings = settings or own.serve
        self._watcher = RunWatcher(source.run.path, lambda folder: self.party.add(self._model(folder)), say)
        folder = source.run.folder()
        self._socket = _open_socket(settings.http)
        self.address = f"http://{Endpoint(*self._socket.getsockname()[:2])}"
        self.party = EmbeddingClient(own, self._model(folder), say, settings.clients)
        self.service = ScoreService(self.party, settings, say)
        self._idle = IdleConnections(make_app(self.service, say))
        config = uvicorn.Config(
            self._idle,
            http="h11",
            limit_concurrency=find_most_connections(),
            callback_notify=self._close_idle,
            timeout_notify=1,
            proxy_headers=False,  # connections are known by whom they come from
            server_header=False,
            ws="none",
            loop="asyncio",
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        # Signals are the command's matter: it ends every kind of party in the same way.
        self._server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]

    def _model(self, folder: RunFolder) -> LabelModel:
        return LabelModel(self._source.own.me, folder, self._source.which, self._source.new)

    def run(self) -> None:
        """Until stopped; what is under way is answered first."""
        self.party.start()
        self._watcher.start()
        self._say(f"scores at {self.address}/v1/predict")
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._watcher.close()
            self.party.close()
            self.service.close()

    def stop(self) -> None:
        self._server.should_exit = True

    async def _close_idle(self) -> None:
        server = self._server
        self._idle.close_idle(server.server_state.connections, server.config.limit_concurrency or 0)

    def is_listening(self) -> bool:
        return bool(self._server.started)

    def in_thread(self) -> Thread:
        """For tests and benchmarks."""
        thread = Thread(target=self.run, name="serve")
        thread.start()
        return thread


def _open_socket(address: str) -> Any:
    place = Endpoint.parse(address)
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    # With its protocol said, asyncio sends what is small at once; otherwise every answer waits 40 ms for company.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((place.host, place.port))
    except OSError as error:
        made.close()
        raise BadInput(f"serve.http: cannot listen at {address}: {error.strerror}") from None
    made.listen(2048)
    return made
