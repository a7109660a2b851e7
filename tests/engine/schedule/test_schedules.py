"""When to exchange, when to learn from what is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thinwire.base.errors import BadParameter
from thinwire.engine.schedule import (
    Await,
    CachedSteps,
    EveryBatch,
    Local,
    LocalSteps,
    Overlap,
    Send,
    Workset,
    cosine_weights,
)


def never() -> bool:
    return False


def drawn(workset: Workset, rounds: int, steps: int) -> list[list[int]]:
    found = []
    for round in range(rounds):
        workset.insert(round)
        here = []
        for _ in range(steps):
            entry = workset.draw()
            if entry is None:
                break
            here.append(entry)
        found.append(here)
    return found


def test_round_robin_fills_up_and_then_goes_round() -> None:
    # W = 3: an entry rests for two draws; bubbles in the first W - 1 rounds, as in the paper's Figure 4.
    assert drawn(Workset(3, 4, "round_robin", 0), 6, 3) == [[0], [1], [2, 0, 1], [3, 2, 1], [4, 3, 2], [5, 4, 3]]


def test_no_entry_is_drawn_again_within_the_next_w_minus_1_draws() -> None:
    for capacity in (1, 2, 4, 7):
        order = [entry for here in drawn(Workset(capacity, 6, "round_robin", 0), 40, 5) for entry in here]
        for place, entry in enumerate(order):
            assert entry not in order[place + 1 : place + capacity]


@pytest.mark.parametrize("sampling", ["round_robin", "consecutive", "random"])
def test_an_entry_is_used_r_times_at_most_and_leaves_after_w_rounds(sampling: str) -> None:
    found = drawn(Workset(4, 3, sampling, 0), 30, 4)
    for entry in range(30):
        uses = [round for round, here in enumerate(found) for e in here if e == entry]
        assert len(uses) <= 2  # and the exchange's own
        assert all(entry <= round <= entry + 3 for round in uses)


def test_consecutive_stays_with_the_newest() -> None:
    assert drawn(Workset(3, 4, "consecutive", 0), 3, 3) == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]


def test_random_draws_repeat_with_the_seed() -> None:
    first, again, other = (drawn(Workset(5, 5, "random", seed), 20, 2) for seed in (1, 1, 2))
    assert first == again != other


def test_capacity_one_is_the_same_batch_again_and_again() -> None:
    assert drawn(Workset(1, 4, "round_robin", 0), 2, 3) == [[0, 0, 0], [1, 1, 1]]


def test_a_reuse_of_one_caches_nothing() -> None:
    workset = Workset(5, 1, "round_robin", 0)
    assert drawn(workset, 3, 2) == [[], [], []]
    assert workset.rounds() == set()


def test_a_workset_goes_on_where_it_was_saved() -> None:
    whole, first = Workset(4, 5, "round_robin", 0), Workset(4, 5, "round_robin", 0)
    expected = drawn(whole, 12, 3)
    assert drawn(first, 6, 3) == expected[:6]
    second = Workset(4, 5, "round_robin", 0)
    second.load(first.state())
    rest = []
    for round in range(6, 12):
        second.insert(round)
        rest.append([entry for _ in range(3) if (entry := second.draw()) is not None])
    assert rest == expected[6:]
    assert second.diagnostics() == whole.diagnostics()
    assert set(whole.diagnostics()) == {"draws", "bubbles", "uses"}


def test_plans_say_what_to_do_in_order() -> None:
    every = EveryBatch().open(0, 100)
    assert list(every.feature_round(4, never, never)) == [Send(4), Await(4)]
    assert list(every.label_round(4, never, never)) == [Await(4)]
    local = LocalSteps(2).open(0, 100)
    assert list(local.feature_round(1, never, never)) == [Send(1), Await(1), Local(1), Local(1)]
    assert list(local.label_round(1, never, never)) == [Await(1), Local(1), Local(1)]
    cached = CachedSteps(1, 3).open(0, 100)
    assert list(cached.feature_round(0, never, never)) == [Send(0), Await(0), Local(0), Local(0)]


def test_deterministic_overlap_takes_its_steps_while_the_embedding_travels() -> None:
    plan = CachedSteps(2, 2, overlap=Overlap.DETERMINISTIC).open(0, 100)
    assert list(plan.feature_round(0, never, never)) == [Send(0), Await(0)]
    assert list(plan.feature_round(1, never, never)) == [Send(1), Local(0), Await(1)]


def test_ahead_sends_the_next_one_too() -> None:
    plan = CachedSteps(2, 2, overlap=Overlap.AHEAD).open(0, 100)
    assert list(plan.feature_round(0, never, never)) == [Send(0), Send(1), Await(0)]
    assert list(plan.feature_round(1, never, never)) == [Send(1), Send(2), Local(0), Await(1)]


def test_filling_overlap_stops_when_the_answer_comes_or_nothing_is_left() -> None:
    answers = iter([False, False, True])
    plan = CachedSteps(4, 10, sampling="consecutive", overlap=Overlap.FILLING).open(0, 100)
    list(plan.feature_round(0, lambda: True, never))
    assert list(plan.feature_round(1, lambda: next(answers), never)) == [Send(1), Local(0), Local(0), Await(1)]
    assert len([a for a in plan.feature_round(2, never, never) if isinstance(a, Local)]) == 7 + 9  # bounded by R


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 0}, "capacity must be from 1"),
        ({"reuse": 0}, "reuse must be from 1"),
        ({"sampling": "best"}, "sampling must be one of"),
        ({"xi_degrees": 200}, "xi_degrees must be"),
        ({"local_steps": -1}, "local_steps must be from 0"),
        ({"overlap": True}, "overlap must be an Overlap"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        CachedSteps(**{"capacity": 2, "reuse": 2, **wrong})


def test_weights_are_cosines_above_the_threshold() -> None:
    now = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    then = torch.tensor([[2.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    weights, cosines = cosine_weights(now, then, 60)
    assert cosines.tolist() == pytest.approx([1, 0.5**0.5, 0, -1, 0, 1, 1])
    assert weights.tolist() == pytest.approx([1, 0.5**0.5, 0, 0, 0, 1, 1])
    strict, _ = cosine_weights(now, then, 30)
    assert strict.tolist() == pytest.approx([1, 0, 0, 0, 0, 1, 1])
    only_negative, _ = cosine_weights(now, then, 90)
    assert only_negative.tolist() == pytest.approx([1, 0.5**0.5, 0, 0, 0, 1, 1])


@pytest.mark.parametrize("scale", [1e-30, 1e-42, 1e18])
def test_cosines_are_never_nan(scale: float) -> None:
    now, then = torch.randn(50, 4) * scale, torch.randn(50, 4) * scale
    weights, cosines = cosine_weights(now, then, 60)
    assert bool(torch.isfinite(weights).all())
    assert bool((cosines.abs() <= 1).all())
