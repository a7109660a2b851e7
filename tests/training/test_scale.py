"""Many parties, many rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.engine.methods import efvfl, svfl, thin


@pytest.mark.parametrize("rows", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "recipe",
    [svfl(), efvfl(tw.compress.TopK(0.1), labels="private"), pytest.param(thin(), marks=pytest.mark.long)],
    ids=lambda r: r.name,
)
def test_32_parties_and_many_rows_run(recipe: tw.Recipe, rows: int) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 64, generator=rng)
    y = (x[:, :32].sum(dim=1) > 0).long()
    job = tw.Job(
        [tw.FeatureParty(f"p{k}", x[:, 2 * k : 2 * k + 2], nn.Linear(2, 2)) for k in range(32)],
        tw.LabelParty("lab", y, nn.Linear(2, 2)),
        recipe,
        optimizer=tw.SGD(lr=0.02),
        batch_size=rows // 20,
        epochs=1,
        diagnostics=False,
    )
    result = tw.train(job)
    assert result.summary()["rounds"] == 20
    assert result.history[-1]["train"]["loss"] < result.history[0]["train"]["loss"]
    digests = 0 if recipe.name == "svfl" else 32  # one a party at the one rest after training
    assert result.bytes.messages == 20 * 64 + digests
