"""The papers' pages: what `thinwire reproduce` wrote, put onto them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from documents.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "making"))

import paper_pages

PAGE = """# tiny: a paper

Tiny.

## What was run

- Epochs: {epochs}

## Claims: 1 of 1 met

| a | b |

## Plots

![Loss](panels/01-loss.svg)

## Notes

- not shown
"""


def write_run(folder: Path, size: str, epochs: int) -> Path:
    (folder / "panels").mkdir(parents=True)
    (folder / "panels" / "01-loss.svg").write_text(f"<svg>{epochs}</svg>")
    (folder / "summary.json").write_text(json.dumps({"experiment": "tiny", "size": size}))
    (folder / "page.md").write_text(PAGE.format(epochs=epochs))
    return folder


@pytest.fixture(autouse=True)
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "tiny.md").write_text("# tiny\n\nWritten by hand.\n")
    monkeypatch.setattr(paper_pages, "RESULTS", folder)
    return folder


def test_a_run_takes_the_place_of_the_one_before_it(tmp_path: Path, pages: Path) -> None:
    runs = tmp_path / "runs"
    for place, size, epochs in (("a", "quick", 2), ("b", "full", 100), ("c", "quick", 3)):
        paper_pages.publish(write_run(runs / place, size, epochs))
    text = (pages / "tiny.md").read_text()
    assert text.startswith("# tiny\n\nWritten by hand.\n")
    assert [epochs for epochs in (2, 3, 100) if f"- Epochs: {epochs}\n" in text] == [3, 100]
    assert text.count("](tiny/quick/panels/01-loss.svg)") == text.count("](tiny/full/panels/01-loss.svg)") == 1
    assert "not shown" not in text
    assert (pages / "tiny/quick/panels/01-loss.svg").read_text() == "<svg>3</svg>"
    assert (pages / "tiny/full/summary.json").exists()


def test_the_folder_of_all_experiments_is_searched_and_an_empty_one_refused(tmp_path: Path) -> None:
    one = write_run(tmp_path / "all" / "tiny", "quick", 2)
    assert (
        list(paper_pages.find_experiments([str(one)]))
        == list(paper_pages.find_experiments([str(one.parent)]))
        == [one]
    )
    with pytest.raises(SystemExit, match="run `thinwire reproduce` to its end first"):
        list(paper_pages.find_experiments([str(tmp_path / "results")]))
