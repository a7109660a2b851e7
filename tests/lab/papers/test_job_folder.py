"""A run as real parties get it is the run that was simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lab.papers.digits import EXPERIMENT, write_digits, write_experiment
from thinwire.base.errors import BadInput
from thinwire.engine.channel.link import Link
from thinwire.job.job_loader import load_job
from thinwire.lab.papers.jobs import build_job
from thinwire.lab.papers.real_link import RealRun, shape_link, write_job_folder
from thinwire.lab.papers.runs import ExperimentPlan, load_plan_data
from thinwire.report.record import Evaluation


def test_the_job_file_gives_the_same_data_weights_and_settings(tmp_path: Path) -> None:
    load_plan_data.cache_clear()
    plan = ExperimentPlan(
        write_experiment(tmp_path), "quick", None, str(write_digits(tmp_path / "data")), tmp_path / "out"
    )
    experiment, data = plan.experiment(), load_plan_data(plan)
    curve = experiment.curves[1]
    path = write_job_folder(tmp_path / "job", experiment, curve, 0, data, "10.99.0.1:7443")
    real, simulated = load_job(path), build_job(experiment, curve, 0, data)
    theirs, ours = real.digests(), simulated.digests()
    assert {key for key in ours if ours[key] != theirs[key]} == {"link"}  # that one is real
    assert real.divide_rows().rounds == simulated.divide_rows().rounds
    modules = [([party.bottom for party in job.parties] + [job.label_party.top]) for job in (real, simulated)]
    for one, other in zip(*modules, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)


def test_factors_by_epoch_have_no_place_in_a_job_file(tmp_path: Path) -> None:
    load_plan_data.cache_clear()
    text = EXPERIMENT.replace("epochs = 4", "epochs = 4\nlr_factors = [[1, 0.5]]")
    data = write_digits(tmp_path / "data")
    plan = ExperimentPlan(write_experiment(tmp_path, text), "quick", None, str(data), tmp_path / "out")
    experiment = plan.experiment()
    with pytest.raises(BadInput, match="lr_factors"):
        write_job_folder(tmp_path, experiment, experiment.curves[0], 0, load_plan_data(plan), "10.99.0.1:7443")


def test_without_tools_there_is_no_link(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no up\.sh"), shape_link(tmp_path, Link(bandwidth_mbit=300)):
        pass


def test_real_seconds_are_those_of_the_first_evaluation_at_the_target() -> None:
    history = [
        Evaluation(
            round=place,
            epoch=0,
            test={"auc": value},
            seconds=3.0 + 5 * place,
            diagnostics={"evaluation_seconds": 1.0 + place},
        )
        for place, value in enumerate((0.5, 0.7, 0.8, 0.9))
    ]
    run = RealRun("svfl", 0, history, same_scores=True)
    assert run.seconds_to("auc", 0.75) == 8  # 13 of the clock, less 3 for evaluations and 2 before the first round
    assert run.seconds() == 12
    assert run.seconds_to("auc", 0.95) is None
