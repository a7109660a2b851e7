"""Methods against naive twins that share no code with the engine: plain torch, one process, one loop."""

from __future__ import annotations

from math import cos, radians
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


class NaiveCelu:
    """CELU-VFL as its paper has it, for any number of feature parties, as one loop with explicit tables."""

    def __init__(self, parties: int, capacity: int, reuse: int, xi: float | None, lr: float) -> None:
        self.bottoms, self.head, self.x, self.y = plain(parties)
        self.lr, self.capacity, self.reuse, self.xi = lr, capacity, reuse, xi
        self.table: list[dict[str, Any]] = []
        self.draws = 0

    def sgd(self, modules: list[nn.Module]) -> None:
        with torch.no_grad():
            for module in modules:
                for p in module.parameters():
                    if p.grad is not None:
                        p.add_(p.grad, alpha=-self.lr)
                    p.grad = None

    def exchange(self, i: int, rows: Tensor) -> None:
        h = [f(q[rows]) for f, q in zip(self.bottoms, self.x, strict=True)]
        seen = [z.detach().clone().requires_grad_() for z in h]
        total = seen[0]
        for part in seen[1:]:
            total = total + part
        cross_entropy(self.head(total), self.y[rows], reduction="none").mean().backward()
        dz = [z.grad.clone() for z in seen if z.grad is not None]
        for z, d in zip(h, dz, strict=True):
            z.backward(d)
        self.sgd([*self.bottoms, self.head])
        self.table = [e for e in self.table if e["i"] >= i - self.capacity + 1]
        self.table.append({"i": i, "rows": rows, "z": [z.detach() for z in h], "dz": dz, "uses": 1, "drawn": None})

    def draw(self) -> dict[str, Any] | None:
        allowed = [
            e
            for e in self.table
            if e["uses"] < self.reuse and (e["drawn"] is None or self.draws - e["drawn"] >= self.capacity)
        ]
        if not allowed:
            return None
        entry: dict[str, Any] = sorted(allowed, key=lambda e: (-1 if e["drawn"] is None else e["drawn"], e["i"]))[0]
        entry["drawn"] = self.draws
        entry["uses"] += 1
        self.draws += 1
        return entry

    def weight(self, now: Tensor, then: Tensor) -> Tensor:
        w = torch.nn.functional.cosine_similarity(now, then, dim=1, eps=1e-30)
        return w * (w >= cos(radians(self.xi or 0))).float()

    def local(self, e: dict[str, Any]) -> None:
        for f, q, z, dz in zip(self.bottoms, self.x, e["z"], e["dz"], strict=True):
            now = f(q[e["rows"]])
            w = torch.ones(len(now)) if self.xi is None else self.weight(now.detach(), z)
            now.backward(w[:, None] * dz)
        seen = [z.clone().requires_grad_() for z in e["z"]]
        total = seen[0]
        for part in seen[1:]:
            total = total + part
        loss = cross_entropy(self.head(total), self.y[e["rows"]], reduction="none")
        if self.xi is not None:
            now = torch.autograd.grad(loss.mean(), seen, retain_graph=True)
            loss = self.weight(torch.cat(now, dim=1), torch.cat(e["dz"], dim=1)) * loss
        loss.mean().backward()
        self.sgd([*self.bottoms, self.head])

    def run(self, batches: list[Tensor]) -> None:
        for i, rows in enumerate(batches):
            self.exchange(i, rows)
            for _ in range(self.reuse - 1):
                entry = self.draw()
                if entry is None:
                    break
                self.local(entry)


@pytest.mark.parametrize("parties", [1, 3])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_fedbcd_is_its_naive_twin_to_the_bit(parties: int, steps: int) -> None:
    made = job(fedbcd(steps), parties=parties, optimizer=tw.SGD(lr=0.3))
    twin = NaiveCelu(parties, capacity=1, reuse=steps, xi=None, lr=0.3)
    twin.run(batches_of(made))
    result = tw.train(made)
    named = {f"p{k}": f for k, f in enumerate(twin.bottoms)}
    assert parameters_equal({**named, "top": twin.head}, result)


@pytest.mark.parametrize("parties", [1, 3])
@pytest.mark.parametrize(("capacity", "reuse", "xi"), [(3, 4, None), (5, 5, 60.0), (2, 8, 90.0), (4, 3, 10.0)])
def test_celu_is_its_naive_twin(parties: int, capacity: int, reuse: int, xi: float | None) -> None:
    made = job(celu(capacity, reuse, xi), parties=parties, optimizer=tw.SGD(lr=0.3), epochs=6)
    twin = NaiveCelu(parties, capacity, reuse, xi, lr=0.3)
    twin.run(batches_of(made))
    result = tw.train(made)
    modules = [(f, result.models[f"p{k}"]) for k, f in enumerate(twin.bottoms)] + [(twin.head, result.models["top"])]
    for naive, ours in modules:
        for a, b in zip(naive.parameters(), ours.parameters(), strict=True):
            if xi is None:
                assert torch.equal(a, b)
            else:  # two ways to write a cosine: the last bits differ
                assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("eval_every", [3, 1000])
def test_sending_ahead_is_its_naive_twin_to_the_bit(eval_every: int) -> None:
    made = job(celu(1, 1, overlap="ahead"), optimizer=tw.SGD(lr=0.3), eval_every=eval_every)
    twin = NaiveCelu(3, capacity=1, reuse=1, xi=None, lr=0.3)
    batches = batches_of(made)
    sent: dict[int, list[Tensor]] = {}
    for t, rows in enumerate(batches):
        for at in (t, t + 1):
            passes_a_rest = at > t and at % eval_every == 0
            if at < len(batches) and at not in sent and not passes_a_rest:
                sent[at] = [f(q[batches[at]]).detach() for f, q in zip(twin.bottoms, twin.x, strict=True)]
        seen = [z.requires_grad_() for z in sent.pop(t)]
        cross_entropy(twin.head(seen[0] + seen[1] + seen[2]), twin.y[rows], reduction="none").mean().backward()
        for f, q, z in zip(twin.bottoms, twin.x, seen, strict=True):
            f(q[rows]).backward(z.grad)
        twin.sgd([*twin.bottoms, twin.head])
    result = tw.train(made)
    named = {f"p{k}": f for k, f in enumerate(twin.bottoms)}
    assert parameters_equal({**named, "top": twin.head}, result)
    assert not same_models(result, trained(svfl(), optimizer=tw.SGD(lr=0.3)))


def test_fedbcd_of_one_step_is_svfl() -> None:
    assert same_models(trained(fedbcd(1)), trained(svfl()))


def test_celu_of_one_use_is_svfl() -> None:
    assert same_models(trained(celu(5, 1)), trained(svfl()))


@pytest.mark.parametrize("steps", [2, 4])
def test_celu_of_capacity_one_without_weights_is_fedbcd(steps: int) -> None:
    assert same_models(trained(celu(1, steps, xi_degrees=None)), trained(fedbcd(steps)))
