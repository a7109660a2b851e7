"""What the suite is worth: with the log, the MAC, fencing or de-duplication switched off, its check must fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from faults.conftest import Stage
from faults.running import EVERYBODY, FEATURES, LABEL, JobKind, Run
from faults.test_damaged_checkpoints import generations
from faults.test_signals import ends_fenced

KIND = JobKind(epochs=20)


def notices(run: Run, expected: dict[str, str], seconds: float = 300) -> str:
    """The check of every other test, which must not be content here; why it is not."""
    with pytest.raises(AssertionError) as failure:
        run.survives(expected, seconds)
    return str(failure.value)


def without(run: Run, what: str) -> None:
    for name in EVERYBODY:
        run.plans.setdefault(name, []).append({"switch_off": what})


def killed_behind(run: Run) -> None:
    """Everybody is killed when the label party's checkpoints are older than the feature parties'."""
    run.settings[LABEL] = ["network.checkpoint_seconds=600"]
    run.start_all()
    run.until(lambda: all(len(generations(run, name)) >= 2 for name in FEATURES), 30, "there are no two generations")
    for name in EVERYBODY:
        run.kill(name)
    run.start_all()


@pytest.mark.faults
def test_without_the_log_a_kill_is_noticed(stage: Stage) -> None:
    """The label party needs frames again that the feature parties' checkpoints have left behind."""
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=40) as run:
        without(run, "log")
        killed_behind(run)
        notices(run, expected, 10)


@pytest.mark.faults
def test_with_the_log_the_same_kill_is_survived(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=40) as run:
        killed_behind(run)
        stage.tally.inject("kills", len(EVERYBODY))
        run.survives(expected)


@pytest.mark.faults
def test_without_removing_duplicates_they_are_noticed(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=0) as run:
        without(run, "duplicates")
        run.plans["shop"].append({"misbehave": "duplicate"})
        run.start_all()
        assert "was next" in notices(run, expected)


def spoil(folder: Path) -> None:
    """Other weights, in a file of the same length."""
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    changed = {
        key: (value + 0.25 if value.dtype == np.float32 and "module" in key else value)
        for key, value in tensors.items()
    }
    size = path.stat().st_size
    save_file(changed, path)
    assert path.stat().st_size == size


@pytest.mark.faults
def test_without_the_mac_a_changed_checkpoint_is_noticed(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=10) as run:
        without(run, "mac")
        run.start_all()
        run.await_round("shop", 12)
        run.until(lambda: len(generations(run, "shop")) >= 2, 20, "there are no two generations")
        run.kill("shop")
        spoil(generations(run, "shop")[-1])
        run.start("shop")
        notices(run, expected, 60)
        assert "fell back" not in run.said("shop")


@pytest.mark.faults
def test_with_the_mac_the_same_change_is_survived(stage: Stage) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=10) as run:
        run.start_all()
        run.await_round("shop", 12)
        run.until(lambda: len(generations(run, "shop")) >= 2, 20, "there are no two generations")
        run.kill("shop")
        spoil(generations(run, "shop")[-1])
        run.start("shop")
        stage.tally.inject("damaged checkpoints")
        run.survives(expected)
        assert "fell back" in run.said("shop")


@pytest.mark.faults
def test_without_fencing_a_replaced_process_is_noticed(stage: Stage) -> None:
    """The old one does not end as the test of replaced processes demands: knowing why."""
    with stage.run(KIND, pause_ms=20) as run:
        without(run, "fencing")
        run.start_all()
        run.await_round(LABEL, 12)
        old = run.processes["shop"]
        run.signal(old, signal.SIGSTOP)
        run.start("shop")
        run.await_round(LABEL, run.round(LABEL) + 8)
        run.signal(old, signal.SIGCONT)
        with pytest.raises(AssertionError):
            ends_fenced(run, old, 6)


@pytest.mark.faults
def test_other_bytes_under_one_number_are_noticed(stage: Stage) -> None:
    """The check of retransmitted bytes, given a difference."""
    with stage.run(KIND) as run:
        run.log_file("bank").write_text("0 3 7 aa\n0 3 8 bb\n0 3 7 ac\n")
        with pytest.raises(AssertionError, match="other bytes"):
            run.require_same_bytes()


@pytest.mark.faults
def test_a_hang_is_noticed(stage: Stage) -> None:
    """A party that stands still for ever is no survivor."""
    expected = stage.reference(KIND)
    with stage.run(KIND) as run:
        run.start_all()
        run.await_round(LABEL, 6)
        os.kill(run.processes[FEATURES[0]].pid, signal.SIGSTOP)
        sleep(0.1)
        assert "has not ended" in notices(run, expected, 5)
