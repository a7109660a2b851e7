"""Exported models give the numbers of the models, on any number of rows."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from integrations.jobs import ROWS, small_job, tables
from job.small import write_job
from processes import run as run_command
from thinwire.engine.models import MODELS, BoostedTrees, Scorecard, ScorecardTop
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.learners import TreeFitter
from thinwire.engine.models.losses import Outputs
from thinwire.predict.export import FORMATS, ExportedModels, ExportFailed, export_models, export_party_models
from training.party.parties import LABEL_PARTY, Place, made, ran, simulated
from training.party.parties import Shape as JobShape


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("run")
    tw.train(small_job(), callbacks=[], out=found / "run")
    return found / "run"


def loaded(folder: Path) -> Any:
    return tw.load_run(folder, job=small_job())


def test_the_models_of_a_run_are_plain_torch_modules(folder: Path) -> None:
    result = tw.train(small_job(), callbacks=[])
    run = loaded(folder)
    assert run.models.keys() == {"bank", "shop", "top"}
    for name, module in run.models.items():
        assert type(module) is nn.Linear
        assert not module.training
        for key, value in module.state_dict().items():
            assert value.equal(result.models[name].state_dict()[key])


def _onnx(file: Path) -> Callable[[Tensor], Tensor]:
    from onnx.reference import ReferenceEvaluator

    session: Any = ReferenceEvaluator(str(file))
    return lambda x: torch.from_numpy(session.run(["output"], {"input": x.numpy()})[0])


READERS: dict[str, Callable[[Path], Callable[[Tensor], Tensor]]] = {
    "exported-program": lambda file: torch.export.load(file).module(),
    "torchscript": lambda file: torch.jit.load(str(file)),
    "onnx": _onnx,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("to", ["exported-program", "onnx", "torchscript"])
def test_the_files_together_score_rows_as_the_run_does(to: str, folder: Path, tmp_path: Path) -> None:
    run = loaded(folder)
    files = run.export(to, tmp_path / "out")
    models = {name: READERS[to](file) for name, file in files.items()}
    data = {name: table[ROWS:] for name, table in tables().items() if name != "labels"}
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    embeddings = [models[name](data[name]) for name in about["fusion"]["order"]]
    outputs = models["top"](fuse(about["fusion"]["how"], embeddings))
    torch.testing.assert_close(outputs, run.predict(data), rtol=1e-5, atol=1e-5)
    assert about["models"]["bank"] == {"file": files["bank"].name, "input": ["rows", 3], "output": ["rows", 4]}
    assert about["outputs"] == "classes"


SHAPES: dict[str, tuple[nn.Module, Tensor]] = {
    "mlp": (MODELS["mlp"](6, [5], 4), torch.randn(4, 2, 3)),
    "lstm": (MODELS["lstm"](in_features=5, hidden=6, width=4), torch.randn(4, 3, 5)),
    "cnn": (MODELS["cnn"](in_channels=1, image_size=(8, 8), width=4), torch.randn(4, 1, 8, 8)),
    "mvcnn": (MODELS["mvcnn"](views=2, width=4), torch.randn(4, 2, 16, 16)),
    "deep_tower": (MODELS["deep_tower"]([3, 4], 2, 3, [5], 4), torch.tensor([[0.0, 1, 0.5, 2], [2, 3, 1, 1]])),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("to", ["exported-program", "torchscript"])
def test_models_of_ours_can_be_exported(name: str, to: str, tmp_path: Path) -> None:
    bottom, x = SHAPES[name]
    models = {"bank": bottom, "top": nn.Linear(4, 2)}
    held = ExportedModels.of_run(models, {"bank": x}, "sum", Outputs.CLASSES)
    files = export_models(tmp_path, held, to, tmp_path / "out")
    more = torch.cat([x, x, x])[:7]
    torch.testing.assert_close(READERS[to](files["bank"])(more), bottom(more))


def test_an_exported_tower_knows_no_category_that_the_model_does_not_know(tmp_path: Path) -> None:
    bottom, x = SHAPES["deep_tower"]
    models = {"bank": bottom, "top": nn.Linear(4, 2)}
    held = ExportedModels.of_run(models, {"bank": x}, "sum", Outputs.CLASSES)
    files = export_models(tmp_path, held, "exported-program", tmp_path / "out")
    wrong = torch.tensor([[0.0, 1, 1, 1], [3, 1, 1, 1], [0, -1, 1, 1]])  # the first field has 0 to 2
    with pytest.raises(tw.errors.BadTensor):
        bottom(wrong)
    h = READERS["exported-program"](files["bank"])(wrong)
    assert h.isnan().any(1).tolist() == [False, True, True]


def trees() -> tuple[BoostedTrees, Tensor]:
    """For two outputs, of a category with 40 codes and of numbers with gaps."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 40, 400), rng.normal(size=400), 1e6 * rng.normal(size=400)], 1).astype(np.float32)
    x[::7, 1] = np.nan
    y = np.sin(x[:, 0]) + np.nan_to_num(x[:, 1]) + x[:, 2] / 1e6
    model = BoostedTrees(2, trees=4, leaves=12, min_rows=5, fields_vocab=(40,))
    nodes, _ = TreeFitter(model, torch.from_numpy(x)).fit(np.stack([-y, 2 * y], 1), np.ones((400, 2), np.float32))
    model.add(nodes)
    return model, torch.from_numpy(x)


