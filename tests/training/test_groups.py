"""Rows with one owner in common: one surrogate, one code and one derivative for each owner, and the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from engine.identities.small import same_models, without_times
from thinwire.base.errors import BadInput, BadTensor, IncompatibleRecipe
from thinwire.compress import QSGD, Identity, RandomizedResponse, TopK
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.engine.wire.frame import HEADER_SIZE
from thinwire.lab.ablation.ablation_runs import train_centrally
from thinwire.lab.tune.tuner import measure_step_ms
from thinwire.methods import celu, cvfl, efvfl, once, pbm, svfl, thin
from thinwire.privacy import DPBottom
from thinwire.training.dry_run import run_dry

USERS, FILMS, RATINGS, HELD_OUT = 20, 30, 240, 60
WIDTH = 4


class Ratings:
    """Users and films with columns of their own, and ratings of the one by the other."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(5)
        self.users, self.films = torch.randn(USERS, 6, generator=rng), torch.randn(FILMS, 5, generator=rng)
        count = RATINGS + 2 * HELD_OUT
        self.user_of = torch.randint(USERS, (count,), generator=rng)
        self.film_of = torch.randint(FILMS, (count,), generator=rng)
        score = self.users[self.user_of, 0] * self.films[self.film_of, 1] + self.users[self.user_of, 2]
        self.likes = (score > 0).long()


CUT = {
    "": slice(0, RATINGS),
    "validation_": slice(RATINGS, RATINGS + HELD_OUT),
    "test_": slice(RATINGS + HELD_OUT, None),
}
DATA = Ratings()


def grouped(table: Tensor, owners: Tensor) -> dict[str, Any]:
    return {"features": table} | {f"{kind}group": owners[rows] for kind, rows in CUT.items()}


def repeated(table: Tensor, owners: Tensor) -> dict[str, Any]:
    return {f"{kind}features": table[owners[rows]] for kind, rows in CUT.items()}


def ratings_job(recipe: tw.Recipe, hold: Any = grouped, bottoms: Any = None, **settings: Any) -> tw.Job:
    torch.manual_seed(1)
    networks = [nn.Sequential(nn.Linear(width, WIDTH), nn.Tanh()) for width in (6, 5)]
    users, films = bottoms() if bottoms else networks
    labels: dict[str, Any] = {f"{kind}labels": DATA.likes[rows] for kind, rows in CUT.items()}
    usual = {"optimizer": tw.SGD(lr=0.5), "batch_size": 48, "epochs": 4, "eval_every": 5, "metrics": ["auc"]}
    return tw.Job(
        [
            tw.FeatureParty("people", bottom=users, **hold(DATA.users, DATA.user_of)),
            tw.FeatureParty("studio", bottom=films, **hold(DATA.films, DATA.film_of)),
        ],
        tw.LabelParty("cinema", top=nn.Linear(2 * WIDTH, 2), fusion="concat", **labels),
        recipe,
        **{**usual, **settings},
    )


def losses(result: tw.Result) -> list[float]:
    rows = [row["train"]["loss"] for row in result.history] + [row["validation"]["loss"] for row in result.history]
    return [*rows, result.history[-1]["test"]["loss"]]


EXACT = {
    "svfl": svfl(),
    "celu": celu(3, 3),
    "celu without weights, ahead": celu(3, 3, None, overlap="ahead"),
    "warm": replace(efvfl(Identity(), labels="private", warm_start=True), warm_passes=2),
}


@pytest.mark.parametrize("recipe", EXACT.values(), ids=EXACT.keys())
def test_a_group_trains_as_its_owners_columns_in_every_row_do(recipe: tw.Recipe) -> None:
    ours, theirs = tw.train(ratings_job(recipe)), tw.train(ratings_job(recipe, repeated))
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-4)
    assert ours.bytes.up < 0.65 * theirs.bytes.up
    assert ours.bytes.down < 0.65 * theirs.bytes.down
    evaluated = [result.summary()["bytes"]["evaluation"] for result in (ours, theirs)]
    assert evaluated[0] < 0.65 * evaluated[1]


def test_all_rows_at_once_cost_a_message_of_all_owners() -> None:
    job = ratings_job(svfl(), batch_size=None, epochs=1, eval_every=1)
    up = [e for e in tw.train(job).ledger.entries() if e["kind"] == "EMBEDDING"]
    assert {e["sender"]: e["bytes"] for e in up} == {
        "people": pytest.approx(4 * WIDTH * USERS, abs=60),
        "studio": pytest.approx(4 * WIDTH * FILMS, abs=60),
    }


