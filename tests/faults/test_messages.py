"""Duplicated, reordered and replayed messages: identical; what is stale is refused and changes nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from faults.conftest import Stage
from faults.running import EVERYBODY, FEATURES, LABEL, ROLES, JobKind, Run
from thinwire.net.grpc.client import DialTarget, grpc
from thinwire.net.grpc.service import RPCS
from thinwire.net.links.records import Record, json_record
from thinwire.net.pki.certificates import CertificateFiles, load_credentials

KIND = JobKind(epochs=15)


@pytest.mark.faults
def test_duplicated_by_everybody(stage: Stage) -> None:
    kind = JobKind(epochs=6)
    expected = stage.reference(kind)
    with stage.run(kind, pause_ms=0) as run:
        for name in EVERYBODY:
            run.plans[name] = [{"misbehave": "duplicate"}, {"chunk": 64}]
        run.start_all()
        run.survives_with(expected, "duplicates", lambda: run.count(LABEL, "duplicate"))
        assert all(run.count(name, "duplicate", LABEL) > 30 for name in FEATURES)
        assert all(run.count(LABEL, "duplicate", name) > 30 for name in FEATURES)


@pytest.mark.faults
@pytest.mark.parametrize("what", ["duplicate", "replay", "reorder"])
@pytest.mark.parametrize("name", ROLES)
def test_one_party_duplicates_replays_reorders(stage: Stage, name: str, what: str) -> None:
    kind = JobKind(epochs=30)
    expected = stage.reference(kind)
    with stage.run(kind, pause_ms=3) as run:
        run.plans[name] = [{"misbehave": what}]
        run.start_all()
        for killed in ("bank", LABEL, "shop"):
            run.await_round(LABEL, run.round(LABEL) + 20)
            run.kill(killed)
            run.start(killed)
            stage.tally.inject("kills")
        receiver = "bank" if name == LABEL else LABEL
        event = "damaged" if what == "reorder" and name != LABEL else "duplicate"
        event = "disconnected" if what == "reorder" and name == LABEL else event
        run.survives_with(expected, f"{what}s", lambda: run.count(receiver, event))
        assert run.count(receiver, event) > 0, run.told()


# A stale process's words ------------------------------------------------------------------------------------------


def state_of(folder: Path) -> dict[str, str]:
    """Digests of what a refused caller must not change."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "log.jsonl"
    }


def say(run: Run, name: str, hello: dict[str, Any], records: list[bytes]) -> str:
    """Calls as this party, with its own certificate; why it was refused."""
    certs = run.site.folder / "certs"
    target = DialTarget(
        f"127.0.0.1:{run.site.port}",
        LABEL,
        name,
        lambda: load_credentials(CertificateFiles.in_folder(certs, name), name),
    )
    with target.open() as channel:
        call: Any = channel.stream_stream(RPCS["Talk"].path)
        talking = call(iter([json_record(Record.HELLO, hello), *records]), metadata=target.claim, timeout=10)
        with pytest.raises(grpc.RpcError) as error:
            list(talking)
    return str(error.value.details())


@pytest.mark.faults
def test_a_stale_process_is_rejected_and_changes_nothing(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=5) as run:
        run.plans["shop"] = [{"note_hello": str(run.site.folder / "hello.json")}]
        run.start_all()
        run.await_round(LABEL, 10)
        run.kill("shop")
        old = json.loads((run.site.folder / "hello.json").read_text())
        run.start("shop")
        run.await_round(LABEL, run.round(LABEL) + 10)
        run.kill("shop")  # all stand still
        stage.tally.inject("kills", 2)
        run.until(lambda: run.count(LABEL, "disconnected", "shop") == 2, 10, "shop is not missed")
        now = json.loads((run.site.folder / "hello.json").read_text())
        stood = state_of(run.site.out(LABEL))
        for hello, why in [
            (old, "starts from scratch"),
            (old | {"nonce": now["nonce"]}, "replaced by a later one"),
            (old | {"nonce": now["nonce"], "received": 0, "kept": 0}, "replaced by a later one"),
            (now | {"instance": "00"}, "another process already takes part"),
            (now | {"nonce": None, "incarnation": now["incarnation"] + 1, "instance": "00"}, "starts from scratch"),
            (now | {"nonce": "00" * 16}, "another run"),
            (now | {"party": "bank"}, "HELLO says"),
            (now | {"run": "0" * 16}, "in run"),
            (now | {"incarnation": -1}, "incarnation"),
            (now | {"received": -1}, "received"),
        ]:
            assert why in say(run, "shop", hello, [b"\x03" + bytes(60)])
            stage.tally.inject("stale words")
            assert state_of(run.site.out(LABEL)) == stood
        run.start("shop")
        run.survives(expected)
