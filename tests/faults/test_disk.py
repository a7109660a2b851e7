"""A full disk and I/O errors at every kind of write: the message names path and bytes, and the run goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from faults.conftest import Stage
from faults.running import EVERYBODY, LABEL, NOISY, ROLES, JobKind

KIND = JobKind(epochs=15)
# What a write is for, by the call that makes it: the names in messages are those of the files.
WRITES = {
    "log": ("writev", "/sent/"),
    "log's next file": ("open", ".log"),
    "checkpoint's folder": ("mkdir", "/checkpoints/new-"),
    "checkpoint's state": ("writev", "/state.json"),
    "checkpoint's tensors": ("writev", ".safetensors"),
    "checkpoint's rename": ("rename", "/checkpoints/"),
    "private state": ("writev", "/.private.json"),
    "ledger": ("writev", "/.ledger.json"),
    "model": ("writev", "/models/"),
    "result": ("writev", "/.result.json"),
}
OF_THE_START = {
    "job": ("replace", "/job.toml"),
    "private state": ("writev", "/.private.json"),
    "log": ("open", "/sent/"),
    "peers": ("writev", "/.peers.json"),
}


def fault(call: str, path: str, error: str, number: int, **more: Any) -> dict[str, Any]:
    return {"call": call, "path": path, "do": error, "number": number, **more}


def number_of(what: str) -> int:
    """Far enough into the run, where the write is made more than once."""
    return {"log": 40, "log's next file": 5, "private state": 5}.get(
        what, 1 if what in ("ledger", "model", "result") else 3
    )


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("what", WRITES)
def test_a_full_disk_that_is_freed(stage: Stage, what: str, name: str) -> None:
    """It waits, or does without a checkpoint, and goes on by itself."""
    expected = stage.reference(KIND)
    call, path = WRITES[what]
    with stage.run(KIND, pause_ms=10) as run:
        freed = run.site.folder / "freed"
        run.start_all([other for other in EVERYBODY if other != name])
        full = fault(call, path, "ENOSPC", number_of(what), until=str(freed))
        process = run.start(name, [full])
        run.until(lambda: "No space left" in process.stderr or "disk is full" in process.stderr, 60, "nobody says")
        stage.tally.inject("full disks")
        sleep(1.5)
        freed.touch()
        run.survives(expected)
        assert_names(process.stderr, run.site.out(name))


def assert_names(said: str, folder: Path) -> None:
    """Which file, and how many bytes."""
    lines = [line for line in said.splitlines() if "No space left" in line or "disk is full" in line]
    assert lines
    named = [re.search(r"([1-9][0-9]*) bytes", line) for line in lines if str(folder) in line]
    assert any(named), lines


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("what", WRITES)
def test_an_io_error_ends_it_or_costs_a_checkpoint(stage: Stage, what: str, name: str) -> None:
    """Either way the same command ends it identical."""
    expected = stage.reference(KIND)
    call, path = WRITES[what]
    with stage.run(KIND, pause_ms=40) as run:
        run.start_all([other for other in EVERYBODY if other != name])
        process = run.start(name, [fault(call, path, "EIO", number_of(what))])
        run.until(lambda: process.poll() is not None, 90, "it has not ended")
        stage.tally.inject("I/O errors")
        assert "Input/output error" in process.stderr, process.stderr
        assert str(run.site.out(name)) in process.stderr
        assert re.search(r"[1-9][0-9]* bytes", process.stderr)
        assert "Traceback" not in process.stderr
        if process.poll():
            assert process.poll() == 1
            run.start(name)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_an_error_of_the_logs_fsync(stage: Stage, error: str, name: str) -> None:
    """What is not known to be on the disk is not built upon: it ends, and goes on when started again."""
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=20) as run:
        run.start_all([other for other in EVERYBODY if other != name])
        process = run.start(name, [fault("fsync", "/sent/", error, 6)])
        run.until(lambda: process.poll() is not None, 60, "it has not ended")
        stage.tally.inject("full disks" if error == "ENOSPC" else "I/O errors")
        assert str(run.site.out(name)) in process.stderr
        if process.poll():
            run.start(name)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("what", OF_THE_START)
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_at_the_start(stage: Stage, error: str, what: str, name: str) -> None:
    """An error that names the file; the same command works once there is room."""
    kind = JobKind(epochs=3)
    expected = stage.reference(kind)
    call, path = OF_THE_START[what]
    with stage.run(kind, pause_ms=0) as run:
        freed = run.site.folder / "freed"
        run.start_all([other for other in EVERYBODY if other != name])
        process = run.start(name, [fault(call, path, error, 1, until=str(freed))])
        words = "No space left", "disk is full", "Input/output error"
        run.until(lambda: any(word in process.stderr for word in words), 20, "nobody says that a write failed")
        stage.tally.inject("full disks" if error == "ENOSPC" else "I/O errors")
        assert str(run.site.out(name)) in process.stderr
        assert "Traceback" not in process.stderr
        freed.touch()
        sleep(0.5)
        if process.poll():  # 0: there was room again before it gave up, and the short run is over
            assert process.poll() in (1, 2)
            run.start(name)
        run.survives(expected, 60)


@pytest.mark.faults
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_full_disk_at_the_events(stage: Stage, when: str) -> None:
    """Every evaluation is there once, and whole, also where a line was written before the disk was full."""
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=10) as run:
        freed = run.site.folder / "freed"
        run.start_all([other for other in EVERYBODY if other != LABEL])
        full = fault("writev", "/events.jsonl", "ENOSPC", 4, until=str(freed), when=when)
        process = run.start(LABEL, [full])
        run.until(lambda: "disk is full" in process.stderr, 60, "nobody says")
        stage.tally.inject("full disks")
        sleep(1.5)
        freed.touch()
        run.await_round(LABEL, run.round(LABEL) + 12)
        run.kill(LABEL)  # what is on disk is read again
        stage.tally.inject("kills")
        run.start(LABEL)
        run.survives(expected)
        lines = (run.site.out(LABEL) / "events.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == list(range(0, KIND.rounds + 1, 6))


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
def test_a_log_of_events_that_cannot_be_written_stops_nothing(stage: Stage, name: str) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=10) as run:
        run.start_all([other for other in EVERYBODY if other != name])
        run.start(name, [fault("text", "/log.jsonl", "ENOSPC", 5, **{"for": 20})])
        stage.tally.inject("full disks")
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("call", ["writev", "fsync"])
def test_a_full_disk_at_a_charge(stage: Stage, call: str) -> None:
    """Nothing leaves that is not on record: the party waits for room, and then goes on."""
    expected = stage.reference(NOISY)
    with stage.run(NOISY, pause_ms=5) as run:
        freed = run.site.folder / "freed"
        run.start_all([other for other in EVERYBODY if other != "shop"])
        process = run.start("shop", [fault(call, "/charges.jsonl", "ENOSPC", 20, until=str(freed))])
        run.until(lambda: "charges.jsonl" in process.stderr, 30, "nobody says that the disk is full")
        stage.tally.inject("full disks")
        sleep(1.0)  # what had left before is worked through
        before = run.round(LABEL)
        sleep(1.5)
        assert run.round(LABEL) == before
        freed.touch()
        run.survives(expected)
