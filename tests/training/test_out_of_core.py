"""Runs that are too large for memory, or for a handful of parties, are the runs that they would be otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import thinwire as tw
from thinwire.engine.methods import celu, efvfl, pbm, svfl, thin

ROWS, COLUMNS, WIDTH = 600, 3, 8
RECIPES = [
    thin(),
    efvfl(tw.compress.QSGD(4)),
    *(
        pytest.param(one, marks=pytest.mark.long)
        for one in (celu(4, 3, 60), efvfl(tw.compress.TopK(0.1), labels="private"))
    ),
]


def tables(parties: int) -> tuple[list[Tensor], Tensor]:
    rng = torch.Generator().manual_seed(0)
    features = [torch.randn(ROWS, COLUMNS, generator=rng) for _ in range(parties)]
    return features, (torch.stack(features).sum(dim=(0, 2)) > 0).long()


def models(parties: int) -> tuple[list[nn.Module], nn.Module]:
    torch.manual_seed(1)
    return [nn.Linear(COLUMNS, WIDTH) for _ in range(parties)], nn.Linear(WIDTH, 2)


def job(recipe: tw.Recipe, parties: int = 3, epochs: float = 2) -> tw.Job:
    features, labels = tables(parties)
    bottoms, top = models(parties)
    return tw.Job(
        [tw.FeatureParty(f"p{k}", x, bottoms[k]) for k, x in enumerate(features)],
        tw.LabelParty("labels", labels, top),
        recipe,
        optimizer=tw.SGD(lr=0.05),
        batch_size=50,
        epochs=epochs,
        diagnostics=False,
    )


def weights(result: tw.Result) -> list[Tensor]:
    return [weight for name in sorted(result.models) for weight in result.models[name].state_dict().values()]


def require_same(first: tw.Result, second: tw.Result) -> None:
    for one, two in zip(weights(first), weights(second), strict=True):
        assert torch.equal(one, two)
    assert first.ledger.entries() == second.ledger.entries()
    assert [event["train"] for event in first.history] == [event["train"] for event in second.history]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.name} {recipe.labels.name}")
def test_a_run_with_its_tables_in_files_is_the_run_in_memory(recipe: tw.Recipe, tmp_path: Path) -> None:
    in_memory = tw.train(job(recipe), [])
    in_files = tw.train(replace(job(recipe), storage=tw.Storage(0, tmp_path)), [])
    require_same(in_memory, in_files)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.name} {recipe.labels.name}")
def test_it_is_resumed_bit_for_bit(recipe: tw.Recipe, tmp_path: Path) -> None:
    """The second half of the run may even keep its tables elsewhere."""
    whole = tw.train(job(recipe), [])
    tw.train(replace(job(recipe, epochs=1), storage=tw.Storage(0, tmp_path)), [], out=tmp_path / "run")
    halves = tw.train(job(recipe), [], out=tmp_path / "run", resume=True)
    require_same(whole, halves)


def test_64_parties_learn_what_one_machine_learns() -> None:
    parties, rounds = 64, 20
    result = tw.train(replace(job(svfl(), parties, rounds), batch_size=None, eval_every=1), [])
    features, labels = tables(parties)
    bottoms, top = models(parties)
    optimizer = torch.optim.SGD([p for module in (*bottoms, top) for p in module.parameters()], lr=0.05)
    for event in result.history:
        loss = cross_entropy(
            top(torch.stack([f(x) for f, x in zip(bottoms, features, strict=True)]).sum(dim=0)), labels
        )
        assert event["train"]["loss"] == pytest.approx(loss.item(), rel=1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert result.bytes.messages == 2 * parties * rounds


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe",
    [thin(), *(pytest.param(one, marks=pytest.mark.long) for one in (celu(4, 3, 60), pbm(16, 0.1, 2.0)))],
    ids=lambda recipe: recipe.name,
)
def test_64_parties_run_by_every_kind_of_recipe(recipe: tw.Recipe) -> None:
    result = tw.train(job(recipe, 64, epochs=0.5), [])
    assert result.summary()["rounds"] == 6
    senders = {entry["sender"] for entry in result.ledger.entries() if entry["kind"] == "EMBEDDING"}
    assert len(senders) == 64
