"""SIGTERM, SIGSTOP, and a replaced process that wakes up again."""

from __future__ import annotations

import signal
from pathlib import Path
from time import sleep

import pytest

from faults.conftest import Stage
from faults.proxy import Proxy
from faults.running import EVERYBODY, FEATURES, LABEL, ROLES, JobKind, Process, Run, free_port
from thinwire.storage.checkpoints import Checkpoints
from thinwire.storage.private_state import PrivateState

KIND = JobKind(epochs=30)
STOPPED = 130
TERM_SECONDS = 300.0


def newest_round(folder: Path, run: Run) -> int:
    """Of the checkpoint that a restart would load, without a fall back."""
    private = PrivateState.open(folder)
    manifest = max((folder / "checkpoints").glob("0*/manifest")).read_bytes()
    owner = {"party": folder.name, "run": manifest.partition(b'"run":"')[2][:16].decode()}
    checkpoints = Checkpoints(folder / "checkpoints", private.mac_key, owner, private.incarnation)
    loaded = checkpoints.load(private.generation, lambda _: None)
    assert loaded is not None
    assert loaded.warnings == []
    return int(loaded.data["round"])


def generation(folder: Path) -> int:
    """Of the newest checkpoint, by its name: nothing of it is read while it may be replaced."""
    return max((int(one.name.partition("-")[0]) for one in (folder / "checkpoints").glob("0*")), default=0)


def stopped_by_term(run: Run, name: str) -> None:
    run.signal(name, signal.SIGTERM)
    run.tally.inject("SIGTERM")
    assert run.ended(name, TERM_SECONDS) == STOPPED, run.told()


@pytest.mark.faults
def test_sigterm_ends_with_a_checkpoint_and_resumes_identical(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND) as run:
        run.note_sends()
        run.start_all()
        for name in ROLES:
            run.await_round(LABEL, run.round(LABEL) + 10)
            stopped_by_term(run, name)
            assert newest_round(run.site.out(name), run) > 0
            run.start(name)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
def test_sigterm_while_it_waits_for_another(stage: Stage, name: str) -> None:
    """No round can end: it stops anyway."""
    expected = stage.reference(KIND)
    missing = "bank" if name == LABEL else LABEL
    with stage.run(KIND) as run:
        run.start_all()
        run.await_round(LABEL, 10)
        # A busy machine checkpoints less often: it may cost a twentieth of the time.
        run.until(lambda: generation(run.site.out(name)) > 2, 20, "it has not saved")
        run.kill(missing)
        sleep(1)
        stopped_by_term(run, name)
        assert newest_round(run.site.out(name), run) > 0
        run.start(name)
        run.start(missing)
        run.survives(expected)


@pytest.mark.faults
def test_sigterm_at_all_at_once_and_before_the_first_round(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND) as run:
        run.start_all(FEATURES)
        run.until(lambda: all(run.count(name, "dialling") for name in FEATURES), 20, "nobody dials")
        for name in FEATURES:
            stopped_by_term(run, name)
        run.start_all()
        for _ in range(3):
            run.await_round(LABEL, run.round(LABEL) + 10)
            for name in EVERYBODY:
                run.signal(name, signal.SIGTERM)
            stage.tally.inject("SIGTERM", 4)
            for name in EVERYBODY:
                assert run.ended(name, TERM_SECONDS) == STOPPED, run.told()
            run.start_all()
        run.survives(expected)


# SIGSTOP ----------------------------------------------------------------------------------------------------------


def stall(run: Run, name: str, seconds: float) -> None:
    run.signal(name, signal.SIGSTOP)
    run.tally.inject("SIGSTOP")
    sleep(seconds)
    run.signal(name, signal.SIGCONT)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
def test_sigstop_of_5_seconds_is_nothing(stage: Stage, name: str) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=20) as run:
        run.start_all()
        for _ in range(2):
            run.await_round(LABEL, run.round(LABEL) + 20)
            stall(run, name, 5)
        run.await_round(LABEL, run.round(LABEL) + 10)
        for other in EVERYBODY:
            assert run.count(other, "disconnected") == 0, run.told()
        run.survives(expected)


@pytest.mark.faults
def test_sigstop_of_12_seconds_names_the_stalled_party_and_goes_on(stage: Stage) -> None:
    stalled_for_long(stage, "shop", 12)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
