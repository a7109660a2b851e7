"""The commands as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire import __version__, compress

THINWIRE = Path(sys.executable).with_name("thinwire")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([THINWIRE, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_help_and_version() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    assert "compressors" in shown.stdout
    assert run("--version").stdout == f"thinwire {__version__}\n"


def test_compressors_lists_every_one() -> None:
    shown = json.loads(run("compressors", "--json").stdout)
    assert [entry["name"] for entry in shown["compressors"]] == [kind.__name__ for kind in compress.COMPRESSORS]
    assert shown["compressors"][2]["parameters"] == {"fraction": None, "select": "'magnitude'"}
    table = run("compressors")
    assert table.returncode == 0
    for kind in compress.COMPRESSORS:
        assert kind.__name__ in table.stdout


def test_demo_measures_real_embeddings() -> None:
    shown = run("demo", "--json")
    assert shown.returncode == 0, shown.stderr
    results = {entry["compressor"]: entry for entry in json.loads(shown.stdout)["results"]}
    assert results["Identity()"]["bits_per_value"] == pytest.approx(32, abs=0.01)
    assert results["Identity()"]["relative_error"] == 0
    assert results["Identity()"]["accuracy"] > 0.93
    assert results["Uniform(2)"]["bits_per_value"] < 2.1
    assert results["Uniform(4)"]["accuracy"] > results["Identity()"]["accuracy"] - 0.02
    for entry in results.values():
        assert entry["ratio"] == pytest.approx(32 / entry["bits_per_value"])


def test_demo_prints_a_table() -> None:
    shown = run("demo")
    assert shown.returncode == 0
    assert "rel." in shown.stdout
    assert "Then(TopK(0.1), Uniform(4))" in shown.stdout


@pytest.mark.parametrize("arguments", [["frobnicate"], ["demo", "--seed", "many"], ["compressors", "--xml"]])
def test_wrong_input_exits_with_2_and_no_traceback(arguments: list[str]) -> None:
    shown = run(*arguments)
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert "Traceback" not in shown.stderr
    assert next(word for word in arguments if word.startswith(("frob", "--"))) in shown.stderr
