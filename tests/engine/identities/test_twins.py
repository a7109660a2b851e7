"""Split learning and its variants are plain torch training to the bit; of all methods, see `test_papers.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import thinwire as tw
from engine.identities.small import bottom, digits, job, same_models, top, trained
from thinwire.engine.methods import celu, fedbcd, svfl


def batches_of(made: tw.Job) -> list[Tensor]:
    batches = made.divide_rows()
    return [batches.rows(t) for t in range(batches.rounds)]


def fused(fusion: str, h: list[Tensor]) -> Tensor:
    if fusion == "concat":
        return torch.cat(h, dim=1)
    total = h[0]
    for part in h[1:]:
        total = total + part
    return total / len(h) if fusion == "mean" else total


def parameters_equal(modules: dict[str, nn.Module], result: tw.Result) -> bool:
    return all(
        torch.equal(ours, theirs)
        for name, module in modules.items()
        for ours, theirs in zip(module.parameters(), result.models[name].parameters(), strict=True)
    )


def plain(parties: int, fusion: str = "sum") -> tuple[list[nn.Module], nn.Module, list[Tensor], Tensor]:
    x, y = digits()
    return [bottom(k) for k in range(parties)], top(fusion, parties), [q[:240] for q in x[:parties]], y[:240]


OPTIMIZERS: list[tuple[Any, Any]] = [
    (tw.SGD(lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5, foreach=False)),
    (
        tw.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    ),
    (tw.Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01, foreach=False)),
]


@pytest.mark.parametrize("fusion", ["sum", "mean", "concat"])
@pytest.mark.parametrize("batch_size", [None, 50])
@pytest.mark.parametrize(("spec", "make"), OPTIMIZERS, ids=["sgd", "momentum", "adam"])
def test_svfl_is_the_centralised_network_to_the_bit(
    fusion: str, batch_size: int | None, spec: Any, make: Any
) -> None:
    made = job(svfl(), fusion=fusion, batch_size=batch_size, optimizer=spec)
    bottoms, head, x, y = plain(3, fusion)
    optimizers = [make(module.parameters()) for module in [*bottoms, head]]
    for rows in batches_of(made):
        h = [f(q[rows]) for f, q in zip(bottoms, x, strict=True)]
        cross_entropy(head(fused(fusion, h)), y[rows], reduction="none").mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    result = tw.train(made)
    assert parameters_equal({"p0": bottoms[0], "p1": bottoms[1], "p2": bottoms[2], "top": head}, result)


@pytest.mark.parametrize("eval_every", [3, 1000])
def test_sending_ahead_is_its_naive_twin_to_the_bit(eval_every: int) -> None:
    made = job(celu(1, 1, overlap="ahead"), optimizer=tw.SGD(lr=0.3), eval_every=eval_every)
    bottoms, head, x, y = plain(3)
    batches = batches_of(made)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.3, foreach=False) for module in [*bottoms, head]]
    sent: dict[int, list[Tensor]] = {}
    for t, rows in enumerate(batches):
        for at in (t, t + 1):
            passes_a_rest = at > t and at % eval_every == 0
            if at < len(batches) and at not in sent and not passes_a_rest:
                sent[at] = [f(q[batches[at]]).detach() for f, q in zip(bottoms, x, strict=True)]
        seen = [z.requires_grad_() for z in sent.pop(t)]
        cross_entropy(head(seen[0] + seen[1] + seen[2]), y[rows], reduction="none").mean().backward()
        for f, q, z in zip(bottoms, x, seen, strict=True):
            f(q[rows]).backward(z.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    result = tw.train(made)
    assert parameters_equal({**{f"p{k}": f for k, f in enumerate(bottoms)}, "top": head}, result)
    assert not same_models(result, trained(svfl(), optimizer=tw.SGD(lr=0.3)))


def test_fedbcd_of_one_step_is_svfl() -> None:
    assert same_models(trained(fedbcd(1)), trained(svfl()))


def test_celu_of_one_use_is_svfl() -> None:
    assert same_models(trained(celu(5, 1)), trained(svfl()))


@pytest.mark.parametrize("steps", [2, 4])
def test_celu_of_capacity_one_without_weights_is_fedbcd(steps: int) -> None:
    assert same_models(trained(celu(1, steps, xi_degrees=None)), trained(fedbcd(steps)))
