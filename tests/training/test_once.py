"""One exchange of codes: every row goes up once, only verdicts come down, and the label party learns alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.errors import BadParameter, IncompatibleRecipe
from thinwire.engine.models.encoders import Encoder
from thinwire.engine.privacy.accounting.ledger import Frozen
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.job.disclosure import describe_training
from thinwire.training.dry_run import run_dry

ROWS, HELD_OUT = 600, 200
CUT = {"rows": slice(0, ROWS), "validation": slice(ROWS, ROWS + HELD_OUT), "test": slice(ROWS + HELD_OUT, None)}
TREES: dict[str, Any] = {"leaves": 8, "min_rows": 10, "shrinkage": 0.3, "l2": 1.0}


def draw_rows() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS + 2 * HELD_OUT, 8, generator=rng)
    return x, (x[:, 0] - x[:, 5] + x[:, 1] * x[:, 4] + 0.3 * torch.randn(len(x), generator=rng) > 0).long()


def coded_job(top: nn.Module | None = None, validation: bool = True, own: bool = False, **settings: Any) -> tw.Job:
    x, y = draw_rows()
    torch.manual_seed(0)

    def held(table: Tensor) -> dict[str, Any]:
        steering = {"validation_features": table[CUT["validation"]]} if validation else {}
        return {"features": table[CUT["rows"]], "test_features": table[CUT["test"]], **steering}

    parties = [tw.FeatureParty("bank", bottom=tw.learners.PrincipalDirections(4, 4, 10), **held(x[:, :4]))]
    columns: dict[str, Any] = {**held(x[:, 4:]), "bottom": tw.learners.RawColumns()} if own else {}
    if not own:
        parties.append(tw.FeatureParty("shop", bottom=tw.learners.Bins(4, bins=8), **held(x[:, 4:])))
    label = tw.LabelParty(
        "clinic",
        y[CUT["rows"]],
        top or nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)),
        y[CUT["test"]],
        validation_labels=y[CUT["validation"]] if validation else None,
        fusion="concat",
        **columns,
    )
    usual = {"recipe": tw.methods.once(passes=30), "optimizer": tw.Adam(lr=0.01), "epochs": 1, "metrics": ["auc"]}
    return tw.Job(parties, label, **{**usual, **settings})


def test_every_row_goes_up_once_and_only_verdicts_come_down() -> None:
    result = tw.train(coded_job(batch_size=200, eval_every=1), callbacks=[])
    entries = result.ledger.entries()
    down = {entry["kind"] for entry in entries if entry["sender"] == "clinic"}
    assert down == {"EVALUATION"}
    sent = {entry["kind"]: entry["messages"] for entry in entries if entry["sender"] == "bank"}
    assert sent == {"EMBEDDING": 3, "EVALUATION": 1, "TEST": 1}
    assert result.summary()["test"]["auc"] > 0.85


def test_trees_on_codes_and_on_the_label_partys_own_columns() -> None:
    job = coded_job(tw.learners.BoostedTrees(2, **TREES), own=True)
    assert tw.train(job, callbacks=[]).summary()["test"]["auc"] > 0.9


def test_passes_end_by_validation_rows_and_the_best_of_them_stays() -> None:
    patient, blind = tw.learners.BoostedTrees(2, **TREES), tw.learners.BoostedTrees(2, **TREES)
    tw.train(coded_job(patient, recipe=tw.methods.once(passes=200, patience=3)), callbacks=[])
    assert 0 < patient.count < 2 * 200
    tw.train(coded_job(blind, validation=False, recipe=tw.methods.once(passes=7)), callbacks=[])
    assert blind.count == 2 * 7


def test_more_rows_are_not_asked_for_once_they_do_not_help() -> None:
    result = tw.train(coded_job(batch_size=50, eval_every=1, patience=1), callbacks=[])
    assert result.summary()["rounds"] < 12
    assert result.summary()["bytes"]["up"] < tw.train(coded_job(), callbacks=[]).summary()["bytes"]["up"]


def test_codes_are_what_the_label_party_learns_from() -> None:
    """Rounded by hand, the same rows and the same steps give the same top model."""
    job = coded_job(validation=False, recipe=tw.methods.once(passes=2))
    tw.train(job, callbacks=[])
    twin = coded_job(validation=False)
    for party in twin.parties:
        encoder = party.bottom
        assert isinstance(encoder, Encoder)
        encoder.fit(party.features)
        party.features = encoder(party.features).round()
        party.bottom = tw.learners.RawColumns()
    tw.train(replace(twin, recipe=tw.methods.once(passes=2)), callbacks=[])
    for mine, theirs in zip(job.label_party.top.parameters(), twin.label_party.top.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_it_says_who_sees_what() -> None:
    job = coded_job()
    seen = describe_training(job.recipe, job.roster)
    assert "no labels and no derivatives" in seen["bank"][0]
    assert any("validation row" in one and one.endswith("once") for one in seen["clinic"])
    says = tw.train(job, callbacks=[]).summary()["privacy"][0]["not_protected"]
    assert not any("erivative" in one for one in says)


def test_a_dry_run_knows_the_bytes() -> None:
    job = coded_job()
    shown = run_dry(job)
    assert shown.first_round_bytes == {"up": tw.train(job, callbacks=[]).summary()["bytes"]["up"], "down": 0}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda job: setattr(job, "epochs", 2), "sends every row once"),
        (lambda job: setattr(job.parties[0], "bottom", nn.Linear(4, 4)), "principal_directions"),
        (lambda job: setattr(job, "recipe", tw.methods.svfl()), None),
        (lambda job: setattr(job.label_party, "top", tw.learners.BoostedTrees(2)), None),
    ],
)
def test_what_cannot_work_is_refused(change: Any, says: str | None) -> None:
    job = coded_job()
    change(job)
    if says is None:  # encoders under any recipe, trees under this one
        job.check()
        return
    with pytest.raises(IncompatibleRecipe, match=says):
        job.check()


def test_trees_as_a_top_model_need_it() -> None:
    with pytest.raises(IncompatibleRecipe, match="no derivative"):
        coded_job(tw.learners.BoostedTrees(2), recipe=tw.methods.svfl()).check()


def test_a_frozen_network_may_send_too() -> None:
    job = coded_job(training=Frozen())
    job.parties[0].bottom = nn.Linear(4, 4)
    job.check()


def test_pre_training_lowers_the_error_of_rebuilding_and_sends_nothing() -> None:
    x = draw_rows()[0][:, :4]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    short, long = (tw.learners.Pretraining(epochs=one, lr=0.01, hidden_share=0.1) for one in (1, 30))
    assert long.run(network, x, 0) < 0.7 * short.run(nn.Linear(4, 4), x, 0)


def test_pre_training_begins_the_same_everywhere_and_learns_from_unaligned_rows() -> None:
    def run(unaligned: Tensor | None) -> tuple[dict[str, Tensor], int]:
        job = coded_job(recipe=tw.methods.svfl(), pretraining=tw.learners.Pretraining(epochs=2), batch_size=100)
        torch.manual_seed(1)
        for party in job.parties:
            party.bottom = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        job.parties[0].unaligned_features = unaligned
        result = tw.train(job, callbacks=[])
        return job.parties[0].bottom.state_dict(), result.bytes.total

    (one, size), (again, _), (more, same) = run(None), run(None), run(torch.randn(500, 4))
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not torch.equal(one["0.weight"], more["0.weight"])
    assert size == same


def test_thin_goes_on_from_one_exchange() -> None:
    job = coded_job(recipe=tw.methods.thin(reuse=1, warm_passes=5), batch_size=100, eval_every=6)
    job.parties[0].bottom, job.parties[1].bottom = nn.Linear(4, 4), nn.Linear(4, 4)
    result = tw.train(job, callbacks=[])
    assert {entry["kind"] for entry in result.ledger.entries()} >= {"WARM_START", "EMBEDDING", "DERIVATIVE"}
    cold = coded_job(recipe=tw.methods.thin(reuse=1), batch_size=100, eval_every=6)
    cold.parties[0].bottom, cold.parties[1].bottom = nn.Linear(4, 4), nn.Linear(4, 4)
    assert result.history[0]["validation"]["loss"] < tw.train(cold, callbacks=[]).history[0]["validation"]["loss"]


def test_pre_training_is_refused_where_rows_are_protected() -> None:
    with pytest.raises(BadParameter, match="pretraining"):
        coded_job(pretraining=tw.learners.Pretraining(), training=DPBottom(1.0, 1.0))


def test_a_network_of_ones_own_becomes_an_encoder() -> None:
    x = draw_rows()[0]
    encoder = tw.learners.Pretrained(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6)), width=6)
    encoder.fit(x, seed=1)
    codes = encoder(x).round()
    assert codes.abs().max() > 0
    assert codes.mean(0).abs().max() < 1


def test_sums_with_noise_cost_one_release_a_row() -> None:
    x, y = draw_rows()
    parties = [
        tw.FeatureParty(
            f"p{place}", x[:ROWS, 2 * place : 2 * place + 2], tw.learners.RandomProjections(2, 6, party_seed=place)
        )
        for place in range(4)
    ]
    label = tw.LabelParty("clinic", y[:ROWS], nn.Linear(6, 2))
    recipe = tw.methods.once(passes=2, noise=tw.compress.PoissonBinomial(16, 0.1))
    result = tw.train(tw.Job(parties, label, recipe, epochs=1, training=Frozen()), callbacks=[])
    told = result.summary()["privacy"][0]
    assert told["most_uses_of_a_row"] == {"releases": 1, "steps": 0}
    assert 0 < told["observers"][0]["end_to_end_epsilon"] < 100
    parties[0].bottom = tw.learners.PrincipalDirections(2, 2)
    for party in parties[1:]:
        party.bottom = tw.learners.RandomProjections(2, 2)
    with pytest.raises(IncompatibleRecipe, match="fitted to its party's rows"):
        tw.Job(parties, tw.LabelParty("clinic", y[:ROWS], nn.Linear(2, 2)), recipe, epochs=1).check()