@pytest.mark.parametrize("recipe", [efvfl(TopK(0.25), labels="private"), thin()], ids=["efvfl", "thin"])
def test_owners_of_one_row_each_train_to_the_bit_as_rows(recipe: tw.Recipe) -> None:
    """With nothing in common, a group changes nothing."""

    def alone(table: Tensor, owners: Tensor) -> dict[str, Any]:
        held = repeated(table, owners)
        return held | {f"{kind}group": torch.arange(len(held[f"{kind}features"])) for kind in CUT}

    ours, theirs = (tw.train(ratings_job(recipe, hold, batch_size=None)) for hold in (alone, repeated))
    assert same_models(ours, theirs)
    assert ours.bytes.total == theirs.bytes.total


def test_error_feedback_has_one_surrogate_for_each_owner() -> None:
    """Against the method written out: G of owners; what is fused is G of each row's owner."""
    job = ratings_job(efvfl(TopK(0.25), labels="private"), batch_size=None, epochs=6, eval_every=6)
    twin = job.duplicate()
    bottoms, top = [party.bottom for party in twin.parties], twin.label_party.top
    tables, owners = [DATA.users, DATA.films], [DATA.user_of[CUT[""]], DATA.film_of[CUT[""]]]
    surrogates = [torch.zeros(len(table), WIDTH) for table in tables]
    optimizer = torch.optim.SGD([p for module in (*bottoms, top) for p in module.parameters()], lr=0.5)
    for _ in range(6):
        embeddings = [module(table) for module, table in zip(bottoms, tables, strict=True)]
        for g, h in zip(surrogates, embeddings, strict=True):
            g.add_(TopK(0.25).compress(h.detach() - g, torch.Generator()).to_tensor())
        received = [g.clone().requires_grad_() for g in surrogates]
        rows = [g[index] for g, index in zip(received, owners, strict=True)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(top(torch.cat(rows, dim=1)), DATA.likes[CUT[""]]).backward()
        torch.autograd.backward(embeddings, [g.grad for g in received])
        optimizer.step()
    result = tw.train(job, callbacks=[])
    last = tw.train(replace(ratings_job(job.recipe, batch_size=None, epochs=6, eval_every=6), deliver="last"))
    for name, module in zip(("people", "studio", "top"), (*bottoms, top), strict=True):
        for ours, theirs in zip(last.models[name].parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert result.bytes.total == last.bytes.total


def projections() -> tuple[nn.Module, nn.Module]:
    return tw.learners.RandomProjections(6, WIDTH, 1), tw.learners.RandomProjections(5, WIDTH, 2)


def test_one_exchange_sends_the_code_of_each_owner_once() -> None:
    settings: dict[str, Any] = {"bottoms": projections, "epochs": 1, "eval_every": 1, "optimizer": tw.Adam(lr=0.01)}
    ours, theirs = (tw.train(ratings_job(once(passes=5), hold, **settings)) for hold in (grouped, repeated))
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5)
    codes = [result.bytes.up - result.bytes.messages * HEADER_SIZE for result in (ours, theirs)]
    assert codes[0] < 0.4 * codes[1]


class Killed(Exception):
    """As a power cut."""


def end_at_5(done: int) -> None:
    if done == 5:
        raise Killed


RESUMED = {"thin": (thin(), None), "once": (once(passes=3), projections)}


@pytest.mark.parametrize(("recipe", "bottoms"), RESUMED.values(), ids=RESUMED.keys())
def test_a_resumed_run_is_the_same_to_the_bit(recipe: tw.Recipe, bottoms: Any, tmp_path: Path) -> None:
    def job() -> tw.Job:
        return ratings_job(recipe, bottoms=bottoms, epochs=1, eval_every=2, batch_size=30)

    whole = tw.train(job(), out=tmp_path / "whole", callbacks=[])
    with pytest.raises(Killed):
        tw.train(job(), [], out=tmp_path / "cut", on_round=end_at_5)
    resumed = tw.train(job(), [], out=tmp_path / "cut", resume=True)
    assert same_models(whole, resumed)
    assert [row["bytes"] for row in whole.history] == [row["bytes"] for row in resumed.history]
    assert without_times(whole.history)[-1]["train"] == without_times(resumed.history)[-1]["train"]


def test_another_index_is_another_job(tmp_path: Path) -> None:
    tw.train(ratings_job(svfl(), epochs=1), [], out=tmp_path / "run")
    other = ratings_job(svfl(), epochs=2)
    other.parties[0].group = other.parties[0].group.flip(0)
    with pytest.raises(BadInput, match="data"):
        tw.train(other, [], out=tmp_path / "run", resume=True)


def test_owners_without_rows_are_left_out() -> None:
    one = torch.eye(4)
    party = tw.FeatureParty(
        "people", one, nn.Linear(4, 2), unaligned_features=one[2:3], group=[3, 1, 3], test_group=[0, 0]
    )
    assert party.features.tolist() == one[[3, 1]].tolist()  # in the order of their first rows
    assert party.group.tolist() == [0, 1, 0]
    assert party.list_rows(HeldOut.TEST).tolist() == torch.eye(4)[[0, 0]].tolist()
    assert party.list_rows(HeldOut.VALIDATION) is None
    assert len(party.all_rows) == 3


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "float": ({"group": [0.5, 1.0]}, "group must hold one whole number per row"),
    "far": ({"group": [0, 4]}, "group: row 2 belongs to owner 4, and there are 0 to 3"),
    "negative": ({"group": [-1, 0]}, "row 1 belongs to owner -1"),
    "two columns": ({"group": [[0], [1]]}, "one whole number per row"),
    "no training group": ({"test_group": [0]}, "test_group belongs to group, which is missing"),
    "no test group": ({"group": [0], "test_features": torch.eye(4)}, "test_group is missing"),
}


