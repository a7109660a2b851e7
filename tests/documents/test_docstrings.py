"""The Python reference: every parameter of a public name is documented, and examples run."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from documents.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "making"))

from api import documented_names

JOB = """
[job]
epochs = 1

[recipe]
method = "svfl"

[[party]]
name = "bank"
features = { file = "bank.csv" }
model = { name = "mlp", hidden = [4], width = 2 }

[label_party]
name = "shop"
labels = { file = "shop.csv", column = "label" }
top = { name = "linear_top", classes = 2 }
loss = "cross_entropy"
"""
# An example of these needs another process, another library, or is another name's example.
WITHOUT_EXAMPLE = {
    "align.Backend": "a protocol to implement; RistrettoBackend is one",
    "align.RistrettoBackend": "`ristretto` opens it",
    "align.align_feature_party": "needs a peer; `intersect` runs both halves",
    "align.align_label_party": "needs a peer; `intersect` runs both halves",
    "audit.Finding": "AuditReport lists them",
    "audit.audit_run": "docs/audit.md runs it on a run folder",
    "integrations.MLflow": "needs mlflow; docs/integrations.md",
    "integrations.RunWriter": "a base class; docs/integrations.md",
    "integrations.Wandb": "needs wandb; docs/integrations.md",
    "privacy.PartyIdentity": "a protocol to implement; KeyAgreement uses one",
    "privacy.PrivacyLedger": "programs keep it",
    "privacy.SecureSumSender": "open_sum's example",
}


@pytest.fixture(scope="module")
def public() -> dict[str, Any]:
    """Every class and function of the reference, by its dotted name."""
    names = {module: names for module, names in documented_names().items() if names}
    places = {module: tw if module == "thinwire" else getattr(tw, module) for module in names}
    return {f"{module}.{name}": getattr(places[module], name) for module, found in names.items() for name in found}


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Exception)


def _documented_parameters(thing: Any) -> list[str]:
    text = inspect.cleandoc(thing.__doc__ or "")
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return re.findall(r"^    (\w+): ", section[1], re.MULTILINE) if section else []


def _list_parameters(thing: Any) -> list[str]:
    """What a caller gives; values of enumerations and the fields behind a factory are not given."""
    is_enum = inspect.isclass(thing) and issubclass(thing, Enum)
    if is_enum or getattr(thing, "_is_protocol", False) or (_is_error(thing) and "__init__" not in vars(thing)):
        return []
    return [name for name in inspect.signature(thing).parameters if not name.startswith("_")]


def test_every_public_name_says_what_it_is(public: dict[str, Any]) -> None:
    assert len(public) > 200
    assert not [name for name, thing in public.items() if not (thing.__doc__ or "").strip()]


def test_every_parameter_is_documented(public: dict[str, Any]) -> None:
    wrong = {
        name: (documented, wanted)
        for name, thing in public.items()
        if (documented := _documented_parameters(thing)) != (wanted := _list_parameters(thing))
    }
    assert not wrong


def test_every_public_name_has_an_example(public: dict[str, Any]) -> None:
    without = {name for name, thing in public.items() if ">>>" not in thing.__doc__ and not _is_error(thing)}
    assert without == set(WITHOUT_EXAMPLE)
    assert ">>>" in (tw.errors.ThinwireError.__doc__ or "")


REFUSED: dict[str, Callable[[], Any]] = {
    "SGD": lambda: tw.SGD(lr=-1),
    "Adam": lambda: tw.Adam(lr=-1),
    "AdaGrad": lambda: tw.AdaGrad(lr=-1),
    "methods.fedbcd": lambda: tw.methods.fedbcd(0),
    "methods.thin": lambda: tw.methods.thin(reuse=0),
    "compress.Then": lambda: tw.compress.Then(3, 4),  # type: ignore[arg-type]
    "compress.Shorter": lambda: tw.compress.Shorter(3, 4),  # type: ignore[arg-type]
    "align.ristretto": lambda: tw.align.ristretto(0).__enter__(),
    "wire.decode": lambda: tw.wire.decode(b""),
    "wire.encode": lambda: tw.wire.encode(3),  # type: ignore[arg-type]
    "wire.pack_frame": lambda: tw.wire.pack_frame(tw.wire.Frame(1, 0, 1, tw.types.Kind.ROWS, 1 << 40, 0, b"")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_raised_is_documented(name: str, public: dict[str, Any]) -> None:
    """Under its own name or that of its family."""
    with pytest.raises(tw.errors.ThinwireError) as refused:
        REFUSED[name]()
    documented = inspect.getdoc(public.get(name) or public[f"thinwire.{name}"]) or ""
    section = re.search(r"^Raises:\n((?:    .*\n?)+)", documented, re.MULTILINE)
    assert section
    listed = set(re.findall(r"^    (\w+): ", section[1], re.MULTILINE))
    assert listed & {kind.__name__ for kind in type(refused.value).__mro__}


def test_examples_run(public: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with a job file and its two tables; `job` is that of `tw.Job`'s own example."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "bank.csv").write_text("age\n" + "\n".join(map(str, range(40))))
    (tmp_path / "shop.csv").write_text("label\n" + "0\n1\n" * 20)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    names: dict[str, Any] = {"tw": tw, "torch": torch}
    for one in finder.find(tw.Job, "thinwire.Job", globs=names):
        runner.run(one, clear_globs=False)
        names["job"] = one.globs["job"]
    for name, thing in public.items():
        for one in finder.find(thing, name, globs={**names, "job": names["job"].duplicate()}):
            runner.run(one)
    assert not runner.failures
    assert runner.tries > 300
