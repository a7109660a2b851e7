"""A run's path that leads elsewhere some day: the new models are loaded beside the old ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from thinwire.at_rest import layout
from thinwire.errors import ThinwireError
from thinwire.predict.run_folder import RunFolder

__all__ = ["Watcher"]

_LOOK_SECONDS = 1.0


class Watcher:
    """Looks once a second; `found` gets the folder of a run that was not there before."""

    def __init__(
        self,
        path: Path,
        found: Callable[[RunFolder], None],
        say: Callable[[str], None],
        seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._path = path
        self._found = found
        self._say = say
        self._seconds = seconds
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
