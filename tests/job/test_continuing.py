"""Beginning from an earlier run: new rows, new parties, parties that left; and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import thinwire as tw
from cli.conftest import here  # noqa: F401
from job.small import JOB, ROWS, write_job
from thinwire.base.errors import BadInput
from thinwire.job.init_from import InitFrom
from thinwire.job.job_loader import load_job
from thinwire.job.party_view import read_party_view
from thinwire.storage.run_facts import EarlierRun, read_facts
from thinwire.training.party.startup import open_party_run
from training.party.parties import Seen, Shape, finished, left_models, made, ran, threads

Here = Callable[..., subprocess.CompletedProcess[str]]
THIRD = '\n[[party]]\nname = "gym"\nfeatures = { file = "bank.npz", key = "x" }\n' + (
    'test_features = { file = "bank.npz", key = "x_test" }\nmodel = { name = "linear", width = 3 }\n'
)
CONCAT = JOB.replace("top = {", 'fusion = "concat"\ntop = {')
SHOP = JOB[JOB.index('[[party]]\nname = "shop"') : JOB.index("[label_party]")]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path)


def earlier(job: Path, *settings: str) -> tuple[Path, dict[str, Any]]:
    """A run of the job unchanged, and its last evaluation."""
    out = job.parent / "earlier"
    return out, tw.train(load_job(job, settings), callbacks=[], out=out).history[-1]


def test_a_run_begins_where_the_earlier_one_ended(job: Path) -> None:
    run, last = earlier(job)
    later = load_job(job, ["job.seed=9"])
    taken = later.start_from(run)
    assert (taken.taken, taken.fresh, taken.retired) == (("bank", "shop", "top"), (), ())
    result = tw.train(later, callbacks=[], out=job.parent / "later")
    assert result.history[0]["train"] == last["train"]
    assert result.history[0]["test"] == last["test"]
    assert result.history[-1]["train"]["loss"] < last["train"]["loss"]
    facts = read_facts(job.parent / "later")
    assert facts is not None
    assert facts.begun_from["taken"] == ["bank", "shop", "top"]
    assert facts.begun_from["models"] == taken.digest


@pytest.mark.parametrize("optimizer", ['name = "adam"\nlr = 0.02', 'name = "sgd"\nlr = 0.1\nmomentum = 0.9'])
def test_with_its_optimisers_memory_it_is_the_run_that_nobody_ended(job: Path, optimizer: str) -> None:
    """All rows at once, exactly sent: nothing else is remembered from round to round."""
    text = JOB.replace('name = "adam"\nlr = 0.02', optimizer).replace("batch_size = 32\n", "")
    job.write_text(
        text.replace(text[text.index("[recipe]") : text.index("[optimizer]")], '[recipe]\nmethod = "svfl"\n')
    )
    run, _ = earlier(job, "job.epochs=4")
    straight = tw.train(load_job(job, ["job.epochs=9"]), callbacks=[])
    for optimizers in (True, False):
        later = load_job(job, ["job.epochs=5"])
        later.start_from(run, optimizers=optimizers)
        result = tw.train(later, callbacks=[])
        same = result.history[-1]["train"] == straight.history[-1]["train"]
        assert same is optimizers


def test_new_rows_and_another_order_are_no_obstacle(job: Path, tmp_path: Path) -> None:
    run, last = earlier(job)
    rng = np.random.default_rng(1)
    order = rng.permutation(ROWS)[: ROWS - 7]  # rows have left, too
    bank = dict(np.load(tmp_path / "bank.npz"))
    np.savez(tmp_path / "bank.npz", x=bank["x"][order], x_test=bank["x_test"])
    for name in ("shop", "clinic"):
        head, *lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *(lines[row] for row in order)]) + "\n")
    later = load_job(job)
    later.start_from(run)
    result = tw.train(later, callbacks=[])
    assert result.history[0]["test"] == last["test"]
    assert result.history[-1]["train"]["loss"] < result.history[0]["train"]["loss"]


def top_weight(result: tw.Result) -> Tensor:
    weight = result.models["top"].state_dict()["linear.weight"]
    assert isinstance(weight, Tensor)
    return weight


def test_a_party_joins_and_changes_nothing_at_first_under_concat(job: Path) -> None:
    job.write_text(CONCAT)
    run, last = earlier(job)
    # In the middle, so that columns must move.
    job.write_text(CONCAT.replace(SHOP, f"{THIRD}\n{SHOP}"))
    later = load_job(job)
    taken = later.start_from(run)
    assert (taken.taken, taken.fresh) == (("bank", "shop", "top"), ("gym",))
    assert "the top model's columns for 'gym' start at 0, so it changes nothing at first" in taken.notes
    result = tw.train(later, callbacks=[])
    for part in ("train", "test"):
        assert result.history[0][part]["loss"] == pytest.approx(last[part]["loss"], abs=1e-6)
    assert float(top_weight(result)[:, 4:7].abs().min()) > 0  # it has a say now
    assert result.history[-1]["train"]["loss"] < last["train"]["loss"]


def test_a_party_leaves_and_the_others_start_warm_under_concat(job: Path) -> None:
    job.write_text(CONCAT)
    run, _ = earlier(job)
    before = load_file(run / "models/top.safetensors")["linear.weight"]
    job.write_text(CONCAT.replace(SHOP, ""))
    later = load_job(job)
    taken = later.start_from(run)
    assert (taken.taken, taken.retired) == (("bank", "top"), ("shop",))
    assert "the top model's columns for shop are dropped" in taken.notes
    now = later.label_party.top.state_dict()["linear.weight"]
    assert torch.equal(now, before[:, :4])
    cold, warm = tw.train(load_job(job), callbacks=[]), tw.train(later, callbacks=[])
    assert warm.history[0]["train"]["loss"] < cold.history[0]["train"]["loss"]


BANK = JOB[JOB.index('[[party]]\nname = "bank"') : JOB.index('[[party]]\nname = "shop"')]
TOPS = ['name = "linear_top"', 'name = "mlp_top", hidden = [8]']  # 8: the second layer is as wide as the first


@pytest.mark.parametrize("top", TOPS)
def test_parties_in_another_order_keep_their_columns_under_concat(job: Path, top: str) -> None:
    text = CONCAT.replace(TOPS[0], top)
    job.write_text(text)
    run, last = earlier(job)
    job.write_text(text.replace(BANK, "").replace(SHOP, SHOP + BANK))
    later = load_job(job)
    taken = later.start_from(run, optimizers=True)
    assert taken.taken == ("shop", "bank", "top")
    assert "the top model's columns follow the parties' new order: shop, bank" in taken.notes
    assert set(taken.memories) == {"shop", "bank"}  # the top model's is of other columns
    first = tw.train(later, callbacks=[]).history[0]
    for part in ("train", "test"):
        assert first[part]["loss"] == pytest.approx(last[part]["loss"], abs=1e-6)


@pytest.mark.parametrize("top", TOPS)
def test_a_party_in_another_ones_place_does_not_get_its_columns(job: Path, top: str) -> None:
    text = CONCAT.replace(TOPS[0], top)
    job.write_text(text)
    run, _ = earlier(job)
    job.write_text(text.replace(SHOP, THIRD.replace("width = 3", "width = 4") + "\n"))
    later = load_job(job)
    taken = later.start_from(run)
    assert "the top model's columns for 'gym' start at 0, so it changes nothing at first" in taken.notes
    assert "the top model's columns for shop are dropped" in taken.notes
    key = next(key for key, tensor in later.label_party.top.state_dict().items() if tensor.dim() == 2)
    now, before = later.label_party.top.state_dict()[key], load_file(run / "models/top.safetensors")[key]
    assert torch.equal(now[:, :4], before[:, :4])
    assert not now[:, 4:].any()


def test_a_top_model_whose_columns_cannot_be_told_is_refused(job: Path) -> None:
    job.write_text(CONCAT)
    run, _ = earlier(job)
    added = load_job(job, ["label_party.fusion='sum'", *(f"party.{name}.model.width=8" for name in ("bank", "shop"))])
    with pytest.raises(BadInput, match=r"fused by 'concat' there and by 'sum' here.*--fresh top"):
        added.start_from(run, fresh=["bank", "shop"])
    swapped = CONCAT.replace(BANK, "").replace(SHOP, SHOP + BANK)
    job.write_text(swapped)
    later = load_job(job)
    later.label_party.top = ByPlace(later.label_party.top)
    before = {key: t.clone() for key, t in later.label_party.top.state_dict().items()}
    with pytest.raises(BadInput, match=r"which columns are whose is not clear.*--fresh top"):
        later.start_from(run)
    assert all(torch.equal(t, before[key]) for key, t in later.label_party.top.state_dict().items())
    (run / "run.json").unlink()
    with pytest.raises(BadInput, match=r"has no run.json.*--fresh top"):
        load_job(job).start_from(run)
    assert load_job(job).start_from(run, fresh=["top"]).taken == ("shop", "bank")


class ByPlace(torch.nn.Module):
    """A column counts by its place, which no weight says; under the names of the model that it wraps."""

    def __init__(self, wrapped: torch.nn.Module) -> None:
        super().__init__()
        self.linear = wrapped.get_submodule("linear")

    def forward(self, fused: Tensor) -> Any:
        return self.linear(fused * torch.arange(1, 9))


def test_parties_come_and_go_under_a_sum(job: Path) -> None:
    run, _ = earlier(job)
    job.write_text(JOB.replace(SHOP, f"{THIRD.replace('width = 3', 'width = 4')}\n"))
    taken = load_job(job).start_from(run)
    assert (taken.taken, taken.fresh, taken.retired) == (("bank", "top"), ("gym",), ("shop",))
    assert any("gym join the sum with fresh weights" in note for note in taken.notes)
    assert any("surrogates and worksets start empty" in line for line in taken.describe())


def test_weights_that_do_not_fit_are_refused_before_any_is_changed(job: Path) -> None:
    run, _ = earlier(job)
    later = load_job(job, ["party.shop.model={name='mlp',hidden=[3],width=4}"])
    before = {name: {k: t.clone() for k, t in m.state_dict().items()} for name, m in later.modules().items()}
    with pytest.raises(BadInput, match=r"the model 'shop' .* does not match .*reinitialise it: --fresh shop"):
        later.start_from(run)
    for name, module in later.modules().items():
        assert all(torch.equal(t, before[name][k]) for k, t in module.state_dict().items())
    assert later.start_from(run, fresh=["shop"]).fresh == ("shop",)
    with pytest.raises(BadInput, match=r"--fresh shp: there is no such model.*did you mean 'shop'"):
        later.start_from(run, fresh=["shp"])
    wider = load_job(job, ["party.bank.model.hidden=[9]"])
    with pytest.raises(BadInput, match=r"'bank' .* has shape \[8, 3\] there and \[9, 3\] here"):
        wider.start_from(run)


def test_what_is_no_finished_run_is_refused(job: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is not a run folder"):
        load_job(job).start_from(tmp_path / "nowhere")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/job.toml").touch()
    with pytest.raises(BadInput, match="has not finished: resume it first"):
        load_job(job).start_from(tmp_path / "begun")
    run, _ = earlier(job)
    with pytest.raises(BadInput, match=r"has nothing to reuse: it holds models of bank, shop, top"):
        load_job(job).start_from(run, fresh=["bank", "shop", "top"])
    (run / "models/bank.safetensors").write_bytes(b"no tensors")
    with pytest.raises(BadInput, match=r"bank.safetensors holds no model"):
        load_job(job).start_from(run)


def test_a_guarantee_does_not_begin_from_weights_that_have_seen_the_rows(job: Path) -> None:
    run, _ = earlier(job)
    private = load_job(job, ["job.training={name='DPBottom',clip=1.0,noise_multiplier=1.0}"])
    with pytest.raises(BadInput, match="a run with a privacy guarantee must start from fresh weights"):
        private.start_from(run)


def test_the_command_says_what_it_took(job: Path, here: Here) -> None:  # noqa: F811
    folder = job.parent
    assert here("train", "job.toml", "--out", "one", "--json", folder=folder).returncode == 0
    shown = here("train", "job.toml", "--from", "one", "--fresh", "shop", "--out", "two", "--json", folder=folder)
    assert shown.returncode == 0, shown.stderr
    assert "started from one: the weights of bank, top are reused" in shown.stderr
    assert "fresh: shop" in shown.stderr
    assert json.loads((folder / "two/run.json").read_text())["begun_from"]["run"] == "one"
    longer = ["--from", "one", "--out", "two", "--resume", "--set", "job.epochs=3"]
    shown = here("train", "job.toml", *longer, "--json", folder=folder)
    assert shown.returncode == 0, shown.stderr
    assert "started from" not in shown.stderr
    shown = here("train", "job.toml", "--fresh", "shop", folder=folder)
    assert (shown.returncode, "need --from RUN" in shown.stderr) == (2, True)
    shown = here("train", "job.toml", "--from", "nowhere", folder=folder)
    assert (shown.returncode, "is not a run folder" in shown.stderr) == (2, True)


@pytest.mark.parametrize("optimizers", [False, True])
def test_over_the_network_every_party_takes_over_its_own(tmp_path: Path, optimizers: bool) -> None:
    """Bit for bit what the simulator does from the same weights."""
    place = made(
        tmp_path, Shape({"method": "efvfl", "compressor": {"name": "TopK", "fraction": 0.25}}, own_features=True)
    )
    ran(place)
    earlier_runs = {name: place.out(name).rename(tmp_path / f"earlier-{name}") for name in place.names}

    alone = load_job(place.job)
    joined = tmp_path / "all"
    (joined / "models").mkdir(parents=True)
    memories: dict[str, Any] = {}
    for run in earlier_runs.values():
        for file in (run / "models").iterdir():
            (joined / "models" / file.name).write_bytes(file.read_bytes())
        memories |= EarlierRun(run).optimizers if optimizers else {}
    alone.start_from(joined)
    alone.memories = memories
    expected = tw.train(alone, callbacks=[])

    with threads(place, beginnings={n: InitFrom(run, (), optimizers) for n, run in earlier_runs.items()}) as parties:
        finished(parties)
        said = " ".join(parties["bank"].seen.sentences)
    assert "the weights of bank are reused" in said
    for name, tensors in left_models(place).items():
        for key, tensor in expected.models[name].state_dict().items():
            assert torch.equal(tensors[key], tensor), (name, key)


def test_over_the_network_a_missing_run_is_said_before_data_is_read(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}))
    (tmp_path / "bank.npz").unlink()
    with pytest.raises(BadInput, match="is not a run folder"):
        open_party_run(
            read_party_view(place.job, "bank"), place.out("bank"), Seen().audience(), InitFrom(tmp_path / "nowhere")
        )
