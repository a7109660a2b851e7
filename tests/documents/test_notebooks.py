"""The notebooks of docs/notebooks run, with what they state; their outputs are kept in them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from documents.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "making"))

from notebooks import FOLDER, notebook_pages, read_notebook, run_notebook

NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def _first_model(names: Mapping[str, Any]) -> None:
    assert names["together"] > names["joined"] > names["alone"]


def _across_organisations(names: Mapping[str, Any]) -> None:
    """Three processes give the models of one, to the bit."""
    assert set(names["codes"].values()) == {0}
    assert names["last"]["test"] == names["simulated"]["test"]
    assert names["last"]["test"]["auc"] > 0.95


def _slow_link(names: Mapping[str, Any]) -> None:
    sent = {name: result.bytes.total for name, result in names["results"].items()}
    assert sent["thin"] < sent["svfl"] / 8
    assert names["results"]["thin"].summary()["test"]["accuracy"] > 0.93


def _scorecard(names: Mapping[str, Any]) -> None:
    assert names["auc"] > names["joined"] > names["alone"]


def _what_leaks(names: Mapping[str, Any]) -> None:
    find = names["find"]
    assert find(names["plain"], "direction") > 0.9
    assert find(names["defended"], "direction") < find(names["plain"], "direction")


PROMISES: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "across_organisations": _across_organisations,
    "first_model": _first_model,
    "scorecard": _scorecard,
    "slow_link": _slow_link,
    "what_leaks": _what_leaks,
}


def _run(name: str, folder: Path) -> None:
    PROMISES[name](run_notebook(read_notebook(FOLDER / f"{name}.ipynb"), folder))


def test_the_first_notebook_runs(tmp_path: Path) -> None:
    _run("first_model", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name != "first_model"])
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    _run(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_holds_the_outputs_of_one_whole_run(name: str) -> None:
    notebook = read_notebook(FOLDER / f"{name}.ipynb")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    assert not [cell for cell in code for output in cell["outputs"] if output["output_type"] == "error"]


def test_every_notebook_is_a_page() -> None:
    assert set(PROMISES) == set(NAMES)
    pages = notebook_pages()
    assert set(pages) == {f"notebooks/{name}.md" for name in NAMES}
    assert all(page.startswith("# ") for page in pages.values())


def test_cells_print_and_end_in_a_value_as_in_jupyter(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": [text]} for text in ("x = 2\nprint(x)\nx + 1", "x;", "y = x")]
    notebook: dict[str, Any] = {"cells": cells}
    assert run_notebook(notebook, tmp_path)["y"] == 2
    (printed, value), nothing, silent = (cell["outputs"] for cell in notebook["cells"])
    assert (printed["text"], value["data"]) == (["2\n"], {"text/plain": ["3"]})
    assert nothing == silent == []
