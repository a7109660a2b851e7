"""`thinwire compare`: the same job under several recipes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from job.small import write_job
from processes import run
from thinwire.base.errors import BadInput
from thinwire.cli.compare import build_recipe_table
from thinwire.lab.sweep import average_runs
from thinwire.lab.sweep.page import pool_runs, rank_points

Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path)


def test_a_method_takes_what_fits_of_the_jobs_recipe() -> None:
    own = {"method": "efvfl", "compressor": {"name": "Sign"}, "labels": "private", "local_steps": 1, "scope": "rows"}
    assert build_recipe_table("efvfl", own) == own
    assert build_recipe_table("cvfl", own) == {"method": "cvfl", "compressor": {"name": "Sign"}, "labels": "private"}
    assert build_recipe_table("svfl", own) == {"method": "svfl"}
    assert build_recipe_table("celu", own) == {"method": "celu", "capacity": 5, "reuse": 5}
    assert build_recipe_table("thin", {"method": "CELU", "capacity": 3, "reuse": 2}) == {
        "method": "thin",
        "capacity": 3,
        "reuse": 2,
    }
    with pytest.raises(BadInput, match="--methods: 'foo' is not one of svfl"):
        build_recipe_table("foo", own)


@pytest.mark.parametrize(
    ("own", "method", "key", "default"),
    [
        ({"method": "thin", "reuse": 1}, "celu", "reuse", 5),
        ({"method": "efvfl", "compressor": "identity"}, "cvfl", "compressor", {"name": "TopK", "fraction": 0.1}),
        (
            {"method": "cvfl", "compressor": {"name": "Identity"}},
            "efvfl",
            "compressor",
            {"name": "TopK", "fraction": 0.1},
        ),
        ({"method": "cvfl", "compressor": {"name": "Sign"}, "local_steps": 1}, "fedbcd", "local_steps", 5),
    ],
)
def test_no_method_becomes_svfl_by_what_it_takes_over(
    own: dict[str, Any], method: str, key: str, default: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build_recipe_table(method, own)[key] == default
    said = capsys.readouterr()
    assert said.out == ""
    if key != "local_steps":  # which no method takes over
        assert f"thinwire: {method}: the job's {key} = " in said.err
        assert "would make it identical to svfl, so it runs with its default" in said.err
    build_recipe_table(str(own["method"]), own)  # what a job says of its own method stays
    assert build_recipe_table("celu", {"method": "celu", "reuse": 1}) == {"method": "celu", "reuse": 1}
    assert capsys.readouterr().err == ""


def test_means_and_deviations() -> None:
    sent = {"bytes_all": 14, "bytes_training": 12, "bytes_up": 10, "bytes_down": 2}
    one = {"rounds": 1, **sent, "link_seconds": None, "best": 0.5, "delivered": 0.4, "test": None}
    mean, deviation = average_runs([one, {**one, "rounds": 3}])
    assert (mean["rounds"], mean["bytes_up"], mean["link_seconds"]) == (2, 10, None)
    assert deviation["rounds"] == pytest.approx(2**0.5)
    assert average_runs([one])[1]["rounds"] == 0


def test_methods_are_ranked_by_the_model_that_they_deliver() -> None:
    """One method peaks higher and then overfits: whoever trains with it gets the worse model."""

    def run_once(best: float, delivered: float, sent: int) -> dict[str, Any]:
        costs = {"bytes_all": sent, "bytes_training": sent, "bytes_up": sent, "bytes_down": 0, "rounds": 10}
        return {
            "reached": None,
            **costs,
            "link_seconds": None,
            "best": best,
            "delivered": delivered,
            "test": delivered - 0.01,
        }

    overtrained = {"method": "celu", **pool_runs([run_once(0.95, 0.70, 100)])}
    steady = {"method": "svfl", **pool_runs([run_once(0.85, 0.80, 900)])}
    assert [row["method"] for row in rank_points([overtrained, steady], "auc", False)] == ["svfl", "celu"]
    lower = [row["method"] for row in rank_points([overtrained, steady], "loss", False)]
    assert lower == ["celu", "svfl"]  # of a loss the lower one is better


@pytest.mark.long
def test_two_methods_over_two_seeds(job: Path) -> None:
    arguments = ["--methods", "svfl,efvfl", "--seeds", "0,1", "--target", "accuracy=0.7", "--set", "job.epochs=6"]
    shown = run("compare", job, *arguments, "--set", "link.latency_ms=10", "--workers", "1", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["target"] == {"metric": "accuracy", "value": 0.7}
    assert found["seeds"] == [0, 1]
    svfl, efvfl = found["methods"]
    assert (svfl["method"], efvfl["method"]) == ("svfl", "efvfl")
    for row in (svfl, efvfl):
        assert [one["seed"] for one in row["runs"]] == [0, 1]
        assert row["errors"] == []
        assert row["mean"]["rounds"] == sum(one["rounds"] for one in row["runs"]) / 2
        assert row["mean"]["best"] >= 0.7
        assert row["mean"]["link_seconds"] > 0
    per_round = [row["runs"][0]["bytes_up"] / row["runs"][0]["rounds"] for row in (svfl, efvfl)]
    assert per_round[0] > 1.5 * per_round[1]


def test_the_table(job: Path) -> None:
    shown = run("compare", job, "--methods", "thin", "--workers", "1")
    assert shown.returncode == 0, shown.stderr
    assert "thin" in shown.stdout
    assert "thin, seed 0: delivered" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "svfl,foo"], "'foo' is not one of"),
        (["--methods", ","], "name at least one method"),
        (["--seeds", "0,x"], "--seeds must be integers"),
        (["--target", "accuracy"], "--target: write METRIC=VALUE"),
        (["--target", "auc=0.9"], "job.target 'auc' is not among the metrics accuracy, loss"),
        (["--methods", "pbm"], "pbm: "),
    ],
)
def test_wrong_input(job: Path, arguments: list[str], message: str, here: Here) -> None:
    shown = here("compare", job, *arguments)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert shown.stdout == ""


@pytest.mark.long
def test_a_method_that_diverges_fails_and_the_others_are_shown(job: Path) -> None:
    shown = run("compare", job, "--methods", "svfl", "--set", 'optimizer={name="sgd",lr=1e30}', "--json")
    assert shown.returncode == 1
    (row,) = json.loads(shown.stdout)["methods"]
    assert len(row["errors"]) == 1
    assert "Traceback" not in shown.stderr
