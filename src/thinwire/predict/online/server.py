"""A party that serves, from its start to its end; models that take the place of others meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from threading import Event, Thread
from typing import Any

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.engine.privacy import SecureSum
from thinwire.job.party_view import PartyView
from thinwire.job.schema import ServeSection, ServeTerms
from thinwire.net.links.endpoint import Endpoint
from thinwire.predict.embedding_client import EmbeddingClient
from thinwire.predict.embedding_server import EmbeddingServer
from thinwire.predict.model_store import RunFolder
from thinwire.predict.online.service import ScoreService
from thinwire.predict.party_models import FeatureModel, LabelModel, RunSource
from thinwire.storage import layout

Say = Callable[[str], None]

_LOOK_SECONDS = 1.0


class RunWatcher(Thread):
    """Looks once a second; `found` gets the folder of a run that was not there before."""

    def __init__(self, source: RunSource, found: Callable[[RunFolder], None], say: Say) -> None:
        super().__init__(name="watch models", daemon=True)
        self._source = source
        self._found = found
        self._say = say
        self._seconds = _LOOK_SECONDS
        self._seen = _signature(source.path)
        self._over = Event()

    def close(self) -> None:
        self._over.set()
        self.join(timeout=5)

    def run(self) -> None:
        before: object = self._seen
        while not self._over.wait(self._seconds):
            now = _signature(self._source.path)
            # Twice the same: a folder that is being written is not looked at.
            if now != self._seen and now == before and now:
                self._seen = now
                self._load()
            before = now

    def _load(self) -> None:
        try:
            folder = self._source.folder()
            self._say(
                f"{self._source.path} now points to {folder.path}: loading its models while the old ones stay in use"
            )
            self._found(folder)
        except ThinwireError as error:
            self._say(f"the new models cannot be used, so the old ones stay in use: {error}")
        except Exception as error:  # noqa: BLE001  a thread of its own: the old models go on
            self._say(f"the new models cannot be used, so the old ones stay in use: {type(error).__name__}: {error}")


def _signature(path: Path) -> tuple[object, ...]:
    """Where the path leads, and what its models look like; empty where there are none."""
    try:
        files = layout.model_files(path.resolve())
        shown = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
        return (path.resolve(), *shown) if shown else ()
    except OSError:
        return ()


def read_serving_terms(own: PartyView) -> ServeTerms:
    """What this feature party's own section allows."""
    terms = own.section.serve or ServeTerms()
    if own.recipe.uplink.compressor.protects_alone and terms.when_missing == "mean":
        raise BadInput(
            f"party.{own.me}.serve.when_missing: the mean of all rows' codes would leave without the noise of "
            f'{own.recipe.uplink.compressor}, and nothing accounts for it; use "zeros", or leave it out'
        )
    for field, nothing in (("when_missing", "error"), ("cache_rows", None)):
        if isinstance(own.recipe.aggregation, SecureSum) and getattr(terms, field) != nothing:
            raise BadInput(
                f"party.{own.me}.serve.{field}: under a secure sum nobody sees a single party's embedding, so "
                "that none can be kept or replaced; leave it out"
            )
    return terms


class FeatureServer:
    """Answers until stopped, through any outage of the label party."""

    def __init__(self, source: RunSource, say: Say) -> None:
        terms = read_serving_terms(source.own)
        self._watcher = RunWatcher(source, lambda folder: self.party.add(FeatureModel(source, folder)), say)
        self.party = EmbeddingServer(source.own, FeatureModel(source, source.folder()), terms, say)

    def run(self) -> None:
        self.party.start()
        self._watcher.start()
        with closing(self.party), closing(self._watcher):
            self.party.wait(None)

    def stop(self) -> None:
        self.party.stop()


class LabelServer:
    """HTTP and gRPC until stopped; refuses where the extra is not installed."""

    def __init__(self, source: RunSource, say: Say, settings: ServeSection | None = None) -> None:
        try:
            import uvicorn

            from thinwire.predict.online.http import IdleConnections, find_most_connections, make_app
        except ImportError:
            raise BadInput("thinwire serve needs starlette and uvicorn: pip install 'thinwire[serve]'") from None

        self._say = say
        settings = settings or source.own.serve
        self._watcher = RunWatcher(source, lambda folder: self.party.add(LabelModel(source, folder)), say)
        folder = source.folder()
        self._socket = _open_socket(settings.http)
        self.address = f"http://{Endpoint(*self._socket.getsockname()[:2])}"
        self.party = EmbeddingClient(source.own, LabelModel(source, folder), say, settings.clients)
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

    def run(self) -> None:
        """Until stopped; what is under way is answered first."""
        self.party.start()
        self._watcher.start()
        self._say(f"scores at {self.address}/v1/predict")
        with closing(self.service), closing(self.party), closing(self._watcher):
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True

    async def _close_idle(self) -> None:
        server = self._server
        self._idle.close_idle(server.server_state.connections, server.config.limit_concurrency or 0)


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
        raise BadInput(f"serve.http: cannot listen on {address}: {error.strerror}") from None
    made.listen(2048)
    return made
