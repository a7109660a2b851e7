"""The shape of the house: imports go one way, the package is lazy, nothing is ever unpickled."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import thinwire

ROOT = Path(thinwire.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

# A module may import from its own floor and from those before it.
ORDER = [
    "base",
    "engine",
    "storage",
    "net",
    "align",
    "data",
    "job",
    "report",
    "training",
    "predict",
    "lab",
    "integrations",
    "cli",
]
LEVEL = {name: level for level, name in enumerate(ORDER)}

# Public paths: each leads to a room of the same name on a floor.
DOORS = {
    "audit",
    "compress",
    "errors",
    "learners",
    "methods",
    "models",
    "privacy",
    "schedule",
    "streams",
    "surrogates",
    "types",
    "wire",
}


def floor(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_floors(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "thinwire" else [f"thinwire.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("thinwire.")}
    return found & (LEVEL.keys() | DOORS)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_one_way(file: Path) -> None:
    if file.parent == ROOT:
        assert floor(file) in {*DOORS, "__init__", "__main__"}, f"{file.name} is neither a floor nor a public path"
        return
    assert floor(file) in LEVEL, f"{floor(file)} has no place in the order of imports"
    for other in imported_floors(file) - {floor(file)}:
        assert other in LEVEL, f"{file.name} must import the room itself, not the public path thinwire.{other}"
        assert LEVEL[other] < LEVEL[floor(file)], f"{file.name} must not import thinwire.{other}"


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_public_path_leads_to_its_room(door: str) -> None:
    code = [line for line in (ROOT / f"{door}.py").read_text().split("\n") if line.startswith(("from", "import"))]
    assert 1 <= len(code) <= 2, "one line that re-exports, and its __all__"
    assert set(import_module(f"thinwire.{door}").__all__) <= set(dir(import_module(f"thinwire.{door}")))


def test_the_floors_say_what_lives_there() -> None:
    for name in ORDER:
        assert import_module(f"thinwire.{name}").__doc__, f"thinwire.{name} says nothing of itself"


def modules_after(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(shown.stdout.split())


def test_importing_thinwire_imports_neither_torch_nor_numpy() -> None:
    assert not {"torch", "numpy"} & modules_after("import thinwire")


def test_the_command_line_does_not_import_torch() -> None:
    assert "torch" not in modules_after("import thinwire.cli")


TRAINS = """
import torch, thinwire as tw
x = torch.eye(4)
parties = [tw.FeatureParty("bank", x, torch.nn.Linear(4, 2))]
label = tw.LabelParty("shop", torch.arange(4) % 2, torch.nn.Linear(2, 2))
for optimizer in (tw.SGD(0.1), tw.Adam(), tw.AdaGrad()):
    tw.train(tw.Job(parties, label, tw.methods.thin(), optimizer, epochs=2), callbacks=[])
"""


def test_training_does_not_import_torchs_compiler() -> None:
    """Nothing is compiled, and it takes as long to load as torch itself."""
    assert not {"torch._dynamo", "sympy"} & modules_after(TRAINS)


IMPORTS_EVERYTHING = """
import os, pkgutil, signal, sys, tempfile, threading
from importlib import import_module
import thinwire

def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    folder = tempfile.gettempdir()
    return dict(os.environ), os.getcwd(), handlers, sorted(os.listdir(folder)), threading.enumerate(), sys.path

import grpc, optuna, sklearn.linear_model, torch  # what these change at import is not ours
torch.get_num_threads()
before, threads = state(), torch.get_num_threads()
for module in pkgutil.walk_packages(thinwire.__path__, "thinwire."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
for old, new in zip(before, state()):
    assert old == new, (old, new)
assert threads == torch.get_num_threads()
"""


def test_importing_every_module_changes_nothing_in_the_process(tmp_path: Path) -> None:
    """Neither the environment, nor signals, threads or files: that is for the command line, when it starts."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    shown = subprocess.run(
        [sys.executable, "-c", IMPORTS_EVERYTHING],
        env={**environment, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr


def test_grpc_without_its_settings_opens_no_link() -> None:
    """Its settings turn TLS 1.2 off, and it reads them when it loads."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    code = (
        "from thinwire.net.grpc.client import DialTarget\n"
        "from thinwire.base.process import GrpcNotConfigured, configure_grpc\n"
        "for refused in (configure_grpc, DialTarget('localhost:1', 'a', 'b', None).open):\n"
        "    try:\n"
        "        refused()\n"
        "    except GrpcNotConfigured:\n"
        "        continue\n"
        "    raise SystemExit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


def test_public_names_exist_and_load_on_first_use() -> None:
    for name in thinwire.__all__:
        assert getattr(thinwire, name) is not None
    assert set(dir(thinwire)) == set(thinwire.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = thinwire.nonsense
    assert thinwire.compress.TopK(0.1) == thinwire.compress.TopK(0.1)


def test_all_lists_are_complete_and_true() -> None:
    for module in (thinwire.compress, thinwire.wire, thinwire.errors, thinwire.streams, thinwire.surrogates):
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"


def test_every_error_is_ours_and_in_the_drawn_tree() -> None:
    drawn = import_module("thinwire.base.errors").__doc__ or ""
    for name in thinwire.errors.__all__:
        assert issubclass(getattr(thinwire.errors, name), thinwire.errors.ThinwireError)
        assert name in drawn


def test_the_version_is_said_once() -> None:
    assert version("thinwire") == thinwire.__version__


FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_is_ever_unpickled(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert not FORBIDDEN_MODULES & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            assert called not in {"torch.load", "torch.save", "yaml.load", "yaml.unsafe_load"}
            assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords)
