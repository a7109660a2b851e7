"""Fixtures: processes to be, undisturbed runs to compare with, and the tally that is printed at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from faults.running import JobKind, Run, Site, running
from faults.tally import VARIABLE, Tally, total


def pytest_configure(config: pytest.Config) -> None:
    """In the process that reports; those that test inherit the variable."""
    if not hasattr(config, "workerinput") and VARIABLE not in os.environ:
        os.environ[VARIABLE] = str(Path(tempfile.mkdtemp(prefix="thinwire-faults-")) / "tally.jsonl")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if VARIABLE not in os.environ:
        return
    counts = total(Path(os.environ[VARIABLE]))
    if not counts:
        return
    kinds = [kind for kind in counts if kind not in ("injected", "survived", "equal", "not_compared")]
    listed = ", ".join(f"{kind} {counts[kind]}" for kind in sorted(kinds))
    compared = counts["injected"] - counts["not_compared"]
    terminalreporter.section("faults")
    terminalreporter.line(listed)
    terminalreporter.line(
        f"faults injected: {counts['injected']}, survived: {counts['survived']}, digests equal: {counts['equal']} "
        f"of {compared} (the others end in no run, or in one that follows the clock)"
    )


@pytest.fixture
def tally() -> Tally:
    path = os.environ.get(VARIABLE)
    return Tally(None if path is None else Path(path))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[JobKind], dict[str, str]]:
    """The digests of a job that nobody disturbs; each kind of job runs once."""
    known: dict[JobKind, dict[str, str]] = {}

    def digests(kind: JobKind) -> dict[str, str]:
        if kind not in known:
            site = Site(tmp_path_factory.mktemp("undisturbed"), kind)
            with running(site, Tally(None)) as run:
                run.start_all()
                known[kind] = run.finish()
        return known[kind]

    return digests


class Stage:
    """What a test needs: jobs that run, and the tally."""

    def __init__(self, folder: Path, tally: Tally, reference: Callable[[JobKind], dict[str, str]]) -> None:
        self.folder = folder
        self.tally = tally
        self.reference = reference

    def run(
        self, kind: JobKind | None = None, pause_ms: float = 10, folder: str = "job", **network: Any
    ) -> AbstractContextManager[Run]:
        return running(Site(self.folder / folder, kind, network), self.tally, pause_ms)


@pytest.fixture
def stage(tmp_path: Path, tally: Tally, reference: Callable[[JobKind], dict[str, str]]) -> Iterator[Stage]:
    with ExitStack():
        yield Stage(tmp_path, tally, reference)
