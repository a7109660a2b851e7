"""A run from Python: loaded again with modules of one's own, or as its job file says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import thinwire as tw
from predict.halves import simulated_outputs, trained
from thinwire.base.errors import BadInput
from thinwire.job.row_selection import RowSet
from training.party.parties import Shape, made, ran

X = {
    name: torch.randn(40, 5 + place, generator=torch.Generator().manual_seed(place))
    for place, name in enumerate("abc")
}
Y = (X["a"][:, 0] + X["b"][:, 0] > 0).long()


def modules() -> dict[str, nn.Module]:
    bottoms = {name: nn.Sequential(nn.Linear(x.shape[1], 4), nn.Tanh()) for name, x in X.items()}
    return {**bottoms, "top": nn.Linear(4, 2)}


def job(recipe: tw.Recipe, fusion: str = "mean") -> tw.Job:
    made = modules()
    parties = [tw.FeatureParty(name, features=x, bottom=made[name]) for name, x in X.items()]
    label_party = tw.LabelParty("d", labels=Y, top=made["top"], fusion=fusion)
    return tw.Job(parties=parties, label_party=label_party, recipe=recipe, epochs=1, batch_size=10)


def test_a_run_predicts_what_its_models_say(tmp_path: Path) -> None:
    result = tw.train(job(tw.methods.svfl()), callbacks=[], out=tmp_path)
    run = tw.load_run(tmp_path, modules=modules())
    found = run.predict(X)
    with torch.no_grad():
        mean = sum(result.models[name](x) for name, x in X.items()) / 3
        assert torch.allclose(found, result.models["top"](mean), atol=1e-6)
    assert torch.equal(run.predict({name: x[:7].numpy() for name, x in X.items()}), found[:7])
    assert torch.allclose(run.probabilities(X).sum(dim=1), torch.ones(40))


def test_under_a_secure_sum_the_job_is_needed_and_predictions_are_charged(tmp_path: Path) -> None:
    noisy = job(tw.methods.pbm(16, 0.2), "sum")
    tw.train(noisy, callbacks=[], out=tmp_path)
    with pytest.raises(BadInput, match="trained under a secure sum; give load_run its job"):
        tw.load_run(tmp_path, modules=modules())
    run = tw.load_run(tmp_path, job=noisy)
    assert not torch.equal(run.predict(X), run.predict(X))
    assert len((tmp_path / "charges-a.jsonl").read_text().splitlines()) == 2


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    tw.train(job(tw.methods.svfl()), callbacks=[], out=tmp_path)
    with pytest.raises(BadInput, match="is not a run folder"):
        tw.load_run(tmp_path / "nothing")
    with pytest.raises(BadInput, match=r"holds no job.toml"):
        tw.load_run(tmp_path)
    with pytest.raises(BadInput, match="modules are for a, b, c; the run has a, b, c, top"):
        tw.load_run(tmp_path, modules={name: module for name, module in modules().items() if name != "top"})
    with pytest.raises(BadInput, match="does not hold this job's model"):
        tw.load_run(tmp_path, modules={**modules(), "a": nn.Linear(3, 3)})
    run = tw.load_run(tmp_path, modules=modules())
    with pytest.raises(BadInput, match="expected those of a, b, c"):
        run.predict({"a": X["a"]})
    with pytest.raises(BadInput, match="a has 40, b has 40, c has 3"):
        run.predict({**X, "c": X["c"][:3]})
    with pytest.raises(BadInput, match=r"party 'b': features .* holds NaN"):
        run.predict({**X, "b": torch.full_like(X["b"], torch.nan)})
    with pytest.raises(BadInput, match="does not accept features of shape"):
        run.predict({**X, "b": X["a"]})
    file = tmp_path / "models" / "a.safetensors"
    save_file({key: torch.full_like(value, torch.inf) for key, value in load_file(file).items()}, file)
    with pytest.raises(BadInput, match="holds NaN or infinity"):
        tw.load_run(tmp_path, modules=modules())
    file.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(BadInput, match="does not hold this job's model"):
        tw.load_run(tmp_path, modules=modules())


def test_an_export_in_an_unknown_format_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    tw.train(job(tw.methods.svfl()), callbacks=[], out=tmp_path / "run")
    run = tw.load_run(tmp_path / "run", modules=modules())
    run.models["a"].register_forward_hook(lambda *_: pytest.fail("an embedding was computed"))
    with pytest.raises(BadInput, match=r"'onxx' is not one of .*did you mean 'onnx'"):
        run.export("onxx", tmp_path / "out", X)
    assert not (tmp_path / "out").exists()


def test_a_partys_own_folder_is_no_whole_run(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}))
    ran(place)
    with pytest.raises(BadInput, match="one party's part of a run over the network, without the data of shop"):
        tw.load_run(place.out("bank"))


def test_rows_of_the_job(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}, tests=False))
    folder = trained(place)
    assert len(simulated_outputs(folder)[1]) == len(simulated_outputs(folder, RowSet.ALL)[1]) == 48
    with pytest.raises(BadInput, match="the job has no test rows"):
        simulated_outputs(folder, RowSet.TEST)
