"""Every model has a float type of its own: bottom models, the label party's too, and the top model may differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from engine.identities.small import job

RECIPES = {
    "svfl": tw.methods.svfl(),
    "celu": tw.methods.celu(capacity=2, reuse=2),
    "private": tw.methods.efvfl(tw.compress.TopK(0.5), labels="private"),
    "shared": tw.methods.efvfl(tw.compress.TopK(0.5), labels="shared", local_steps=2),
    "direct": tw.methods.cvfl(tw.compress.Identity(), labels="shared"),
    "surrogates": tw.methods.efvfl(tw.compress.TopK(0.5), broadcast="surrogates"),
    "summed": tw.methods.pbm(trials=16, beta=0.25),
}


class Cast(nn.Module):
    """Features come as float32."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module.to(dtype)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.module(x.to(self.dtype))
        return outputs


@pytest.mark.parametrize("own", [False, True], ids=["labels", "features too"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=["f64", "f16", "bf16"])
@pytest.mark.parametrize("name", RECIPES)
def test_bottom_models_of_another_float_type_than_the_top_model(name: str, dtype: torch.dtype, own: bool) -> None:
    given = job(RECIPES[name], parties=4 if own else 3, own=own, epochs=1, eval_every=5)
    for party in given.everyone:
        if party.bottom is not None:
            party.bottom = Cast(party.bottom, dtype)
    result = tw.train(given, callbacks=[])
    assert all(p.dtype == dtype for party in given.everyone if party.bottom for p in party.bottom.parameters())
    assert result.history[-1]["train"]["loss"] < result.history[0]["train"]["loss"]


@pytest.mark.parametrize("name", ["svfl", "shared", "summed"])
def test_a_top_model_of_float64(name: str) -> None:
    given: Any = job(RECIPES[name], parties=4, own=True, epochs=1)
    given.label_party.top.double()
    assert tw.train(given, callbacks=[]).history[-1]["train"]["loss"] > 0
