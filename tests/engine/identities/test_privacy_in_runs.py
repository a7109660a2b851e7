"""Ledgers, budgets and defences in whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from engine.identities.small import WIDTH, job, same_models, trained
from thinwire.base.errors import BadInput, IncompatibleRecipe
from thinwire.engine.compress import PoissonBinomial, Uniform
from thinwire.engine.methods import celu, cvfl, pbm, svfl
from thinwire.engine.privacy import NoiseKey, SecureSum
from thinwire.engine.privacy.accounting import Budget, BudgetExceeded, PrivacyLedger, poisson_binomial_epsilon
from thinwire.engine.privacy.accounting.ledger import Frozen
from thinwire.engine.privacy.defences import LabelDP, MaxNorm
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.programs.program import Batches
from thinwire.engine.protocols.ends import Guard, count_classes
from thinwire.engine.streams import Direct

SECRET = bytes(range(32))


class Reading(nn.Module):
    """Looks at its values, as torch.func.vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x if bool((x > 100).any()) else x + 0)  # type: ignore[no-any-return]


def spent(result: tw.Result, place: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = result.summary()["privacy"][place]
    return found


def epsilons(result: tw.Result) -> dict[str, tuple[Any, Any]]:
    return {
        row["observer"]: (row["releases_epsilon"], row["end_to_end_epsilon"]) for row in spent(result)["observers"]
    }


def test_each_epoch_and_each_evaluation_is_one_use() -> None:
    result = trained(pbm(4, 0.05), epochs=3, eval_every=5, training=Frozen())  # 5 rounds an epoch
    worst = spent(result)["most_uses_of_a_row"]
    assert worst == {"releases": 4, "steps": 0}  # test rows: before the first round, and three times
    assert len(result.summary()["privacy"]) == 3
    expected = [poisson_binomial_epsilon(4, 0.05, WIDTH, m, 4, 1e-5) for m in (3, 2, 1)]
    assert [row["end_to_end_epsilon"] for row in spent(result)["observers"]] == pytest.approx(expected)
    without_tests = trained(pbm(4, 0.05), epochs=3, eval_every=1000, training=Frozen())
    assert spent(without_tests)["most_uses_of_a_row"]["releases"] == 3


def test_what_has_no_proof_is_infinite() -> None:
    raw = epsilons(trained(pbm(4, 0.05)))
    assert {after for _, after in raw.values()} == {"infinity"}
    assert all(isinstance(one, float) for one, _ in raw.values())
    for recipe in (
        svfl(),
        celu(3, 3),
        replace(svfl(), uplink=Direct(Uniform(4, bounds=(-1, 1))), aggregation=SecureSum()),
    ):
        shown = epsilons(trained(recipe, training=Frozen()))
        assert set(shown.values()) == {("infinity", "infinity")}


def test_private_training_makes_it_finite_and_counts_every_step() -> None:
    result = trained(pbm(4, 0.05), epochs=2, eval_every=1000, training=DPBottom(1.0, 4.0))
    assert spent(result)["most_uses_of_a_row"] == {"releases": 2, "steps": 2}
    assert all(isinstance(after, float) for _, after in epsilons(result).values())
    cached = replace(celu(3, 3), uplink=Direct(PoissonBinomial(4, 0.05)), aggregation=SecureSum())
    again = trained(cached, epochs=2, eval_every=1000, training=DPBottom(1.0, 4.0))
    worst = spent(again)["most_uses_of_a_row"]
    assert worst["releases"] == 2
    assert 2 < worst["steps"] <= 6


def test_private_training_learns_with_little_noise() -> None:
    plain, private = (
        trained(svfl(), epochs=20, training=training)
        for training in (tw.privacy.TrainedOnRawRows(), DPBottom(5.0, 0.01))
    )
    assert private.history[-1]["train"]["loss"] < 0.5 * private.history[0]["train"]["loss"]
    assert private.history[-1]["train"]["loss"] == pytest.approx(plain.history[-1]["train"]["loss"], rel=0.2)


def test_a_frozen_bottom_model_stays_as_it_was() -> None:
    untrained, frozen = job(svfl()), job(svfl(), training=Frozen())
    result = tw.train(frozen)
    for party, module in zip(untrained.parties, frozen.parties, strict=True):
        assert all(
            torch.equal(a, b) for a, b in zip(party.bottom.parameters(), module.bottom.parameters(), strict=True)
        )
    assert result.history[-1]["train"]["loss"] < result.history[0]["train"]["loss"]


def test_a_budget_ends_the_run_before_the_round_that_would_exceed_it() -> None:
    budget = Budget(poisson_binomial_epsilon(4, 0.05, WIDTH, 3, 2, 1e-5) + 1e-9)
    result = trained(pbm(4, 0.05), epochs=4, eval_every=1000, training=Frozen(), budget=budget)
    assert result.summary()["rounds"] == 10  # two epochs
    assert spent(result)["budget"]["spent"] <= budget.epsilon
    assert spent(result)["most_uses_of_a_row"]["releases"] == 2


def test_test_rows_have_the_same_budget() -> None:
    budget = Budget(poisson_binomial_epsilon(4, 0.05, WIDTH, 3, 3, 1e-5) + 1e-9)
    result = trained(pbm(4, 0.05), epochs=4, eval_every=2, training=Frozen(), budget=budget)
    assert result.summary()["rounds"] == 4  # looked at before, after 2 and after 4
    assert spent(result)["most_uses_of_a_row"]["releases"] == 3


def test_the_ledger_itself_refuses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.job.privacy_plan.PrivacyPlan.limit_batches", lambda _, batches, *__: batches)
    budget = Budget(poisson_binomial_epsilon(4, 0.05, WIDTH, 3, 2, 1e-5) + 1e-9)
    given = job(pbm(4, 0.05), epochs=4, eval_every=1000, training=Frozen(), budget=budget)
    with pytest.raises(BudgetExceeded, match="'p0': the privacy budget is exhausted"):
        tw.train(given)


def test_announced_rows_are_counted_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(poisson_binomial_epsilon(4, 0.05, WIDTH, 3, 2, 1e-5) + 1e-9)
    settings: dict[str, Any] = {"epochs": 4, "eval_every": 1000, "training": Frozen(), "batches": "announced"}
    result = trained(pbm(4, 0.05), budget=budget, **settings)
    assert result.summary()["rounds"] == 10
    # A label party that announces the same rows again and again is refused by the ledger.
    again = Batches.rows
    monkeypatch.setattr(Batches, "rows", lambda self, _: again(self, 0))
    with pytest.raises(BudgetExceeded):
        trained(pbm(4, 0.05), budget=budget, **settings)


@pytest.mark.parametrize(
    ("recipe", "settings", "says"),
    [
        (pbm(4, 0.05), {"training": Frozen(), "budget": Budget(1e-6)}, "allows no round of pbm"),
        (pbm(4, 0.05), {"budget": Budget(8)}, "nothing bounds what this party sends"),
        (svfl(), {"training": Frozen(), "budget": Budget(8)}, "nothing bounds what this party sends"),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(recipe: tw.Recipe, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(IncompatibleRecipe, match=says):
        trained(recipe, **settings)


def test_batch_normalisation_is_refused_where_a_guarantee_is_made() -> None:
    cases: list[tuple[tw.Recipe, dict[str, Any]]] = [(pbm(4, 0.05), {}), (svfl(), {"training": DPBottom(1.0, 1.0)})]
    for recipe, settings in cases:
        given = job(recipe, **settings)
        given.parties[1].bottom = nn.Sequential(nn.Linear(16, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
        with pytest.raises(BadInput, match="party 'p1': the bottom model normalises over the batch"):
            tw.train(given)


def test_embeddings_beyond_their_bound_are_cut_off() -> None:
    """Nothing stops, and nothing is said of them: a refusal would tell the others a value."""
    given = job(pbm(16, 0.25), epochs=1)
    for party in given.parties:
        party.bottom = nn.Linear(16, WIDTH)
        with torch.no_grad():
            party.bottom.weight.mul_(100)
    assert tw.train(given).summary()["rounds"] == 5


@pytest.mark.parametrize(
    ("bottom", "says"),
    [
        (nn.Sequential(nn.Linear(16, WIDTH), nn.Dropout(0.5)), "has dropout"),
        (Reading(), "cannot be trained by DPBottom"),
    ],
)
def test_what_cannot_be_trained_privately_is_refused_at_the_start(bottom: nn.Module, says: str) -> None:
    given = job(svfl(), training=DPBottom(1.0, 1.0))
    given.parties[0].bottom = bottom
    with pytest.raises(BadInput, match=f"party 'p0': the bottom model {says}"):
        tw.train(given)


def test_a_top_model_that_mixes_rows_is_refused_where_derivatives_come_from_it() -> None:
    recipe = replace(cvfl(PoissonBinomial(4, 0.1)), aggregation=SecureSum())
    given = job(recipe, training=DPBottom(1.0, 1.0))
    given.label_party.top = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 10))
    with pytest.raises(BadInput, match="the top model, through which DPBottom's derivatives come, normalises"):
        tw.train(given)


def test_a_label_party_with_features_cannot_send_noise_of_its_own() -> None:
    recipe = replace(cvfl(PoissonBinomial(4, 0.1)), aggregation=SecureSum())
    with pytest.raises(IncompatibleRecipe, match="the label party's own embedding travels by itself"):
        trained(recipe, parties=4, own=True)


@pytest.mark.parametrize("recipe", [pbm(4, 0.05), svfl()])  # with a secure sum, and without
def test_a_resumed_ledger_has_spent_as_much(
    recipe: tw.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thinwire.training.train._Run._saving_is_due", lambda _: True)
    given: dict[str, Any] = {"epochs": 3, "eval_every": 3, "noise_secret": SECRET, "training": DPBottom(1.0, 4.0)}
    whole = tw.train(job(recipe, **given))

    class Enough(Exception):
        pass

    def interrupt(event: dict[str, Any]) -> None:
        if event["round"] == 6:
            raise Enough

    with pytest.raises(Enough):
        tw.train(job(recipe, **given), [interrupt], out=tmp_path)
    resumed = tw.train(job(recipe, **given), out=tmp_path, resume=True)
    assert same_models(whole, resumed)
    assert whole.summary()["privacy"] == resumed.summary()["privacy"]
    with pytest.raises(BadInput, match="privacy"):
        tw.train(job(recipe, **{**given, "training": Frozen()}), out=tmp_path, resume=True)


# Defences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", ["sum", "concat"])
def test_a_defence_changes_what_goes_down_and_repeats_with_its_secret(fusion: str) -> None:
    given: dict[str, Any] = {"fusion": fusion, "noise_secret": SECRET}
    plain = trained(svfl(), **given)
    guarded, again = (trained(replace(svfl(), defence=MaxNorm()), **given) for _ in range(2))
    assert same_models(guarded, again)
    assert not same_models(guarded, plain)
    assert not same_models(guarded, trained(replace(svfl(), defence=MaxNorm()), fusion=fusion))


def test_label_dp_trains_on_labels_that_are_sometimes_wrong() -> None:
    nearly = trained(replace(svfl(), defence=LabelDP(50)), epochs=10)
    assert nearly.history[-1]["train"]["loss"] == pytest.approx(
        trained(svfl(), epochs=10).history[-1]["train"]["loss"]
    )
    noisy = trained(replace(svfl(), defence=LabelDP(1.0)), epochs=10)
    assert noisy.history[-1]["train"]["loss"] > nearly.history[-1]["train"]["loss"]


def test_label_dp_does_not_depend_on_which_labels_there_are() -> None:
    """The classes are the top model's: one label more or less changes no other row's."""
    guard = Guard(LabelDP(0.5), NoiseKey(SECRET), 1, "lab", "sum")
    top = nn.Linear(WIDTH, 10)
    zeros, one = torch.zeros(500, dtype=torch.int64), torch.zeros(500, dtype=torch.int64)
    one[7] = 9
    a, b = (guard.labels(labels, count_classes(top, WIDTH)) for labels in (zeros, one))
    assert set(a.tolist()) == set(range(10))
    assert (a != b).nonzero().flatten().tolist() == [7]
    assert count_classes(nn.Linear(WIDTH, 1), WIDTH) == 2


def test_a_defence_needs_private_labels() -> None:
    recipe = replace(cvfl(Uniform(4)), defence=MaxNorm())
    with pytest.raises(IncompatibleRecipe, match="MaxNorm hides labels, but shared labels are sent"):
        trained(recipe)


def test_every_charge_comes_before_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leaves in a round whose charge was refused."""
    calls = 0
    charge = PrivacyLedger.charge_release

    def refused(self: PrivacyLedger, rows: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 3 * 4:
            raise BudgetExceeded("p0", 1.0, 2.0, Budget(1.5))
        charge(self, rows)

    monkeypatch.setattr(PrivacyLedger, "charge_release", refused)
    given = job(pbm(4, 0.05), parties=3, eval_every=1000)
    with pytest.raises(BudgetExceeded):
        tw.train(given)
    assert calls == 3 * 4 + 1