def test_sigstop_of_a_minute_names_the_stalled_party_and_goes_on(stage: Stage, name: str) -> None:
    stalled_for_long(stage, name, 60)


def stalled_for_long(stage: Stage, name: str, seconds: float) -> None:
    expected = stage.reference(KIND)
    peers = FEATURES if name == LABEL else (LABEL,)
    with stage.run(KIND, pause_ms=20) as run:
        run.start_all()
        run.await_round(LABEL, 20)
        before = run.round(LABEL)
        stall(run, name, seconds)
        for peer in peers:
            assert f"{name!r} is gone" in run.said(peer), run.told()
            assert f"waiting for {name!r}" in run.said(peer), run.told()
        took = run.until(lambda: run.round(LABEL) > before + 20, 20, "no new round")
        assert took < 20
        run.survives(expected)


# A replaced process -----------------------------------------------------------------------------------------------


def ends_fenced(run: Run, old: Process, seconds: float = 300) -> None:
    """With an error, and because it knows of the one that replaced it."""
    assert run.ended(old, seconds) in (1, 2), run.told()
    last = old.stderr.splitlines()[-1]
    assert "taken over" in last or "replaced by a later one" in last, last


@pytest.mark.faults
def test_a_replaced_feature_party_wakes_up_and_ends(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND) as run:
        run.note_sends()
        run.start_all()
        run.await_round(LABEL, 15)
        old = run.processes["shop"]
        run.signal(old, signal.SIGSTOP)
        new = run.start("shop")
        stage.tally.inject("replaced")
        run.await_round("shop", run.round("shop") + 15)
        assert f"process {old.pid} was stopped; this one takes its place" in new.stderr
        run.signal(old, signal.SIGCONT)
        ends_fenced(run, old)
        run.survives(expected)


@pytest.mark.faults
def test_a_replaced_feature_party_wakes_up_again_and_again(stage: Stage) -> None:
    """Stopped at any moment, two of them at a time."""
    kind = JobKind(epochs=60)
    expected = stage.reference(kind)
    with stage.run(kind) as run:
        run.note_sends()
        run.start_all()
        for number in range(6):
            run.await_round(LABEL, run.round(LABEL) + 15)
            first = run.processes["shop"]
            run.signal(first, signal.SIGSTOP)
            second = run.start("shop")
            run.await_words(second, "is connected")
            sleep(0.05 * number)
            run.signal(second, signal.SIGSTOP)
            run.await_words(run.start("shop"), "takes its place")
            stage.tally.inject("replaced", 2)
            for old in (second, first):
                run.signal(old, signal.SIGCONT)
                ends_fenced(run, old)
        run.survives(expected)


@pytest.mark.faults
def test_a_replaced_label_party_wakes_up_and_ends(stage: Stage) -> None:
    """The old one still holds its port: the new one listens at another, and a proxy finds it there."""
    expected = stage.reference(KIND)
    with stage.run(KIND) as run:
        run.note_sends()
        proxy = Proxy(run.site.port)
        for name in FEATURES:
            run.settings[name] = [proxy.setting]
        run.start_label_party_first()
        run.await_round(LABEL, 15)
        old = run.processes[LABEL]
        run.signal(old, signal.SIGSTOP)
        port = free_port()
        run.settings[LABEL] = [f'network.listen="127.0.0.1:{port}"']
        run.start(LABEL)
        stage.tally.inject("replaced")
        proxy.target_port = port
        proxy.reset()
        run.await_round(LABEL, 40)
        run.signal(old, signal.SIGCONT)
        ends_fenced(run, old)
        run.survives(expected)
        proxy.close()


@pytest.mark.faults
def test_a_label_party_whose_port_is_held_by_a_stopped_one(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND) as run:
        run.start_all()
        run.await_round(LABEL, 15)
        old = run.processes[LABEL]
        run.signal(old, signal.SIGSTOP)
        new = run.start(LABEL)
        stage.tally.inject("replaced")
        assert run.ended(new, 20) == 2
        assert str(run.site.port) in new.stderr
        run.signal(old, signal.SIGCONT)
        ends_fenced(run, old)
        run.start(LABEL)
        run.survives(expected)
