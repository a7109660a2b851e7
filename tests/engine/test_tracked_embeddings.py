"""Of validation rows only what has changed travels: both ends hold the same table, close to the embedding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.errors import IncompatibleRecipe, Malformed
from thinwire.engine.compress.symbols import UniformGrid
from thinwire.engine.protocols.evaluation import TrackedEmbeddings
from thinwire.wire import decode, encode


def list_embeddings() -> list[Tensor]:
    """Of a model that changes less and less; then not at all; then it is constant."""
    rng = torch.Generator().manual_seed(0)
    start, drift = torch.randn(50, 4, generator=rng), torch.randn(50, 4, generator=rng)
    moving = [start + drift * (1 - 0.5**t) for t in range(6)]
    return [*moving, moving[-1], torch.zeros(50, 4), torch.full((50, 4), 3.0)]


def test_both_ends_hold_the_same_table_within_half_a_step() -> None:
    sender, receiver = TrackedEmbeddings(0.25), TrackedEmbeddings(0.25)
    sizes = []
    for h in list_embeddings():
        body = encode(sender.outgoing(h))
        found = receiver.incoming(decode(body), "bank")
        sizes.append(len(body))
        assert torch.equal(found, sender.tensors()["table"])
        unit = float(h.std(correction=0)) or float(h.abs().max()) or 1.0
        assert float((found - h).abs().max()) <= 0.125 * unit + 1e-5
    assert sizes[0] > 2 * sizes[4] > 2 * sizes[6]  # less change, fewer bytes


def test_a_table_is_saved_and_goes_on() -> None:
    first, second = TrackedEmbeddings(0.25), TrackedEmbeddings(0.25)
    early, late = list_embeddings()[:2]
    second.load(first.tensors())
    assert second.tensors() == {}
    first.outgoing(early)
    second.load(first.tensors())
    assert encode(first.outgoing(late)) == encode(second.outgoing(late))


def test_values_beyond_float32_are_refused() -> None:
    receiver = TrackedEmbeddings(0.25)
    huge = UniformGrid((1, 2), torch.tensor([1, 0], dtype=torch.int32).numpy(), 3e38)
    receiver.incoming(huge, "bank")
    with pytest.raises(Malformed, match=r"'bank' sent .* leave the range of float32"):
        receiver.incoming(huge, "bank")


def train(step: float | None, rows: str) -> tw.Result:
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    y = (x.sum(dim=1) > 0).long()
    halves = {"a": x[:, :3], "b": x[:, 3:]}
    parties = [tw.FeatureParty(name, part[:200], nn.Linear(3, 4)) for name, part in halves.items()]
    label = tw.LabelParty("c", y[:200], nn.Linear(4, 2))
    for party in parties:
        setattr(party, f"{rows}_features", halves[party.name][200:])
    setattr(label, f"{rows}_labels", y[200:])
    recipe = tw.methods.thin(evaluation_step=step)
    return tw.train(tw.Job(parties, label, recipe, tw.Adam(0.02), batch_size=50, epochs=10, eval_every=2))


def test_an_evaluation_costs_fewer_bytes_and_training_is_the_same() -> None:
    tracked, whole = train(0.25, "validation"), train(None, "validation")
    assert tracked.history[-1]["bytes"]["evaluation"] < whole.history[-1]["bytes"]["evaluation"] / 4
    assert tracked.history[-1]["bytes"]["total"] == whole.history[-1]["bytes"]["total"]
    scores = [[row["validation"]["accuracy"] for row in run.history] for run in (tracked, whole)]
    assert max(abs(a - b) for a, b in zip(*scores, strict=True)) <= 0.05


def test_test_rows_are_never_rounded_so() -> None:
    tracked, whole = train(0.25, "test"), train(None, "test")
    assert [row["test"] for row in tracked.history] == [row["test"] for row in whole.history]


@pytest.mark.parametrize(
    ("recipe", "fusion"),
    [
        (tw.methods.pbm(16, 0.25), "sum"),
        (tw.methods.once(noise=tw.compress.RandomizedResponse(2.0, 4)), "concat"),
        (tw.methods.once(), "concat"),
    ],
    ids=["secure sum", "noise of its own", "one exchange"],
)
def test_changes_are_refused_where_they_would_pass_by_the_noise_or_are_never_sent(
    recipe: tw.Recipe, fusion: str
) -> None:
    with pytest.raises(IncompatibleRecipe, match=r"evaluation_step .*leave it out"):
        replace(recipe, evaluation_step=0.25).check(3, fusion)
