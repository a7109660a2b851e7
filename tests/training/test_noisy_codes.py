"""One exchange of bins by randomised response: what it costs, what is said of it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.errors import BadInput, BadParameter, IncompatibleRecipe
from thinwire.engine.compress import StdGrid
from thinwire.engine.privacy import BudgetExceeded
from thinwire.engine.privacy.accounting import Budget
from thinwire.engine.privacy.accounting.ledger import Frozen
from thinwire.engine.recipe import Recipe
from thinwire.job.disclosure import describe_budget, describe_training
from thinwire.lab.attacks import audit_messages

EDGES = [[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]
NOISE = tw.compress.RandomizedResponse(epsilon=12, bins=4)


def noisy_job(edges: list[list[float]] | None = None, noise: Any = NOISE, rows: int = 90, **settings: Any) -> tw.Job:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows + 60, 4, generator=rng)
    y = (x[:, 0] + x[:, 2] > 0).long()
    cut = slice(0, rows), slice(rows, rows + 30), slice(rows + 30, None)

    def party(name: str, table: Tensor) -> tw.FeatureParty:
        trained, steer, test = (table[part] for part in cut)
        return tw.FeatureParty(
            name, trained, tw.learners.Bins(2, bins=4, edges=edges), test, validation_features=steer
        )

    labels, steer, test = (y[part] for part in cut)
    torch.manual_seed(0)
    label = tw.LabelParty("clinic", labels, nn.Linear(4, 2), test, validation_labels=steer, fusion="concat")
    recipe = tw.methods.once(passes=3, noise=noise)
    return tw.Job(
        [party("bank", x[:, :2]), party("shop", x[:, 2:])], label, recipe, epochs=1, baselines=False, **settings
    )


def test_every_row_is_charged_for_one_release() -> None:
    fitted = tw.train(noisy_job(batch_size=30, eval_every=1), callbacks=[]).summary()["privacy"]
    public = tw.train(noisy_job(EDGES, training=Frozen()), callbacks=[]).summary()["privacy"]
    for told in (*fitted, *public):
        assert told["most_uses_of_a_row"] == {"releases": 1, "steps": 0}
        assert {one["unknown_parties"] for one in told["observers"]} == {1}
        assert all(one["releases_epsilon"] == pytest.approx(12, abs=1e-4) for one in told["observers"])
    assert {one["end_to_end_epsilon"] for one in fitted[0]["observers"]} == {"infinity"}
    assert "the bins depend on all" in fitted[0]["not_protected"][0]
    assert public[0]["observers"][0]["end_to_end_epsilon"] == pytest.approx(12, abs=1e-4)
    assert not any("secure sum" in one for one in public[0]["holds_only_if"])


def test_codes_on_the_wire_are_replaced_as_often_as_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    noisier = tw.compress.RandomizedResponse(epsilon=2, bins=4)
    audit = audit_messages(noisy_job(noise=noisier, rows=1800, batch_size=600))
    assert audit is not None
    assert (audit.verdict, audit.wrong) == ("holds", ())
    monkeypatch.setattr(tw.compress.RandomizedResponse, "compress", StdGrid(1.0, scale=1.0).compress)
    bare = audit_messages(noisy_job(noise=noisier, rows=1800, batch_size=600))
    assert bare is not None
    assert "the codes of bank do not have the mean of their mechanism" in bare.wrong


def test_scoring_a_row_again_is_another_release(tmp_path: Path) -> None:
    noisier = tw.compress.RandomizedResponse(epsilon=2, bins=4)  # replaces every second code
    job, again = (noisy_job(EDGES, noisier, training=Frozen(), budget=Budget(5)) for _ in range(2))
    tw.train(job, out=tmp_path, callbacks=[])
    tables = {party.name: party.test_features for party in job.parties}
    with pytest.raises(BadInput, match="give load_run its job"):
        tw.load_run(tmp_path, modules={}).predict(tables)
    run = tw.load_run(tmp_path, job=again)
    first, second = run.predict(tables), run.predict(tables)
    assert not torch.equal(torch.as_tensor(first), torch.as_tensor(second))
    with pytest.raises(BudgetExceeded, match="the budget is 5"):
        run.predict(tables)


def test_it_says_who_sees_what() -> None:
    job = noisy_job()
    seen = describe_training(job.recipe, job.roster)["clinic"]
    assert any("RandomizedResponse(12.0, 4)" in one for one in seen)
    assert any("randomised codes only" in one for one in seen)
    assert not any("coarse, permanent copy" in one or "exactly" in one for one in seen)
    assert "infinite" in describe_budget(job.recipe, job.training, None)
    assert "the edges of the bins are public" in describe_budget(job.recipe, Frozen(), None)
    assert job.forecast_privacy()["observers"][0]["releases_epsilon"] == pytest.approx(12, abs=1e-4)


def with_model(model: nn.Module) -> tw.Job:
    job = noisy_job()
    job.parties[0].bottom = model
    return job


def with_recipe(recipe: Recipe) -> tw.Job:
    job = noisy_job()
    job.recipe = recipe
    return job


def test_what_it_does_not_cover_is_refused() -> None:
    for job, says in (
        (with_model(tw.learners.PrincipalDirections(2, 2)), "is for the codes of bins, got PrincipalDirections"),
        (with_model(tw.learners.Bins(2, bins=8)), "has bins = 8, and RandomizedResponse"),
        (noisy_job(training=Frozen()), "give their edges"),
        (noisy_job(column_importance=True), "charges each release"),
        (with_recipe(tw.methods.cvfl(NOISE, labels="private")), "for codes of rows that are sent once"),
        (with_recipe(replace(tw.methods.once(), scoring=NOISE)), "the score of a row must not depend"),
    ):
        with pytest.raises(IncompatibleRecipe, match=says):
            job.check()
    with pytest.raises(IncompatibleRecipe, match="does not shrink the remaining error"):
        tw.streams.ErrorFeedback(NOISE)


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ([[0.0]], "a list for each of 2 columns"),
        ([[0.0], "0"], r"edges\[1\]"),
        ([[0.0, 1.0, 2.0, 3.0], []], "at most 3 numbers"),
        ([[1.0, 0.0], []], "must be increasing"),
    ],
)
def test_edges_are_checked(edges: Any, says: str) -> None:
    with pytest.raises(BadParameter, match=says):
        tw.learners.Bins(2, bins=4, edges=edges)


def test_public_edges_follow_from_no_row() -> None:
    encoder = tw.learners.Bins(3, bins=3, fields_vocab=[4], edges=[[0.0, 1.0], [5.0]])
    encoder.fit(torch.rand(50, 3) * 100)
    rows = torch.tensor([[0.0, -1.0, 4.0], [1.0, 0.5, 6.0], [3.0, 2.0, torch.nan]])
    assert encoder(rows).tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, -1]]
