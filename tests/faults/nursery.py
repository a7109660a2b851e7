"""Run as a program: it imports everything a party needs once, and then begins a process for each request.

A process that begins here is forked from one that has imported torch, so a restart costs a tenth of a second
instead of two. Requests and answers are one JSON object a line.

    {"start": [ARGUMENT, ...], "out": FILE, "err": FILE, "cwd": FOLDER, "plan": [...], "environment": {...}}   -> PID
    {"poll": PID}                                                     -> its exit code, minus a signal, or null
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any

import torch

import thinwire.cli
import thinwire.job.party_view
import thinwire.training.party.metrics
import thinwire.training.party.startup  # noqa: F401
from faults import faulty

_PR_SET_PDEATHSIG = 1


def requests() -> Any:
    held = b""
    while piece := os.read(0, 1 << 16):
        *lines, held = (held + piece).split(b"\n")
        yield from map(json.loads, lines)


def answer(value: int | None) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


def begin(request: dict[str, Any]) -> None:
    """In the new process: becomes `thinwire ARGUMENT ...`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor, path in ((1, request["out"]), (2, request["err"])):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    code: Any = 0
    try:
        faulty.run(request["plan"], request["start"])
    except SystemExit as ended:
        code = ended.code
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    # Without taking apart what torch has imported, which takes seconds.
    os._exit(code if isinstance(code, int) else int(code is not None))


def exit_code(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if found == 0 else os.waitstatus_to_exitcode(status)


def warm_up() -> None:
    """What torch imports at an optimiser's first step."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.Adam([weight]).step()


def main() -> None:
    warm_up()
    for request in requests():
        if "poll" in request:
            answer(exit_code(request["poll"]))
            continue
        pid = os.fork()
        if pid == 0:
            begin(request)
        answer(pid)


if __name__ == "__main__":
    main()
