"""Saves a generation again and again, killed before the n-th system call, for every n; in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from thinwire.storage.checkpoints import Checkpoints
from thinwire.storage.private_state import PrivateState

CALLS = ("open", "close", "mkdir", "writev", "write", "fsync", "rename", "replace", "unlink", "rmdir", "truncate")
OWNER = {"run": "r", "party": "p0"}


def content(generation: int) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    return {"round": generation}, {"p0": {"learner.module.w": torch.full((3,), float(generation))}}


def opened(folder: Path) -> tuple[PrivateState, Checkpoints]:
    private = PrivateState.open(folder)
    incarnation = private.begin_incarnation()
    return private, Checkpoints(folder / "checkpoints", private.mac_key, OWNER, incarnation)


def save(private: PrivateState, checkpoints: Checkpoints, generation: int) -> None:
    checkpoints.save(*content(generation), generation)
    private.set_generation(generation)


def resume_and_save(folder: Path) -> None:
    private, checkpoints = opened(folder)
    loaded = checkpoints.load(private.generation, lambda data: None)  # noqa: ARG005
    save(private, checkpoints, 1 if loaded is None else loaded.generation + 1)


class Killer:
    """Ends this process with SIGKILL before its n-th call, or half-way through it where it writes."""

    def __init__(self, number: int, half: bool) -> None:
        self.left = number
        self.half = half
        for name in CALLS:
            setattr(os, name, self.counted(name, getattr(os, name)))

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if self.half and name == "writev":
                    data = b"".join(args[1])
                    call(args[0], [data[: len(data) // 2]])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return counting


def survives(folder: Path, number: int, half: bool) -> bool:
    child = os.fork()
    if child == 0:
        Killer(number, half)
        resume_and_save(folder)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"call {number}: the save failed")
    return os.WIFEXITED(status)


def save_killed_at_every_call(folder: Path) -> None:
    """FOLDER/start is copied to FOLDER/<n>[-half] for each n."""
    for half in (False, True):
        number, survived = 0, False
        while not survived:
            number += 1
            copy = folder / f"{number}{'-half' if half else ''}"
            shutil.copytree(folder / "start", copy)
            survived = survives(copy, number, half)
