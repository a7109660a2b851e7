"""A simulated run's folder is brought back from every step: another future of the same rounds has other noise."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thinwire as tw
from engine.identities.small import job, same_models
from thinwire.engine.compress import Keystream, PoissonBinomial
from thinwire.engine.methods import pbm, svfl
from thinwire.engine.models.optimizers import Cosine
from thinwire.engine.privacy.defences import MaxNorm
from thinwire.engine.privacy.dp_bottom import DPBottom

# A longer run has other learning rates from its first round on: another future of the same rounds.
GIVEN: dict[str, Any] = {"eval_every": 1, "batch_size": 120, "optimizer": tw.SGD(lr=Cosine(0.5))}
RECIPES: dict[str, tuple[tw.Recipe, dict[str, Any]]] = {
    "secure sum": (pbm(4, 0.05), {}),
    "private steps": (svfl(), {"training": DPBottom(1.0, 1.0)}),
    "a defence": (replace(svfl(), defence=MaxNorm()), {}),
}
DRAWING = ((PoissonBinomial, "compress", 2), (DPBottom, "set_gradients", 4), (MaxNorm, "protect", 3))


@pytest.fixture
def covered(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, set[bytes]]:
    """By the key of some noise: all that it was drawn for, in any run of the test."""
    found: dict[bytes, set[bytes]] = {}
    begin = Keystream.__init__

    def watch(stream: Keystream, key: bytes) -> None:
        begin(stream, key)
        stream.key = key  # type: ignore[attr-defined]

    def note(call: Callable[..., Any], place: int) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            tensors = [one for one in given if isinstance(one, Tensor)]
            tensors += [one for part in given if isinstance(part, torch.nn.Module) for one in part.parameters()]
            message = b"".join(one.detach().numpy().tobytes() for one in tensors)
            found.setdefault(given[place].key, set()).add(message)
            return call(*given)

        return noted

    monkeypatch.setattr(Keystream, "__init__", watch)
    for owner, name, place in DRAWING:
        monkeypatch.setattr(owner, name, note(getattr(owner, name), place))
    monkeypatch.setattr("thinwire.training.train._Run._saving_is_due", lambda _: True)
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_restored_from_any_step(name: str, covered: dict[bytes, set[bytes]], tmp_path: Path) -> None:
    recipe, more = RECIPES[name]

    def made(epochs: float) -> tw.Job:
        return job(recipe, epochs=epochs, **GIVEN, **more)

    def copy(event: dict[str, Any]) -> None:
        shutil.copytree(tmp_path / "run", tmp_path / f"copy {event['round']}")

    whole = tw.train(made(1), [copy], out=tmp_path / "run")
    copies = sorted(tmp_path.glob("copy *"))
    assert len(copies) == whole.history[-1]["round"] + 1
    for folder in copies:
        other = Path(shutil.copytree(folder, folder.with_name(f"other {folder.name}")))
        resumed = tw.train(made(1), callbacks=[], out=folder, resume=True)
        assert same_models(resumed, whole)
        assert resumed.summary()["privacy"] == whole.summary()["privacy"]
        tw.train(made(2), callbacks=[], out=other, resume=True)
    covered.pop(bytes(32), None)  # a check of the models, before any run
    assert covered
    assert max(len(messages) for messages in covered.values()) == 1
