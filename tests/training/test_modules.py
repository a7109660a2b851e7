"""What a run does to the modules it was given, and what a later one finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from engine.identities.small import WIDTH, job, same_models, top
from thinwire.base.errors import BadInput, BadState, NotFinite
from thinwire.engine.compress import Directions, RowScale, TopK
from thinwire.engine.methods import cvfl, svfl
from thinwire.engine.privacy import Frozen
from thinwire.job.job import Job
from thinwire.training.result import Result


def _copies(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("recipe", [svfl(), cvfl(TopK(0.5))], ids=["private", "shared labels"])
def test_frozen_bottom_models_stay_as_they_are_the_label_partys_own_too(recipe: tw.Recipe) -> None:
    made = job(recipe, own=True, training=Frozen(), epochs=2, diagnostics=True)
    before = {name: _copies(module) for name, module in made.modules().items()}
    result = tw.train(made)
    for name, module in result.models.items():
        same = all(torch.equal(tensor, before[name][key]) for key, tensor in module.state_dict().items())
        assert same == (name != "top"), name


def test_a_module_that_was_frozen_in_one_job_learns_in_the_next() -> None:
    made = job(svfl(), own=True, training=Frozen(), epochs=1)
    tw.train(made)
    assert all(p.requires_grad for module in made.modules().values() for p in module.parameters())
    assert all(module.training for module in made.modules().values())
    made.training = job(svfl()).training
    before = {name: _copies(module) for name, module in made.modules().items()}
    for name, module in tw.train(made).models.items():
        assert not torch.equal(
            module.state_dict()["0.weight" if name != "top" else "weight"], before[name].popitem()[1]
        )


def _normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())


def test_batch_normalisation_in_the_label_partys_own_bottom_is_checked_too() -> None:
    made = job(svfl(), own=True, batch_size=239)
    made.label_party.bottom = _normed()
    with pytest.raises(BadInput, match="party 'lab': batch normalisation cannot train on the last batch"):
        tw.train(made)


@pytest.mark.parametrize("diagnostics", [False, True])
def test_a_submodule_in_evaluation_mode_stays_in_it(diagnostics: bool) -> None:
    made = job(svfl(), own=True, epochs=1, diagnostics=diagnostics)
    mine, own = _normed(), _normed()
    made.parties[0].bottom, made.label_party.bottom = mine, own
    mine[1].eval()
    kept = _copies(mine[1])
    tw.train(made)
    assert (mine.training, mine[1].training, own[1].training) == (True, False, True)
    assert torch.equal(mine[1].state_dict()["running_mean"], kept["running_mean"])
    assert own[1].state_dict()["num_batches_tracked"] == 5


def test_batch_normalisation_in_evaluation_mode_takes_a_batch_of_one_row() -> None:
    made = job(svfl(), batch_size=239, epochs=1)
    mine = _normed()
    mine[1].eval()
    made.parties[0].bottom = mine
    assert tw.train(made).history[-1]["round"] == 2


def test_a_top_model_with_spectral_norm_resumes_to_the_bit(tmp_path: Path) -> None:
    def made(epochs: int) -> Job:
        found = job(cvfl(TopK(0.5), local_steps=2), epochs=epochs, eval_every=5)
        torch.manual_seed(5)
        found.label_party.top = nn.utils.parametrizations.spectral_norm(top())
        return found

    whole = tw.train(made(4))
    tw.train(made(2), out=tmp_path / "run")
    assert same_models(tw.train(made(4), out=tmp_path / "run", resume=True), whole)


@pytest.mark.parametrize("changed", ["fusion", "class_weights", "loss"])
def test_another_fusion_or_loss_is_not_resumed(changed: str, tmp_path: Path) -> None:
    tw.train(job(svfl(), epochs=1), out=tmp_path / "run")
    other = job(svfl(), epochs=2, fusion="mean" if changed == "fusion" else "sum")
    if changed != "fusion":
        label = other.label_party
        weighted = [2.0] + [1.0] * 9 if changed == "class_weights" else None
        loss = tw.losses.cross_entropy if weighted else lambda outputs, _: outputs.square().mean(1)
        other.label_party = tw.LabelParty(
            "lab", label.labels, label.top, label.test_labels, loss=loss, class_weights=weighted
        )
    with pytest.raises(BadState, match="created by another job: label party differ"):
        tw.train(other, out=tmp_path / "run", resume=True)


def test_a_run_loaded_with_modules_scores_as_the_recipe_says(tmp_path: Path) -> None:
    made = job(replace(svfl(), scoring=RowScale(3)), epochs=1)
    tw.train(made, out=tmp_path / "run")
    features = {party.name: party.test_features for party in made.parties}
    known = tw.load_run(tmp_path / "run", job=made).predict(features)
    assert torch.equal(tw.load_run(tmp_path / "run", modules=made.modules()).predict(features), known)


def test_a_gradient_beyond_all_floats_does_not_hide_that_training_diverged(tmp_path: Path) -> None:
    made = job(svfl(), diagnostics=True, eval_every=1, metrics=[])
    made.label_party.loss = lambda outputs, _: (outputs * 1e30 * 1e30).mean(1)
    with torch.no_grad():
        for parameter in made.label_party.top.parameters():
            parameter.zero_()
    with pytest.raises(NotFinite, match="lower the learning rate"):
        tw.train(made, out=tmp_path / "run")


def test_a_run_may_be_trained_inside_a_callback() -> None:
    inner: list[Result] = []

    def look(event: dict[str, object]) -> None:
        if event["round"] == 0:
            inner.append(tw.train(job(svfl(), epochs=1), []))

    outer = tw.train(job(svfl(), epochs=1), [look])
    assert same_models(inner[0], outer)


@pytest.fixture
def threads() -> Iterator[None]:
    """Whatever a test sets, the next one computes with as many threads as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _wide(epochs: int) -> Job:
    rng = torch.Generator().manual_seed(3)
    x, labels = torch.randn(4096, 300, generator=rng), torch.randint(0, 3, (4096,), generator=rng)
    torch.manual_seed(1)
    bottom, last = nn.Sequential(nn.Linear(300, 10), nn.Tanh()), nn.Linear(10, 3)
    party, label = tw.FeatureParty("p", x, bottom), tw.LabelParty("lab", labels, last)
    return tw.Job([party], label, svfl(), epochs=epochs, eval_every=3)


@pytest.mark.usefixtures("threads")
def test_a_resumed_run_computes_with_as_many_threads_as_it_began_with(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    whole = tw.train(_wide(4))
    tw.train(_wide(2), out=tmp_path / "run")
    torch.set_num_threads(1)
    seen: list[int] = []
    resumed = tw.train(
        _wide(4), out=tmp_path / "run", resume=True, on_round=lambda _: seen.append(torch.get_num_threads())
    )
    assert same_models(resumed, whole)
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("threads")
def test_directions_decode_alike_whatever_the_threads_of_either_end() -> None:
    x = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    for sending, receiving in ((1, 2), (2, 1)):
        torch.set_num_threads(sending)
        symbols = Directions(0.5).compress(x, torch.Generator())
        body, here = tw.wire.encode(symbols), symbols.to_tensor()
        torch.set_num_threads(receiving)
        assert torch.equal(tw.wire.decode(body).to_tensor(), here)