def test_trees_are_exported_to_the_bit(tmp_path: Path) -> None:
    bottom, x = trees()
    held = ExportedModels.of_run({"bank": bottom, "top": MODELS["bias_top"](2)}, {"bank": x[:8]}, "sum", Outputs.RAW)
    files = export_models(tmp_path, held, "onnx", tmp_path / "out")
    strange = torch.cat([x[:60], torch.full((1, 3), torch.nan), torch.tensor([[99.0, 0.1, -3e38], [-1, 3e38, 0]])])
    assert torch.equal(_onnx(files["bank"])(strange), bottom(strange))
    assert json.loads((tmp_path / "out" / "export.json").read_text())["models"]["bank"]["output"] == ["rows", 2]
    with pytest.raises(ExportFailed, match=r"bank: boosted trees cannot be exported as .*; use onnx"):
        export_models(tmp_path, held, "torchscript", tmp_path / "other")


@pytest.mark.parametrize("to", [pytest.param("onnx", marks=pytest.mark.long), "torchscript"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scorecards_are_exported_with_their_bins(tmp_path: Path, to: str) -> None:
    _, x = trees()
    card = Scorecard(3, fields_vocab=(40,), min_iv=0.0)
    card.fit(x, torch.where(x[:, 2] + torch.sin(x[:, 0]) > 0, -0.5, 0.5).double())
    card.coefficients.copy_(torch.tensor([-1.0, -0.5, -0.9]))
    held = ExportedModels.of_run({"bank": card, "top": ScorecardTop()}, {"bank": x[:8]}, "sum", Outputs.PROBABILITY)
    files = export_models(tmp_path, held, to, tmp_path / "out")
    strange = torch.cat([x[:60], torch.full((1, 3), torch.nan), torch.tensor([[99.0, 0.1, -3e38], [-1, 3e38, 0]])])
    torch.testing.assert_close(READERS[to](files["bank"])(strange), card(strange))


def test_trees_before_training_give_nothing(tmp_path: Path) -> None:
    held = ExportedModels.of_run(
        {"bank": BoostedTrees(3), "top": nn.Linear(3, 2)}, {"bank": torch.randn(4, 5)}, "sum", Outputs.CLASSES
    )
    files = export_models(tmp_path, held, "onnx", tmp_path / "out")
    assert torch.equal(_onnx(files["bank"])(torch.randn(3, 5)), torch.zeros(3, 3))


class Branching(nn.Module):
    """What a trace cannot follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[0] < 4 else -x


def test_a_file_with_other_numbers_is_refused(tmp_path: Path) -> None:
    models = {"bank": Branching(), "top": nn.Linear(2, 2)}
    held = ExportedModels.of_run(models, {"bank": torch.randn(3, 2)}, "sum", Outputs.CLASSES)
    with pytest.raises(
        ExportFailed, match="bank: the exported model gives different outputs from the original on 6 rows"
    ):
        export_models(tmp_path, held, "torchscript", tmp_path / "out")


def test_what_is_wrong_is_said_before_anything_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loaded(folder)
    with pytest.raises(tw.errors.BadInput, match="'pickle' is not one of exported-program, onnx, torchscript"):
        run.export("pickle", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(tw.errors.BadInput, match="not empty"):
        run.export("torchscript", tmp_path / "full")
    bare = tw.load_run(folder, modules={name: nn.Linear(*size) for name, size in SIZES.items()})
    with pytest.raises(tw.errors.BadInput, match="no job file: give export a few rows"):
        bare.export("exported-program", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(tw.errors.BadInput, match=r"needs onnx: pip install 'thinwire\[onnx\]'"):
        run.export("onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    data = {name: np.zeros((1, 3), np.float32) for name in ("bank", "shop")}
    assert set(bare.export("exported-program", tmp_path / "out", data)) == {"bank", "shop", "top"}


SIZES = {"bank": (3, 4), "shop": (3, 4), "top": (4, 2)}


def test_the_command(tmp_path: Path) -> None:
    assert run_command("train", write_job(tmp_path), "--out", tmp_path / "run").returncode == 0
    shown = run_command("export", tmp_path / "run", "--to", "exported-program", "--out", tmp_path / "out", "--json")
    assert shown.returncode == 0, shown.stderr
    files = json.loads(shown.stdout)["files"]
    assert set(files) == {"bank", "shop", "top"}
    assert shown.stderr == ""
    again = run_command("export", tmp_path / "run", "--to", "exported-program", "--out", tmp_path / "out")
    assert (again.returncode, again.stdout) == (2, "")
    assert "already exists and is not empty" in again.stderr


# One party's own part of a run over the network ------------------------------------------------------------


@pytest.fixture(scope="module")
def organisations(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run of real parties; the label party holds features too."""
    place = made(tmp_path_factory.mktemp("network"), JobShape({"method": "svfl"}, own_features=True))
    ran(place)
    return place


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("to", ["exported-program", pytest.param("onnx", marks=pytest.mark.long), "torchscript"])
def test_each_party_s_files_together_score_rows_as_the_simulated_run_does(
    to: str, organisations: Place, tmp_path: Path
) -> None:
    models: dict[str, Callable[[Tensor], Tensor]] = {}
    for name in organisations.names:
        files = export_party_models(organisations.out(name), to, tmp_path / name)
        assert set(files) == ({"top", name} if name == LABEL_PARTY else {name})
        models |= {model: READERS[to](file) for model, file in files.items()}
    about = json.loads((tmp_path / LABEL_PARTY / "export.json").read_text())
    assert about["fusion"] == {"how": "sum", "order": [*organisations.feature_parties, LABEL_PARTY]}
    assert (about["party"], about["outputs"]) == (LABEL_PARTY, "classes")
    own = json.loads((tmp_path / "bank" / "export.json").read_text())
    assert (own["fusion"]["how"], own["models"]["bank"]["output"]) == (None, ["rows", 4])
    data = {}
    for name in organisations.names:
        with np.load(organisations.folder / f"{name}.npz") as held:
            data[name] = torch.tensor(held["x_test"], dtype=torch.float32)
    embeddings = [models[name](data[name]) for name in about["fusion"]["order"]]
    outputs = models["top"](fuse(about["fusion"]["how"], embeddings))
    trained = simulated(organisations.job).models
    with torch.no_grad():
        wanted = trained["top"](fuse("sum", [trained[name](data[name]) for name in about["fusion"]["order"]]))
    torch.testing.assert_close(outputs, wanted, rtol=1e-5, atol=1e-5)


def test_the_command_exports_a_party_s_folder(organisations: Place, tmp_path: Path) -> None:
    out = organisations.out("bank")
    shown = run_command("export", out, "--to", "torchscript", "--out", tmp_path / "out", "--json")
    assert shown.returncode == 0, shown.stderr
    assert set(json.loads(shown.stdout)["files"]) == {"bank"}
    (tmp_path / "unfinished").mkdir()
    shutil.copy(out / "run.json", tmp_path / "unfinished" / "run.json")
    again = run_command("export", tmp_path / "unfinished", "--to", "torchscript", "--out", tmp_path / "other")
    assert (again.returncode, again.stdout) == (2, "")
    assert "holds no models" in again.stderr


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("to", ["exported-program", "torchscript"])
def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(to: str) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        FORMATS[to].write(nn.Linear(3, 2).eval(), torch.zeros(4, 3), Path("/dev/full"))