@pytest.mark.parametrize(("given", "says"), WRONG.values(), ids=WRONG.keys())
def test_an_index_that_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, BadTensor), match=says):
        tw.FeatureParty("people", torch.eye(4), nn.Linear(4, 2), **given)


def boosted() -> tuple[nn.Module, nn.Module]:
    return tw.learners.BoostedTrees(1), tw.learners.BoostedTrees(1)


def normed() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH)), nn.Linear(5, WIDTH)


def binned() -> tuple[nn.Module, nn.Module]:
    return tw.learners.Bins(6, 4), tw.learners.Bins(5, 4)


REFUSED: dict[str, tuple[tw.Recipe, dict[str, Any], str]] = {
    "secure sum": (pbm(16, 0.1), {}, "secure sum"),  # of three parties
    "shared labels": (cvfl(QSGD(4)), {}, "shares labels"),
    "trees": (svfl(), {"bottoms": boosted, "batch_size": None}, "BoostedTrees fits single rows"),
    "DPBottom": (svfl(), {"training": DPBottom(1.0, 1.0)}, "DPBottom's ledger counts rows"),
    "noise of its own": (once(noise=RandomizedResponse(8.0, 4)), {"bottoms": binned}, "an owner's codes"),
    "the papers' order": (efvfl(QSGD(4), labels="private", order="update_first", warm_start=True), {}, "order="),
    "batch normalisation": (svfl(), {"bottoms": normed}, "batch normalisation"),
}


@pytest.mark.parametrize(("recipe", "settings", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_group_cannot_do_is_refused_with_the_way_out(
    recipe: tw.Recipe, settings: dict[str, Any], says: str
) -> None:
    job = ratings_job(recipe, **settings)
    zeros: dict[str, Any] = {f"{kind}features": torch.zeros(len(DATA.likes[rows]), 4) for kind, rows in CUT.items()}
    third = tw.FeatureParty("third", bottom=nn.Linear(4, WIDTH), **zeros)
    job.label_party.fusion = "sum" if says == "secure sum" else "concat"
    whole = replace(job, parties=[*job.parties, third])
    with pytest.raises(IncompatibleRecipe, match=f"{says}.*; (use|leave).*leave group out"):
        whole.check()


def test_a_dry_run_counts_owners_and_says_what_they_learn() -> None:
    shown = run_dry(ratings_job(efvfl(TopK(0.25), labels="private")))
    assert shown.owners == {"people": USERS, "studio": FILMS}
    assert any("parties that combine these (people, studio)" in seen for seen in shown.who_sees["studio"])
    assert any("for every owner of training rows" in seen for seen in shown.who_sees["people"])
    assert shown.surrogate_bytes["people"] == 4 * USERS * WIDTH
    assert shown.rows == RATINGS


def test_an_audit_says_that_it_attacks_single_rows() -> None:
    with pytest.raises(BadInput, match=r"'people' has a group.*without group"):
        tw.audit.audit_job(ratings_job(svfl()))


def test_a_central_model_and_tuning_see_every_row_with_its_owner() -> None:
    job = ratings_job(svfl())
    assert measure_step_ms(job).keys() == {"people", "studio", "cinema"}
    ours, theirs = (train_centrally(ratings_job(svfl(), hold, epochs=1)) for hold in (grouped, repeated))
    assert ours == pytest.approx(theirs)
