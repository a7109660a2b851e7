"""The search, the choice of trials and the judgement of fewest_bytes.py, on records and on a small table."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import fewest_bytes, tasks
from benchmarks.defaults import Records
from benchmarks.fewest_bytes import (
    choose_best,
    choose_cheapest,
    draw_scores,
    find_point,
    find_score,
    find_target,
    follow_rule,
    is_behind,
    list_bests,
    pack_scores,
    read_judged,
    subtract_scores,
    take_median,
    unpack_scores,
)
from benchmarks.tasks import TASKS, Task, build_small_table, count_label_bytes, load_data
from benchmarks.trials import METHODS, draw_common, draw_settings
from thinwire.lab.datasets.vertical import VerticalData


def trial(*points: tuple[int, float, int, int], **settings: Any) -> dict[str, Any]:
    return {"settings": settings, "best": points[-1][1], "curve": [list(point) for point in points], "cpu": 1.0}


def keep(records: Records, key: str, record: dict[str, Any]) -> None:
    records.find(key, lambda: record)


# The search -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_tried_with_the_same_optimisers_rates_and_batches(name: str) -> None:
    for number in range(8):
        settings = draw_settings(TASKS["mnist"], name, number)
        assert {key: settings[key] for key in ("optimizer", "lr", "batch_size")} == draw_common(number, 0.01)
        assert METHODS[name].plan(TASKS["mnist"], settings, 1000).recipe.labels.value == "private"


def test_the_first_trial_is_the_defaults_and_eight_cover_the_space() -> None:
    first = draw_settings(TASKS["credit"], "celu", 0)
    assert first == {
        "optimizer": "adam", "lr": 0.003, "batch_size": 256, "capacity": 5, "reuse": 6, "xi_degrees": 60.0
    }  # fmt: skip
    drawn = [draw_common(number, 0.003) for number in range(8)]
    assert {one["optimizer"] for one in drawn} == {"adam", "sgd", "adagrad"}
    assert {one["batch_size"] for one in drawn if one["optimizer"] == "adam"} == {64, 256, 1024}


@pytest.mark.parametrize("name", ["mnist", "credit", "physionet2012"])
def test_once_encodes_a_data_set_as_suits_it(name: str) -> None:
    choices = METHODS["once"].list_choices(TASKS[name])
    assert choices.keys() == ({"bins", "top"} if name == "credit" else {"bits_per_row", "top"})
    assert choices["top"] == {"mnist": ["network"], "credit": ["trees"], "physionet2012": ["network", "trees"]}[name]


def test_a_trial_ends_where_it_is_below_the_median_of_those_before() -> None:
    before = [
        {"rounds": 100, "epochs": 10, "curve": [[0, 0.1, 0, 0], [20, score, 5, 5], [90, 0.9, 9, 9]]}
        for score in (0.5, 0.6, 0.7)
    ]
    assert find_score(before[0], 1.9) == 0.1
    assert is_behind({"epoch": 2.5}, 0.59, before, 10)
    assert not is_behind({"epoch": 2.5}, 0.6, before, 10)
    assert not is_behind({"epoch": 2.4}, 0.59, before, 10)  # too early
    assert not is_behind({"epoch": 2.5}, 0.59, before[1:], 10)  # too few to compare with


# Which trial --------------------------------------------------------------------------------------------------------


def test_only_evaluations_better_than_all_before_are_kept() -> None:
    scores = [0.5, 0.7, 0.6, None, 0.7, 0.8]
    history = [
        {"round": 10 * place, "validation": {"auc": score}, "bytes": {"total": 100 * place, "evaluation": place}}
        for place, score in enumerate(scores)
    ]
    assert list_bests(history, "auc") == [(0, 0.5, 0, 0), (10, 0.7, 100, 101), (50, 0.8, 500, 505)]


def test_the_target_is_half_a_point_below_the_best_of_svfl(tmp_path: Path) -> None:
    records = Records(tmp_path / "records.jsonl")
    assert find_target(records, "mnist") is None
    keep(records, "tune mnist svfl a", trial((5, 0.9, 10, 10)))
    keep(records, "tune mnist svfl b", trial((5, 0.95, 10, 10)))
    keep(records, "tune mnist thin a", trial((5, 0.99, 10, 10)))
    assert find_target(records, "mnist") == 0.945


def test_the_cheapest_trial_counts_the_bytes_of_evaluations_and_the_best_its_score() -> None:
    few_evaluations = trial((1, 0.8, 10, 90), (2, 0.92, 70, 150))
    many_evaluations = trial((1, 0.8, 10, 90), (2, 0.91, 60, 200), (3, 0.97, 90, 400))
    never = trial((1, 0.2, 1, 1))
    trials = [never, many_evaluations, few_evaluations]
    assert choose_cheapest(trials, 0.9) is few_evaluations
    assert choose_cheapest(trials, 0.95) is many_evaluations
    assert choose_cheapest(trials, 0.98) is None
    assert find_point(many_evaluations, 0.9) == (2, 0.91, 60, 200)
    assert choose_best(trials) is many_evaluations
    cheaper = trial((1, 0.97, 20, 30))
    assert choose_best([*trials, cheaper]) is cheaper


def test_a_seed_that_missed_the_target_costs_infinity() -> None:
    runs: list[dict[str, Any]] = [{"reached": [3, 10, 20]}, {"reached": None}, {"reached": [5, 30, 40]}]
    assert take_median(runs, 2) == 40
    assert take_median(runs[:2] * 2 + [{"reached": None}], 2) == float("inf")


def run(best: float, reached: list[int] | None) -> dict[str, Any]:
    return {"best": best, "reached": reached, "rounds": 4, "bytes": 100}


def test_one_exchange_comes_first_and_thin_after_it_where_that_misses() -> None:
    alone = [run(0.8, [1, 10, 30]), run(0.9, None)]
    once = {"best": alone, "cheapest": alone}
    thin = {"best": [run(0.85, None), run(0.7, None)], "cheapest": [run(0.8, [7, 50, 60]), run(0.8, [8, 70, 80])]}
    found = follow_rule(once, thin)
    assert [one["reached"] for one in found["cheapest"]] == [[1, 10, 30], [12, 170, 180]]
    assert [one["best"] for one in found["best"]] == [0.85, 0.9]
    missed = follow_rule(once, {**thin, "cheapest": thin["best"]})
    assert [one["reached"] for one in missed["cheapest"]] == [[1, 10, 30], None]


@pytest.mark.parametrize(("lucky", "steady", "chosen"), [(None, 50, "best"), (40, 50, "cheapest")])
def test_bytes_to_the_target_are_those_of_the_trial_that_gets_there_again(
    lucky: int | None, steady: int, chosen: str, tmp_path: Path
) -> None:
    """The trial that was cheapest when it was tuned may miss the target with every fresh seed."""
    records, target = Records(tmp_path / "records.jsonl"), 0.9
    keep(records, "tune mnist svfl lr=1", trial((1, 0.91, 10, 20), lr=1))
    keep(records, "tune mnist svfl lr=2", trial((2, 0.95, 30, 60), lr=2))
    for kind, lr, sent in (("cheapest", 1, lucky), ("best", 2, steady)):
        keep(
            records, f"{kind} mnist svfl lr={lr} target=0.9 seed=1", run(0.9, None if sent is None else [1, 1, sent])
        )
    found = read_judged(records, "mnist", "svfl", target, [1])
    assert found["cheapest"][0]["key"].startswith(chosen)
    assert found["best"][0]["key"].startswith("best")


# Differences are paired ---------------------------------------------------------------------------------------------


def test_bootstraps_are_of_the_same_rows_for_every_run() -> None:
    labels = torch.arange(400) % 2
    outputs = labels + torch.randn(400, generator=torch.Generator().manual_seed(0))
    first, second = (unpack_scores(pack_scores(draw_scores("auc", shift + outputs, labels))) for shift in (0, 3))
    assert len(first) == 501
    assert np.array_equal(first, second)  # a shift changes no rank, on any rows
    assert first.std() > 0.01
    assert np.abs(first - draw_scores("auc", outputs, labels)).max() < 1e-5
    mine = [{"seed": 1, "scores": pack_scores(first - 0.1)}, {"seed": 9, "scores": ""}]
    (difference,) = subtract_scores(mine, [{"seed": 1, "scores": pack_scores(second)}])
    assert np.allclose(difference, -0.1, atol=2e-5)


def test_labels_have_their_entropy() -> None:
    assert count_label_bytes(torch.tensor([0, 1] * 80)) == 20
    assert count_label_bytes(torch.zeros(80)) == 0


# End to end ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """A table whose label is the sign of a sum over both parties."""
    x = torch.randn(1400, 6, generator=torch.Generator().manual_seed(0))
    labels = (x.sum(dim=1) > 0).long()
    (left, left_test), (right, right_test) = (part.split([1200, 200]) for part in (x[:, :3], x[:, 3:]))
    data = VerticalData(("left", "right"), (left, right), (left_test, right_test), labels[:1200], labels[1200:])
    task = Task("small", "a table", build_small_table, "auc", 2, 1024, 9, 0.01, "concat", "binary_cross_entropy")
    monkeypatch.setitem(TASKS, "small", task)
    monkeypatch.setattr(tasks, "load_split", lambda *_, **__: data)
    load_data.cache_clear()
    yield task
    load_data.cache_clear()


def ask(**changes: Any) -> Namespace:
    common = {"tasks": ["small"], "methods": ["svfl", "once"], "trials": 2, "cell_minutes": 60.0, "seeds": [1]}
    return Namespace(**{**common, **changes})


def test_a_table_is_tuned_judged_and_resumed(
    small: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "records.jsonl"
    data = load_data("small")
    assert (len(data.train.labels), len(data.validation.labels), len(data.test.labels)) == (1080, 120, 200)
    fewest_bytes.tune(ask(), Records(out))
    fewest_bytes.judge(ask(), Records(out))
    kept = out.read_text()

    def refuse(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(fewest_bytes, "run_trial", refuse)
    fewest_bytes.tune(ask(), Records(out))
    fewest_bytes.judge(ask(), Records(out))
    assert out.read_text() == kept
    capsys.readouterr()
    fewest_bytes.table(ask(), Records(out))
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in printed if line.startswith("| small")][:2] == ["svfl", "once"]
    assert sum("+0.00 points" in line for line in printed) >= 1  # svfl less itself


def test_a_cell_ends_when_its_minutes_are_used_up(small: Task, tmp_path: Path) -> None:
    records = Records(tmp_path / "records.jsonl")
    fewest_bytes.tune(ask(methods=["svfl"], trials=3, cell_minutes=0.0001), records)
    assert len(records.list("tune small svfl ")) == 1
    (cell,) = records.list("cell small svfl ")
    assert (cell["trials"], cell["cell_minutes"], cell["done"]) == (3, 0.0001, 1)


def test_records_of_another_size_are_refused(small: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(tmp_path / "records.jsonl")
    fewest_bytes.require_same_task(records, "small")
    monkeypatch.setitem(TASKS, "small", Task(**{**vars(small), "epochs": 4}))
    with pytest.raises(SystemExit, match="its epochs changed"):
        fewest_bytes.require_same_task(records, "small")
