"""What the papers' methods do on MNIST, with real bytes. Needs THINWIRE_DATA (make test-data)."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import thinwire as tw
from lab.datasets.real_mnist import job, network, quadrants
from thinwire.engine.compress import TopK
from thinwire.engine.methods import celu, cvfl, efvfl, svfl

pytestmark = pytest.mark.data


def test_svfl_is_a_plain_torch_loop() -> None:
    result = tw.train(job(svfl(), epochs=100, eval_every=1, metrics=[]))
    bottoms, top = network(0)
    x, y = quadrants("train")
    parameters = [p for module in (*bottoms, top) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for t in range(101):
        h = sum(f(q) for f, q in zip(bottoms, x, strict=True))
        loss = cross_entropy(top(h), y)
        assert result.history[t]["train"]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5), t
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_error_feedback_makes_good_what_top_k_loses() -> None:
    def losses(recipe: tw.Recipe) -> tw.Result:
        return tw.train(job(recipe, epochs=200, eval_every=200))

    plain, feedback, direct = losses(svfl()), losses(efvfl(TopK(0.01))), losses(cvfl(TopK(0.01)))
    reference = plain.history[-1]["train"]["loss"]
    assert feedback.history[-1]["train"]["loss"] <= 1.05 * reference
    assert feedback.bytes.up * 50 <= plain.bytes.up
    assert direct.history[-1]["train"]["loss"] > 2 * reference


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_celu_needs_half_the_rounds(seed: int) -> None:
    def rounds(recipe: tw.Recipe) -> int:
        result = tw.train(job(recipe, seed, batch_size=1024, epochs=40, eval_every=10, target=("accuracy", 0.94)))
        reached = result.summary()["target"]["reached_round"]
        assert reached is not None
        return int(reached)

    assert rounds(celu(5, 5, 60.0)) * 2 <= rounds(svfl())
