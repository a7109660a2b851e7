"""What there is, measured and shown."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable
from importlib import metadata

import pytest

from processes import run
from thinwire import __version__, compress, methods

Here = Callable[..., subprocess.CompletedProcess[str]]


def test_help_and_version() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for command in ("demo", "train", "check", "compare", "methods", "compressors"):
        assert command in shown.stdout
    version, python, machine, packages = run("--version").stdout.splitlines()
    assert version == f"thinwire {__version__}"
    assert python.startswith(f"Python {platform.python_version()}")
    assert platform.machine() in machine
    assert f"torch {metadata.version('torch')}" in packages


def test_compressors_lists_every_one(here: Here) -> None:
    shown = json.loads(here("compressors", "--json").stdout)
    assert [entry["name"] for entry in shown["compressors"]] == [kind.__name__ for kind in compress.COMPRESSORS]
    assert shown["compressors"][2]["parameters"] == {
        "fraction": None, "select": "'magnitude'", "scope": "'message'"
    }  # fmt: skip
    table = here("compressors")
    assert table.returncode == 0
    for kind in compress.COMPRESSORS:
        assert kind.__name__ in table.stdout


def test_methods_lists_every_one(here: Here) -> None:
    shown = json.loads(here("methods", "--json").stdout)
    assert [entry["name"] for entry in shown["methods"]] == list(methods.METHODS)
    assert shown["methods"][4]["parameters"]["xi_degrees"] == "60.0"
    table = here("methods")
    assert table.returncode == 0
    for name in methods.METHODS:
        assert f"{name}(" in table.stdout


def test_compressors_measured_on_real_embeddings(here: Here) -> None:
    shown = here("compressors", "--measure", "--json")
    assert shown.returncode == 0, shown.stderr
    results = {entry["compressor"]: entry for entry in json.loads(shown.stdout)["results"]}
    assert results["Identity()"]["bits_per_value"] == pytest.approx(32, abs=0.01)
    assert results["Identity()"]["relative_error"] == 0
    assert results["Identity()"]["accuracy"] > 0.93
    assert results["Uniform(2)"]["bits_per_value"] < 2.1
    assert results["Uniform(4)"]["accuracy"] > results["Identity()"]["accuracy"] - 0.02
    for entry in results.values():
        assert entry["ratio"] == pytest.approx(32 / entry["bits_per_value"])


def test_the_measurements_as_a_table(here: Here) -> None:
    shown = here("compressors", "--measure")
    assert shown.returncode == 0
    assert "rel." in shown.stdout
    assert "Then(TopK(0.1), Uniform(4))" in shown.stdout


@pytest.mark.long
def test_demo_trains_every_method_to_a_good_accuracy() -> None:
    shown = run("demo", "--json")
    assert shown.returncode == 0, shown.stderr
    results = {entry["method"]: entry for entry in json.loads(shown.stdout)["methods"]}
    assert list(results) == ["svfl", "celu", "efvfl", "thin"]
    for entry in results.values():
        assert entry["test"]["accuracy"] > 0.93
        assert entry["link_seconds"] > entry["rounds"] * 0.100
        assert entry["bytes"]["all"] > entry["bytes"]["total"]
        assert entry["times_fewer_bytes"] == results["svfl"]["bytes"]["all"] / entry["bytes"]["all"]
    assert results["svfl"]["bytes"]["up"] == results["svfl"]["bytes"]["down"]
    assert results["efvfl"]["bytes"]["up"] < results["svfl"]["bytes"]["up"] / 5
    assert results["thin"]["times_fewer_bytes"] > 10
    raw = json.loads(shown.stdout)["raw_rows"]
    assert raw["accuracy"] > 0.93
    assert 30_000 < raw["bytes"] < 115_008 / 2  # 1,797 images of 64 pixels, gzipped


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["demo", "--seed", "many"], ["compressors", "--xml"], ["methods", "--xml"]]
)
def test_wrong_input_exits_with_2_and_no_traceback(arguments: list[str], here: Here) -> None:
    shown = here(*arguments)
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert "Traceback" not in shown.stderr
    assert next(word for word in arguments if word.startswith(("frob", "--"))) in shown.stderr
