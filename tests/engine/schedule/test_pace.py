"""Fewer cached steps once they make training diverge: the rule, and runs that need it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from engine.identities.small import job
from thinwire.base.errors import BadParameter
from thinwire.engine.methods import thin
from thinwire.engine.schedule import CachedSteps, step_controller
from thinwire.engine.schedule.step_controller import BatchOutcome, Pace, StepController


def rested(pace: StepController, *losses: float) -> int:
    for loss in losses:
        pace.observe_batch(BatchOutcome(loss, 1.0))
    return pace.decide_pace(7).steps


def test_the_mean_since_the_last_rest_is_compared_with_the_lowest() -> None:
    pace = StepController(11, 1.5)
    assert rested(pace, 2.0, 1.0) == 11  # 1.5
    assert rested(pace, 1.0) == 11
    assert rested(pace, 3.0, 0.0, 1.4) == 11  # 1.47
    assert rested(pace, 1.0, 2.1) == 11  # 1.55, once
    assert rested(pace, 1.6) == 5  # twice
    assert rested(pace, 2.2) == rested(pace, 2.2) == 5  # from here on 1.6 is what counts
    assert rested(pace, 2.5) == 5
    assert rested(pace, 2.5) == 2
    assert [step["to"] for step in pace.diagnostics()["backed_off"]] == [5, 2]


def test_worse_than_before_anything_was_learned_is_a_rise() -> None:
    pace = StepController(11, 1.5)
    rested(pace, 2.0, 5.0)
    assert rested(pace, 4.0) == 5


def test_an_overshoot_that_comes_back_is_none() -> None:
    pace = StepController(11, 1.5)
    assert [rested(pace, loss) for loss in (1.0, 3.0, 0.9, 3.0, 0.8)] == [11] * 5


def test_a_rise_near_zero_is_noise() -> None:
    pace = StepController(4, 1.5)
    rested(pace, 2.0)
    rested(pace, 0.01)
    assert rested(pace, 0.15) == rested(pace, 0.15) == 4
    assert rested(pace, 0.25) == 4
    assert rested(pace, 0.25) == 2


def test_steps_are_never_negative_and_stay_without_a_limit() -> None:
    pace = StepController(1, 1.5)
    rested(pace, 1.0)
    assert [rested(pace, loss) for loss in (2.0, 2.0, 4.0, 4.0, 9.0, 9.0)] == [1, 0, 0, 0, 0, 0]
    free = StepController(3, None)
    assert rested(free, 1.0) == rested(free, 100.0) == rested(free, 100.0) == 3
    assert free.diagnostics() == {}
    assert StepController(3, 1.5).decide_pace(0) == Pace(3)  # nothing was learned yet


def test_a_pace_survives_saving() -> None:
    pace = StepController(8, 1.5)
    for loss in (1.0, 2.0, 2.0, 5.0):
        rested(pace, loss)
    pace.observe_batch(BatchOutcome(5.0, 1.0))
    other = StepController(8, 1.5)
    other.load(json.loads(json.dumps(pace.state())))
    assert rested(other) == rested(pace) == 2
    assert other.state() == pace.state()


def test_the_limits_are_checked() -> None:
    with pytest.raises(BadParameter, match="rise_limit"):
        CachedSteps(5, 5, rise_limit=1.0)
    with pytest.raises(BadParameter, match="worth_bits"):
        CachedSteps(5, 5, worth_bits=0.0)


@pytest.mark.parametrize(("bits", "steps"), [((0.3, 0.3), 5), ((0.1, 0.5), 5), ((0.1, 0.3), 0)])
def test_steps_begin_where_messages_turn_out_to_be_worth_it(bits: tuple[float, ...], steps: int) -> None:
    pace = StepController(5, worth_bits=0.25)
    assert pace.pace == pace.decide_pace(0) == Pace(0)
    for one in bits:
        pace.observe_batch(BatchOutcome(1.0, one))
    saved = StepController(5, worth_bits=0.25)
    saved.load(json.loads(json.dumps(pace.state())))
    assert pace.decide_pace(2) == saved.decide_pace(2) == Pace(steps)
    pace.observe_batch(BatchOutcome(1.0, 0.5 - bits[0]))
    assert pace.decide_pace(3) == Pace(steps)  # it is decided once
    assert pace.diagnostics() == {"first_bits_a_value": pytest.approx(sum(bits) / 2)}


def test_few_rows_are_used_less_often() -> None:
    schedule = CachedSteps(5, 12, rows_a_use=200)
    assert [schedule.among(rows).reuse for rows in (1, 200, 1198, 2399, 2400, 10**6)] == [1, 1, 5, 11, 12, 12]
    assert CachedSteps(5, 12).among(3).reuse == 12


def windowed(controller: StepController, mean: float, batches: int = 60) -> Pace:
    """After so many batches, whose losses are `mean`, give or take a tenth."""
    for batch in range(batches):
        controller.observe_batch(BatchOutcome(mean + (0.1 if batch % 2 else -0.1), 1.0))
    return controller.decide_pace(7)


def test_where_the_loss_stands_still_messages_get_finer_and_steps_fewer() -> None:
    """The means of two windows of 60 differ by 0.018 at random."""
    controller = StepController(7, levels=2)
    assert [windowed(controller, loss) for loss in (2.0, 1.5, 1.4)] == [Pace(7)] * 3
    assert windowed(controller, 1.38) == Pace(3, 1)
    assert [windowed(controller, loss) for loss in (1.37, 1.3)] == [Pace(3, 1)] * 2
    assert windowed(controller, 1.4) == Pace(1, 2)
    assert windowed(controller, 1.4) == windowed(controller, 1.4) == Pace(1, 2)  # there are no more levels
    assert controller.diagnostics() == {"precision_level": 2, "refined_after": [7, 7]}


def test_frequent_rests_wait_for_a_window_of_batches() -> None:
    controller, other = StepController(7, levels=2), StepController(7, levels=2)
    assert [windowed(controller, 1.0, 20) for _ in range(5)] == [Pace(7)] * 5
    other.load(json.loads(json.dumps(controller.state())))
    assert windowed(controller, 1.0, 20) == windowed(other, 1.0, 20) == Pace(3, 1)
    assert controller.state() == other.state()


def test_a_validation_score_that_stands_still_is_enough() -> None:
    """The training loss falls all the while, as it does where a model overfits."""
    controller = StepController(7, levels=2)
    losses = iter(range(1000, 0, -1))
    found = []
    for is_best in (True, False, False, True, False, False, False, None, False):
        for _ in range(20):
            controller.observe_batch(BatchOutcome(next(losses), 1.0))
        found.append(controller.decide_pace(7, is_best))
    assert found == [Pace(7)] * 6 + [Pace(3, 1)] * 3


def still(**settings: Any) -> tw.Job:
    """A learning rate so small that nothing is learned."""
    torch.manual_seed(1)
    x = torch.randn(16, 3)
    label = tw.LabelParty("shop", (x.sum(dim=1) > 0).long(), torch.nn.Linear(16, 2))
    party = tw.FeatureParty("bank", x, torch.nn.Linear(3, 16))
    usual: dict[str, Any] = {"batch_size": 4, "epochs": 6, "eval_every": 8, "metrics": [], "diagnostics": False}
    return tw.Job([party], label, thin(2.0, 8.0), tw.SGD(lr=1e-6), **usual | settings)


def test_a_run_that_stands_still_gets_finer_at_every_party_and_resumes_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_controller, "_WINDOW", 8)
    monkeypatch.setattr(step_controller, "_COARSE_SHARE", inf)
    whole = tw.train(still(), [])
    found = [event["diagnostics"] for event in whole.history]
    assert [one["shop"]["precision_level"] for one in found] == [0, 0, 0, 1]  # an event comes before what follows
    assert [one["bank"]["precision_level"] for one in found] == [0, 0, 0, 1]
    sent = [event["bytes"]["up"] for event in whole.history]
    assert sent[3] - sent[2] > sent[2] - sent[1]
    tw.train(still(epochs=4), [], out=tmp_path)
    resumed = tw.train(still(), [], out=tmp_path, resume=True)
    assert resumed.history[-1]["bytes"] == whole.history[-1]["bytes"]
    for name, module in whole.models.items():
        for mine, theirs in zip(module.parameters(), resumed.models[name].parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_every_level_has_its_share_of_the_first_half() -> None:
    controller = StepController(8, levels=4)
    found = []
    for done in range(1, 21):
        controller.observe_batch(BatchOutcome(loss=1.0 / done, bits_a_value=1.0))  # never stands still
        found.append(controller.decide_pace(done, True, done / 20).level)
    assert found == [0, 0, 1, 1, 2, 2, 2, 3, 3, 4, *[4] * 10]
    assert controller.pace.steps == 0  # halved with every level


def wide(rank: int) -> tw.Job:
    """Embeddings of 128 columns that vary in `rank` directions."""
    torch.manual_seed(1)
    x = torch.randn(15000, rank)
    bottom = torch.nn.Linear(rank, 128)
    return tw.Job(
        [tw.FeatureParty("bank", x, bottom)],
        tw.LabelParty("shop", (x.sum(dim=1) > 0).long(), torch.nn.Linear(128, 2)),
        thin(2.0, 8.0, reuse=8),
        tw.SGD(lr=0.1),
        batch_size=5000,
        epochs=4,
        eval_every=3,
        metrics=[],
    )


@pytest.mark.parametrize(("rank", "steps"), [(1, 0), (128, 2)])
def test_few_directions_need_no_cached_steps(rank: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_controller, "_COARSE_SHARE", inf)
    result = tw.train(wide(rank), [])
    found = [event["diagnostics"]["shop"]["local_steps"] for event in result.history]
    assert found == [0, 0, steps, steps, steps]  # an event comes before what follows from it
    assert (result.history[-1]["diagnostics"]["bank"]["draws"] > 0) == (steps > 0)


BACKS_OFF = replace(thin(), schedule=CachedSteps(5, 6, rise_limit=1.5))


def wild(**settings: Any) -> tw.Job:
    """A learning rate that many cached steps cannot bear."""
    return job(BACKS_OFF, optimizer=tw.SGD(lr=6.0), epochs=8, eval_every=5, **settings)


def test_a_diverging_run_backs_off_at_every_party_alike() -> None:
    result = tw.train(wild(), [])
    last = result.history[-1]["diagnostics"]
    label = last.pop("lab")
    assert label["backed_off"]
    assert label["local_steps"] < 5
    feature = [mine for mine in last.values() if isinstance(mine, dict) and "local_steps" in mine]
    assert feature
    assert all(mine["local_steps"] == label["local_steps"] for mine in feature)
    assert all(mine["draws"] == label["draws"] for mine in feature)


def test_a_resumed_run_keeps_its_pace(tmp_path: Path) -> None:
    whole = tw.train(wild(), [])
    shorter = job(BACKS_OFF, optimizer=tw.SGD(lr=6.0), epochs=4, eval_every=5)
    tw.train(shorter, [], out=tmp_path)
    resumed = tw.train(wild(), [], out=tmp_path, resume=True)
    assert resumed.history[-1]["train"] == whole.history[-1]["train"]
    assert resumed.history[-1]["diagnostics"] == whole.history[-1]["diagnostics"]
    for name, module in whole.models.items():
        for mine, theirs in zip(module.parameters(), resumed.models[name].parameters(), strict=True):
            assert torch.equal(mine, theirs)
