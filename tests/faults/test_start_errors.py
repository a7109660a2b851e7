"""A port in use, a wrong host, an unreadable key, a key that others can read: an error that names the cause, soon."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.conftest import Stage
from faults.running import LABEL, JobKind, Run
from processes import run as command

KIND = JobKind(epochs=2)


def fails_at_once(run: Run, name: str, *settings: str) -> str:
    """As a user runs it; what it says."""
    words = [word for setting in settings for word in ("--set", setting)]
    found = command(
        "party", run.site.job, "--name", name, "--yes", "--out", run.site.out(name), *words, folder=run.site.folder
    )
    run.tally.inject("wrong starts")
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr
    run.tally.survive()
    run.tally.not_compared()
    return found.stderr


@pytest.mark.faults
def test_port_in_use(stage: Stage) -> None:
    with stage.run(KIND) as run, socket.create_server(("127.0.0.1", run.site.port)):
        said = fails_at_once(run, LABEL)
        assert f"cannot listen on 127.0.0.1:{run.site.port}: it is in use" in said


@pytest.mark.faults
def test_an_address_of_another_machine(stage: Stage) -> None:
    with stage.run(KIND) as run:
        said = fails_at_once(run, LABEL, 'network.listen="192.0.2.1:7443"')
        assert "192.0.2.1:7443" in said
        assert "not an address of this machine" in said


@pytest.mark.faults
def test_a_host_that_is_not_there(stage: Stage) -> None:
    with stage.run(KIND) as run:
        said = fails_at_once(run, "bank", 'network.address="no-such-host.invalid:7443"')
        assert "no-such-host.invalid" in said


def _unreadable(key: Path) -> None:
    key.unlink()
    key.mkdir()


def _open_to_others(key: Path) -> None:
    key.chmod(0o644)


def _of_the_group(key: Path) -> None:
    key.chmod(0o640)


def _missing(key: Path) -> None:
    key.unlink()


def _garbage(key: Path) -> None:
    key.write_text("-----BEGIN PRIVATE KEY-----\nnothing\n")
    key.chmod(0o600)


KEYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a folder": (_unreadable, "it is a folder"),
    "readable by others": (_open_to_others, "chmod 600"),
    "readable by its group": (_of_the_group, "chmod 600"),
    "missing": (_missing, "the file does not exist"),
    "garbage": (_garbage, "no PEM private key"),
}


@pytest.mark.faults
@pytest.mark.parametrize("name", [LABEL, "bank"])
@pytest.mark.parametrize("what", KEYS)
def test_a_key_that_cannot_be_used(stage: Stage, what: str, name: str) -> None:
    change, words = KEYS[what]
    with stage.run(KIND) as run:
        key = run.site.folder / "certs" / f"{name}.key"
        change(key)
        said = fails_at_once(run, name)
        assert words in said
        assert str(key) in said


@pytest.mark.faults
def test_a_key_of_another_user(stage: Stage) -> None:
    """Only where this user is not root, who may read everything; root's own test is the folder above."""
    with stage.run(KIND) as run:
        key = run.site.folder / "certs" / "bank.key"
        key.chmod(0o000)
        if os.geteuid():
            assert "may not read it" in fails_at_once(run, "bank")
        else:
            key.chmod(0o004)
            assert "users other than its owner" in fails_at_once(run, "bank")
