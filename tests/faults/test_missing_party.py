"""A party that is missing at the start, or leaves for good: a countdown that names it, then a clean stop."""

from __future__ import annotations

import pytest

from faults.conftest import Stage
from faults.running import EVERYBODY, FEATURES, LABEL, JobKind

KIND = JobKind(epochs=15)
PATIENCE = 14.0  # seconds; the first word of the countdown comes after ten


@pytest.mark.faults
@pytest.mark.parametrize("missing", ["shop", LABEL])
def test_a_party_is_missing_at_the_start(stage: Stage, missing: str) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=0, wait_seconds=PATIENCE) as run:
        others = [name for name in EVERYBODY if name != missing]
        run.start_all(others)
        stage.tally.inject("missing parties")
        for name in others:
            assert run.ended(name, 2 * PATIENCE + 40) not in (0, -9, -11), run.told()
            waited_for = missing if name == LABEL else LABEL
            assert f"{waited_for!r}" in run.said(name)
            assert "Traceback" not in run.said(name)
        witness = LABEL if missing != LABEL else "bank"
        assert "s left" in run.said(witness), run.told()
        assert f"{missing!r} has sent nothing" in run.said(witness), run.told()
        run.start_all()
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("missing", ["shop", LABEL])
def test_a_party_leaves_for_good(stage: Stage, missing: str) -> None:
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=10, wait_seconds=PATIENCE) as run:
        others = [name for name in EVERYBODY if name != missing]
        run.start_all()
        run.await_round(LABEL, 12)
        run.kill(missing)
        stage.tally.inject("kills")
        stage.tally.inject("missing parties")
        for name in others:
            assert run.ended(name, PATIENCE + 60) not in (0, -9, -11), run.told()
            assert "Traceback" not in run.said(name)
        named = others if missing == LABEL else [LABEL]
        for name in named:
            assert f"waiting for {missing!r}" in run.said(name), run.told()
            assert "s left" in run.said(name)
        for name in others:
            assert f"{missing!r} has sent nothing" in run.said(name), run.told()
        run.start_all()
        run.survives(expected)


@pytest.mark.faults
def test_everybody_else_is_killed_after_the_stop_too(stage: Stage) -> None:
    """Stopped cleanly once, killed once, and still the same run."""
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=10, wait_seconds=3) as run:
        run.start_all()
        run.await_round(LABEL, 12)
        run.kill("post")
        assert run.ended(LABEL, 30) not in (0, -9, -11)
        for name in FEATURES:
            run.kill(name)
        stage.tally.inject("kills", 3)
        run.start_all()
        run.survives(expected)
