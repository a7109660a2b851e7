"""How far a reader walks: which files of thinwire a command goes through, by sys.setprofile.

    PYTHONPATH=CHECKOUT/src python benchmarks/walk.py

Prints the hops of `thinwire train` before its first round, of one round, and of one request to `thinwire serve` with
three parties, as JSON. A hop is a call that enters another file of thinwire's and does work there, whatever stands
between the two files; a file that calls the same function many times, as in a loop, counts once.
Work is a function with two statements or more that is no constructor or other special method.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np

import thinwire

OURS = f"{Path(thinwire.__file__).parent}{os.sep}"
NAMES = ("bank", "shop", "clinic")  # the last one has the labels
SECONDS = 300.0
JOB = """
job = {{ epochs = 2, batch_size = 16 }}
recipe = {{ method = "thin" }}
optimizer = {{ name = "adam", lr = 0.01 }}
network = {{ listen = "{0}", address = "{0}" }}
serve = {{ http = "{1}", deadline_ms = 100000.0 }}
"""
FEATURE_PARTY = """
[[party]]
name = "{0}"
features = {{ file = "{0}.npz", key = "x" }}
test_features = {{ file = "{0}.npz", key = "x_test" }}
model = {{ name = "mlp", hidden = [8], width = 4 }}
"""
LABEL_PARTY = """
[label_party]
name = "{0}"
labels = {{ file = "{0}.npz", key = "y" }}
test_labels = {{ file = "{0}.npz", key = "y_test" }}
top = {{ name = "linear_top", classes = 2 }}
"""

Hop = tuple[str, str, str]  # the calling file, the file that is entered, and the function there


class Tracer:
    """Notes hops, in every thread that starts after it, under the phase that is set; None: it notes nothing."""

    def __init__(self, marks: Callable[[str], str | None] = lambda _: None) -> None:
        self.phase: str | None = None
        self.hops: dict[str, set[Hop]] = {}
        self._marks = marks
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OURS):
            return
        phase = self._marks(code.co_qualname)
        if phase is not None:
            self.phase = phase or None
        caller = _nearest(frame.f_back)
        file = "" if caller is None else caller.f_code.co_filename
        if self.phase and file != code.co_filename and _does_work(code) and not _is_import(caller):
            self.hops.setdefault(self.phase, set()).add((_short(file), _short(code.co_filename), code.co_qualname))


def _nearest(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return frame


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = _nearest(frame.f_back)
    return frame is not None


def _does_work(code: CodeType) -> bool:
    special = code.co_name.startswith(("__", "<"))
    return not special and _statements(code.co_filename).get(code.co_firstlineno, 0) >= 2


@cache
def _statements(file: str) -> dict[int, int]:
    """How many a function has, its docstring left out, by its first line."""
    found = {}
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min(one.lineno for one in (node, *node.decorator_list))
            found[first] = len(node.body) - (ast.get_docstring(node) is not None)
    return found


def _short(file: str) -> str:
    return file.removeprefix(OURS)


# What is walked -----------------------------------------------------------------------------------------------------


def write_job(grpc: str, http: str) -> None:
    """Two feature parties and a label party that meet at these addresses, in this folder."""
    rng = np.random.default_rng(0)
    for name in NAMES[:-1]:
        x = rng.standard_normal((2, 64, 4), dtype=np.float32)
        np.savez(f"{name}.npz", x=x[0], x_test=x[1])
    np.savez(f"{NAMES[-1]}.npz", y=np.arange(64) % 2, y_test=np.arange(64) % 2)
    parties = [FEATURE_PARTY.format(name) for name in NAMES[:-1]] + [LABEL_PARTY.format(NAMES[-1])]
    Path("job.toml").write_text(JOB.format(grpc, http) + "".join(parties))


def run_command(*words: str) -> None:
    """A thinwire command in this process; what it prints goes to stderr."""
    from thinwire.cli import main

    sys.argv, sys.stdout = ["thinwire", *words], sys.stderr
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.stdout = sys.__stdout__


def trace_training() -> dict[str, set[Hop]]:
    """The set-up ends where a party's program runs; the round is the label party's third, with what it waits for."""
    rounds: list[str] = []

    def marks(function: str) -> str | None:
        if function == "LabelProgram._round":
            rounds.append(function)
            return "a round" if len(rounds) == 3 else ""
        return "" if function == "Program.run" else None

    tracer = Tracer(marks)
    tracer.phase = "train, set-up"
    run_command("train", "job.toml", "--out", "run", "--json")
    tracer.phase = None
    return tracer.hops


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def trace_request(http: str) -> dict[str, set[Hop]]:
    """At all parties; what they do without a request is left out."""
    run_command("certs", "certs", *(word for name in NAMES for word in ("--party", name)))
    started = {name: subprocess.Popen([sys.executable, __file__, name]) for name in NAMES}

    def switch_to(phase: str) -> None:
        for name, process in started.items():
            Path(f"{name}.phase").write_text(phase)
            process.send_signal(signal.SIGUSR1)
        wait_until(lambda: not any(Path(f"{name}.phase").exists() for name in NAMES))

    try:
        wait_until(lambda: post_row(http) == 200)
        switch_to("idle")
        time.sleep(3)
        switch_to("request")
        post_row(http)
        switch_to("")
    finally:
        for process in started.values():
            process.send_signal(signal.SIGINT)
        for process in started.values():
            process.wait(SECONDS)
    found = [json.loads(Path(f"{name}.json").read_text()) for name in NAMES]
    request = {tuple(hop) for one in found for hop in one["request"] if hop not in one["idle"]}
    return {"a served request": request}


def serve_party(name: str) -> None:
    """One party, which takes its tracer's next phase at a signal and writes down what it noted in the last."""
    tracer = Tracer()

    def switch(*_: Any) -> None:
        phase = Path(f"{name}.phase")
        tracer.phase = phase.read_text() or None
        Path(f"{name}.json").write_text(json.dumps({key: sorted(hops) for key, hops in tracer.hops.items()}))
        phase.unlink()

    signal.signal(signal.SIGUSR1, switch)
    run_command("serve", "run", "--name", name, "--yes")


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not done after {SECONDS:g} s")
        time.sleep(0.2)


def post_row(http: str) -> int:
    """The status; 0 where nobody answers."""
    request = Request(f"http://{http}/v1/predict", b'{"rows": [3]}', {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            return int(answer.status)
    except (URLError, OSError):
        return 0


if __name__ == "__main__":
    if sys.argv[1:]:
        serve_party(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            address = free_address()
            write_job(free_address(), address)
            walks = {**trace_training(), **trace_request(address)}
        print(json.dumps({name: sorted(hops) for name, hops in walks.items()}))
