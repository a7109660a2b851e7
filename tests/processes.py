"""`thinwire` in processes of its own, forked from one that has loaded torch: a start takes 0.2 seconds instead of 3.

A few tests start the installed command itself (help, completion, pages); everything else may begin here.
"""

from __future__ import annotations

import ctypes
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

from faults import faulty

THINWIRE = Path(sys.executable).with_name("thinwire")
DEADLINE = 300.0  # seconds that anything may take; far more than it does

# Of a program that runs here: proxies of the machine are no matter of a test on loopback.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")
_PR_SET_PDEATHSIG = 1
_PRELOAD = [
    "thinwire.cli",
    "thinwire.job.party_view",
    "thinwire.training.train",
    "thinwire.training.party.metrics",
    "thinwire.training.party.startup",
    "thinwire.predict.online.server",
]

_forks = get_context("forkserver")
_forks.set_forkserver_preload(_PRELOAD)


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key.lower() not in _PROXIES}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


def until(condition: Callable[[], Any], seconds: float = DEADLINE) -> None:
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() > deadline:
            raise TimeoutError(f"not so after {seconds:.0f} s")
        sleep(0.01)


class Process:
    """A command that runs; its output goes to files, so that it never waits for a reader."""

    def __init__(
        self,
        command: Sequence[str | Path],
        files: Path,
        folder: Path,
        more: Mapping[str, str],
        faults: Sequence[Mapping[str, Any]] = (),  # as faults/faulty.py describes them
    ) -> None:
        files.parent.mkdir(parents=True, exist_ok=True)
        self._out, self._err = files.with_suffix(".stdout"), files.with_suffix(".stderr")
        self._out.touch()
        self._err.touch()
        words = list(map(str, command))
        place = (self._out, self._err, folder, environment(**more))
        forked = words[0] == str(THINWIRE)
        self._process: Any = _fork(words, *place, list(faults)) if forked else _execute(words, *place)
        self.pid: int = self._process.pid

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def send_signal(self, number: signal.Signals) -> None:
        if not self.ended:
            os.kill(self.pid, number)

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self.send_signal(signal.SIGINT)

    def says(self, text: str, seconds: float = DEADLINE) -> None:
        """Waits until it has said so."""
        until(lambda: text in self.stderr or self.ended, seconds)
        assert text in self.stderr, self.stderr

    @property
    def ended(self) -> bool:
        return self.poll() is not None

    def poll(self) -> int | None:
        """Its exit code, minus a signal, or None while it runs."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        code: int | None = self._process.exitcode
        return code

    def code(self, seconds: float = DEADLINE) -> int:
        """Waits for its end."""
        until(lambda: self.ended, seconds)
        return self.poll() or 0

    def summary(self) -> dict[str, Any]:
        """Of a party that has reached its end."""
        assert self.code() == 0, self.stderr
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found

    def kill(self) -> None:
        """kill -9, and gone when this returns."""
        self.send_signal(signal.SIGKILL)
        self.code()


class Processes:
    """Makes processes, and ends those that are left."""

    def __init__(self) -> None:
        self._all: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()

    def command(
        self,
        command: Sequence[str | Path],
        folder: Path,
        more: Mapping[str, str] | None = None,
        faults: Sequence[Mapping[str, Any]] = (),
    ) -> Process:
        process = Process(command, folder / "output" / f"{len(self._all)}", folder, more or {}, faults)
        self._all.append(process)
        return process


def run(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`thinwire` with these arguments, to its end."""
    words = [THINWIRE, *arguments]
    with tempfile.TemporaryDirectory() as files:
        process = Process(words, Path(files) / "run", folder or Path.cwd(), {})
        try:
            return subprocess.CompletedProcess(words, process.code(), process.stdout, process.stderr)
        finally:
            process.kill()


def run_in_terminal(*arguments: str | Path, folder: Path, **more: str) -> str:
    """All that `thinwire` with these arguments writes to a terminal of 80 columns, control codes included."""
    parent, child = pty.openpty()
    env = {**environment(), "TERM": "xterm-256color", "COLUMNS": "80"}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        env.pop(name, None)
    screen = Path(os.ttyname(child))
    process = _fork([str(THINWIRE), *map(str, arguments)], screen, screen, folder, {**env, **more}, [])
    shown = b""
    try:
        deadline = monotonic() + DEADLINE
        while (ready := select.select([parent], [], [], 0.05)[0]) or process.is_alive():
            shown += os.read(parent, 1 << 16) if ready else b""
            if monotonic() > deadline:
                raise TimeoutError(f"not ended after {DEADLINE:.0f} s: {shown!r}")
    finally:
        process.kill()
        os.close(child)
        os.close(parent)
    return shown.decode()


def _execute(words: list[str], out: Path, err: Path, folder: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=folder, env=env)


def call(function: Callable[..., None], *arguments: Any) -> None:
    """`function` in a process of its own, to its end, which must be a good one."""
    process = _forks.Process(target=function, args=arguments)
    process.start()
    process.join(DEADLINE)
    assert process.exitcode == 0, f"{function.__name__}: exit {process.exitcode}"


def _fork(words: list[str], out: Path, err: Path, folder: Path, env: dict[str, str], faults: list[Any]) -> Any:
    process = _forks.Process(target=_become, args=(words[1:], str(out), str(err), str(folder), env, faults))
    process.start()
    return process


def _become(words: list[str], out: str, err: str, folder: str, env: dict[str, str], faults: list[Any]) -> None:
    """In the new process: it is `thinwire ARGUMENT ...` from here on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_APPEND),
        (2, err, os.O_WRONLY | os.O_APPEND),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(folder)
    grpc_settings = {name: value for name, value in os.environ.items() if name.startswith("GRPC_")}
    os.environ.clear()
    os.environ.update(grpc_settings | env)
    faulty.run(faults, words)
