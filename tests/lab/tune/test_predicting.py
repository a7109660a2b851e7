"""What a probe says of a whole run."""

from __future__ import annotations

import pytest

from thinwire.base.errors import BadInput
from thinwire.lab.tune.probe import Aim, ProbePoint, best_value, predict_cost

AIM = Aim("accuracy", 0.8)


def line(rounds: int, gain: float, bytes_a_round: float = 10, seconds_a_round: float = 0.5) -> list[ProbePoint]:
    """Evaluations every second round of a metric that grows by `gain` a round."""
    return [
        ProbePoint(t, gain * t, 3 * bytes_a_round * t, bytes_a_round * t, seconds_a_round * t)
        for t in range(0, rounds + 1, 2)
    ]


def test_a_probe_that_reaches_the_target_speaks_for_itself() -> None:
    said = predict_cost(line(100, 0.02), AIM, [])
    assert said is not None
    assert (said.rounds, said.up, said.down, said.seconds, said.extrapolated) == (40, 1200, 400, 20, False)
    assert said.total == 1600


@pytest.mark.parametrize("gain", [0.004, 0.01, 0.019])
def test_a_probe_at_a_constant_share_of_svfls_pace_needs_the_inverse_of_it(gain: float) -> None:
    pace = line(60, 0.02)  # reaches 0.8 in round 40
    said = predict_cost(line(20, gain), AIM, pace)
    assert said is not None
    assert said.extrapolated
    assert said.rounds == pytest.approx(0.8 / gain, abs=1)
    assert said.seconds == pytest.approx(0.5 * said.rounds)
    assert said.up == pytest.approx(30 * said.rounds)
    assert said.down == pytest.approx(10 * said.rounds)


def test_rounds_to_come_cost_what_the_latest_ones_did() -> None:
    """A first epoch may be dear: only the second half of a probe counts for what is to come."""
    cheap_later = [
        ProbePoint(p.round, p.value, p.up + (1e6 if p.round else 0), p.down, p.seconds) for p in line(20, 0.01)
    ]
    said = predict_cost(cheap_later, AIM, line(60, 0.02))
    assert said is not None
    assert said.up == pytest.approx(1e6 + 30 * said.rounds)


def test_nothing_is_said_without_a_pace_or_without_progress() -> None:
    assert predict_cost(line(20, 0.01), AIM, []) is None
    assert predict_cost(line(20, 0.01), AIM, line(20, 0.02)) is None  # svfl did not get there itself
    assert predict_cost(line(2, 0.01), AIM, line(60, 0.02)) is None  # too few evaluations
    assert predict_cost(line(20, 0.0), AIM, line(60, 0.02)) is None


def test_a_loss_falls() -> None:
    aim = Aim("loss", 0.5)
    falling = [ProbePoint(t, 2.0 - 0.1 * t, t, t, t) for t in range(21)]
    assert best_value(falling, "loss") == 0.0
    assert best_value(falling, "accuracy") == 2.0
    said = predict_cost(falling, aim, [])
    assert said is not None
    assert said.rounds == 15
    half = [ProbePoint(t, 2.0 - 0.05 * t, t, t, t) for t in range(11)]
    stretched = predict_cost(half, aim, falling)
    assert stretched is not None
    assert stretched.rounds == pytest.approx(30, abs=1)


def test_a_target_in_words() -> None:
    assert Aim.parse("accuracy=0.92") == Aim("accuracy", 0.92)
    for text in ("accuracy", "accuracy=high", "=0.9", ""):
        with pytest.raises(BadInput, match="--target: write METRIC=VALUE"):
            Aim.parse(text)
