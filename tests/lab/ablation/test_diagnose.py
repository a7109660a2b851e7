"""A diagnosis: centralised training is svfl, axes are put back one at a time, and chance is called chance."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from math import inf, sqrt
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from integrations.jobs import small_job
from job.small import JOB, write_job
from processes import THINWIRE, Processes, run, until
from thinwire.engine.compress import Cast, Identity, TopK
from thinwire.engine.models.optimizers import Cosine
from thinwire.engine.privacy.defences import MaxNorm
from thinwire.engine.schedule import CachedSteps, EveryBatch, Overlap
from thinwire.engine.streams import Direct
from thinwire.lab.ablation import AblationResult, Diagnosis, list_variants, plan_runs, run_ablation, train_centrally
from thinwire.lab.ablation.diagnosis import Difference, compare_seeds
from thinwire.lab.ablation.training_faults import estimate_resolution

EXACT = Direct(Identity())


def weights(job: tw.Job) -> list[torch.Tensor]:
    return [value.clone() for module in job.modules().values() for value in module.state_dict().values()]


# Centralised ----------------------------------------------------------------------------------------------


def test_centralised_training_is_svfl() -> None:
    settings: dict[str, Any] = {"recipe": tw.methods.svfl(), "optimizer": tw.Adam(lr=Cosine(0.05)), "epochs": 4}
    jobs = [small_job(**settings) for _ in range(2)]
    for job in jobs:
        job.parties[0].optimizer = tw.SGD(lr=0.3, momentum=0.5)
    result = tw.train(jobs[0], callbacks=[])
    found = train_centrally(jobs[1])
    for one, two in zip(weights(jobs[0]), weights(jobs[1]), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    assert found["loss"] == pytest.approx(result.history[-1]["test"]["loss"], rel=1e-4)
    assert found["accuracy"] == result.history[-1]["test"]["accuracy"]


def test_models_of_different_float_types_are_trained_centrally_too() -> None:
    jobs = [small_job(recipe=tw.methods.svfl(), epochs=2) for _ in range(2)]
    for job in jobs:
        job.label_party.top.double()
    result = tw.train(jobs[0], callbacks=[])
    assert train_centrally(jobs[1])["loss"] == pytest.approx(result.history[-1]["test"]["loss"], rel=1e-3)


def test_centralised_training_is_scored_on_the_rows_that_evaluations_look_at() -> None:
    found, rows = [], {"validation": slice(0, 20), "test": slice(20, 40)}
    torch.manual_seed(0)
    x, y = torch.randn(100, 2), torch.arange(100) % 2
    for kinds in (("validation", "test"), ("validation",), ("test",)):
        torch.manual_seed(1)
        held: dict[str, Any] = {f"{kind}_features": x[rows[kind]] for kind in kinds}
        party = tw.FeatureParty("bank", x[40:], nn.Linear(2, 2), **held)
        answers: dict[str, Any] = {f"{kind}_labels": y[rows[kind]] for kind in kinds}
        label = tw.LabelParty("shop", y[40:], nn.Linear(2, 2), **answers)
        found.append(train_centrally(tw.Job([party], label, tw.methods.svfl(), epochs=1, batch_size=30))["loss"])
    assert found[0] == found[1] != found[2]


# Axes -----------------------------------------------------------------------------------------------------

RECIPES: dict[str, tuple[tw.Recipe, list[str]]] = {
    "svfl": (tw.methods.svfl(), []),
    "fedbcd": (tw.methods.fedbcd(3), ["when"]),
    "fedbcd(1)": (tw.methods.fedbcd(1), []),
    "cvfl": (tw.methods.cvfl(TopK(0.5), labels="private"), ["up"]),
    "cvfl shared": (tw.methods.cvfl(TopK(0.5), top_compressor=TopK(0.5)), ["up", "down", "labels"]),
    "cvfl steps": (tw.methods.cvfl(TopK(0.5), local_steps=3), ["up", "when"]),
    "efvfl": (tw.methods.efvfl(TopK(0.5), labels="private", warm_start=True), ["up"]),
    "celu": (tw.methods.celu(3, 3), ["when"]),
    "thin": (tw.methods.thin(reuse=8), ["up", "down", "when"]),
    "ahead": (tw.methods.celu(1, 1, overlap="ahead"), ["when"]),
    "defended": (replace(tw.methods.svfl(), defence=MaxNorm()), ["defence"]),
}


@pytest.mark.parametrize("name", RECIPES)
def test_each_axis_that_differs_from_svfl_is_put_back_by_itself(name: str) -> None:
    recipe, wanted = RECIPES[name]
    job = small_job(recipe=recipe)
    found = list_variants(job)
    assert [variant.axis for variant in found] == wanted
    for variant in found:
        changed = variant.of(job).recipe
        same = {field.name for field in fields(recipe)} - variant.recipe.keys()
        assert all(getattr(changed, field) == getattr(recipe, field) for field in same)
        assert changed != recipe


@pytest.mark.parametrize("name", [name for name in RECIPES if "steps" not in name and name != "fedbcd(1)"])
def test_all_axes_put_back_are_svfl(name: str) -> None:
    job = small_job(recipe=RECIPES[name][0])
    for variant in list_variants(job):
        job = variant.of(job)
    schedule = job.recipe.schedule
    if isinstance(schedule, CachedSteps):  # thin's goes on saying how fine messages are
        assert (schedule.reuse, schedule.overlap) == (1, Overlap.NONE)
        schedule = EveryBatch()
    # Under private labels the top model does not travel; how evaluations travel changes no model.
    plain = replace(job.recipe, name="svfl", top=EXACT, schedule=schedule, evaluation_step=None)
    assert plain == tw.methods.svfl()


def three_parties(**changes: Any) -> tw.Job:
    """Enough for a secure sum."""
    torch.manual_seed(0)
    x, y = torch.randn(3, 40, 2), torch.arange(40) % 2
    parties = [tw.FeatureParty(f"p{k}", x[k], nn.Sequential(nn.Linear(2, 2), nn.Tanh())) for k in range(3)]
    label = tw.LabelParty("labels", y, nn.Linear(2, 2))
    return tw.Job(parties, label, tw.methods.pbm(16, 0.15), epochs=4, batch_size=20, **changes)


def test_noise_and_its_budget_are_two_axes() -> None:
    assert [variant.axis for variant in list_variants(three_parties())] == ["sum"]
    job = three_parties(budget=tw.privacy.Budget(epsilon=20, delta=1e-5), training=tw.privacy.Frozen())
    allowed = job.limit_rounds(job.check()).rounds
    assert 0 < allowed < job.divide_rows().rounds
    found = {variant.axis: variant.of(job) for variant in list_variants(job)}
    assert set(found) == {"sum", "training", "budget"}
    assert found["sum"].limit_rounds(found["sum"].check()).rounds == allowed
    assert found["budget"].limit_rounds(found["budget"].check()).rounds == job.divide_rows().rounds


# Runs -----------------------------------------------------------------------------------------------------


def diagnosed(job: tw.Job) -> Diagnosis:
    runs = plan_runs(job, 0)
    found = [run.variant for run in runs if run.variant is not None]
    return Diagnosis.of(job, found, [run_ablation(run) for run in runs])


def test_the_axis_that_costs_is_named_and_the_other_is_not() -> None:
    blind = replace(tw.methods.svfl(), name="mine", uplink=Direct(TopK(0.01)), downlink=Direct(Cast("float16")))
    torch.manual_seed(0)
    x = torch.randn(600, 2)
    y = (x.prod(1) > 0).long()
    job = tw.Job(
        [tw.FeatureParty("bank", x[:300], nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 8)), x[300:])],
        tw.LabelParty("shop", y[:300], nn.Linear(8, 2), y[300:]),
        blind,
        tw.Adam(lr=0.02),
        batch_size=50,
        epochs=15,
    )
    before = weights(job)
    found = diagnosed(job)
    assert all(one.equal(two) for one, two in zip(before, weights(job), strict=True))
    assert found.gap is not None
    assert found.gap.is_clear
    assert found.splitting is not None
    assert found.splitting.mean == 0
    up, down = found.line("up"), found.line("down")
    assert up is not None
    assert down is not None
    assert up.against_recipe is not None
    assert up.against_recipe.is_clear
    assert down.against_recipe is not None
    assert not down.against_recipe.is_clear
    said = found.describe()
    assert "Your recipe is worse" in said[0]
    assert said[1].startswith("Splitting the network between parties has no significant cost")
    assert said[2].startswith("Uplink compression (TopK(0.01)) costs")
    assert said[3].startswith("Downlink compression")
    assert "no statistically significant cost" in said[3]
    assert said[-1].startswith("Next: send slightly more up: a larger fraction than 0.01; efvfl corrects")


def test_class_weights_are_not_applied_twice() -> None:
    job = small_job(recipe=tw.methods.svfl(), metrics=())
    job.label_party = replace(job.label_party, class_weights=[1.0, 3.0])
    (central, _, ours) = plan_runs(job, 0)
    assert central.job.label_party.loss == job.label_party.loss
    assert run_ablation(central).value == pytest.approx(run_ablation(ours).value, rel=1e-4)


def test_a_run_that_diverges_is_said_to_and_the_others_go_on() -> None:
    job = small_job(optimizer=tw.SGD(lr=1e30), batch_size=None, epochs=20)
    found = diagnosed(job)
    assert [line.value for line in found.lines] == [None] * 4
    assert found.describe()[0] == "The recipe (efvfl) diverged: its loss is not finite."


# Chance ---------------------------------------------------------------------------------------------------


def test_differences_are_paired_by_seed() -> None:
    ours, theirs = {0: 0.9, 1: 0.8, 2: 0.85, 7: 0.1}, {0: 0.88, 1: 0.79, 2: 0.82}
    found = compare_seeds(ours, theirs, chance=lambda _: 5.0)
    assert found is not None
    pairs = [0.02, 0.01, 0.03]
    assert found.mean == pytest.approx(0.02)
    assert found.margin == pytest.approx(4.303 * stdev(pairs) / sqrt(3))
    assert not found.is_clear
    assert compare_seeds({0: 1.0}, {0: 0.5}, lambda share: share / 2) == Difference(0.5, 0.375)
    assert compare_seeds({0: 1.0}, {0: 0.5}, None) == Difference(0.5, inf)
    assert compare_seeds({0: 1.0}, {1: 0.5}, None) is None


def test_one_seed_tells_less_from_fewer_rows() -> None:
    assert estimate_resolution(0.5, 100) == pytest.approx(2 * sqrt(0.5 / 100))
    assert estimate_resolution(0.9, 400) == pytest.approx(estimate_resolution(0.9, 100) / 2)
    assert 0 < estimate_resolution(1.0, 50) < estimate_resolution(0.5, 50)


def made(metric: str, **values: list[float | None]) -> Diagnosis:
    outcomes = [
        AblationResult(name, seed, value, bytes=10)
        for name, found in values.items()
        for seed, value in enumerate(found)
    ]
    job = small_job(metrics=(metric,))
    return Diagnosis.of(job, list_variants(job), outcomes)


def test_words_where_there_is_nothing_to_explain() -> None:
    found = made("accuracy", centralised=[0.9, 0.91, 0.9], svfl=[0.9, 0.91, 0.9], recipe=[0.91, 0.9, 0.89])
    assert "is not statistically significant" in found.describe()[0]
    assert found.describe()[-1].endswith("the recipe is not the bottleneck.")
    better = made("accuracy", centralised=[0.9, 0.91, 0.9], recipe=[0.95, 0.96, 0.95])
    assert "Your recipe is better, by 0.0500" in better.describe()[0]


def test_lower_is_better_where_the_metric_is_a_loss() -> None:
    found = made("log_loss", centralised=[0.2, 0.21, 0.2], recipe=[0.3, 0.31, 0.3], up=[0.2, 0.21, 0.2])
    assert "Your recipe is worse, by 0.1000" in found.describe()[0]
    assert any(said.startswith("Uplink compression (TopK(0.5)) costs 0.1000") for said in found.describe())


def test_one_seed_of_a_metric_without_known_chance_claims_nothing() -> None:
    found = made("log_loss", centralised=[0.2], recipe=[0.9], up=[0.2])
    assert "is not statistically significant" in found.describe()[0]
    assert "One seed gives no estimate of the variance of this metric; use --seeds 0,1,2." in found.describe()


# The command ----------------------------------------------------------------------------------------------


def test_the_command_prints_one_object(tmp_path: Path) -> None:
    shown = run("diagnose", write_job(tmp_path), "--seeds", "0,1", "--epochs", "1", "--json")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("\n") == 1
    found = json.loads(shown.stdout)
    assert [one["name"] for one in found["runs"]] == ["centralised", "svfl", "recipe", "up"]
    assert found["runs"][0]["value"] == found["runs"][1]["value"]
    assert (found["metric"], found["seeds"], found["interrupted"]) == ("accuracy", 2, False)
    assert "8/8 up as svfl, seed 1: accuracy" in shown.stderr
    assert list(tmp_path.glob("runs")) == []  # nothing is left behind


def test_the_command_refuses_wrong_input(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    for arguments, said in (
        (["--epochs", "0"], "--epochs must be above 0"),
        (["--seeds", "x"], "--seeds must be integers"),
    ):
        shown = run("diagnose", job, *arguments)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert said in shown.stderr


def test_ctrl_c_shows_what_there_is(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB.replace("epochs = 2", "epochs = 400\neval_every = 1200"))
    with Processes() as started:
        going = started.command([THINWIRE, "diagnose", job], tmp_path)
        until(lambda: "\n" in going.stderr)
        assert going.stderr.startswith("1/4 centralised, seed 0")
        going.interrupt()
        assert going.code() == 130, going.stderr
        out, error = going.stdout, going.stderr
    assert "centralised" in out
    assert "stopped after" in error
