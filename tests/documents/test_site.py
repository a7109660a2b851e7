"""The site builds without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from documents.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "making"))

from pictures import IMAGES, PICTURES


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In strict mode a warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    build(config)
    return folder


def test_every_page_is_built(site: Path) -> None:
    built = {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")}
    written = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    made = {f"reference/{name}" for name in ("commands", "methods", "compressors", "job_file", "errors", "python")}
    assert written | made <= built


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"""(?:<script[^>]+src|<link[^>]+href|<img[^>]+src|@import|url\()\s*=?\s*["'(]*(https?:)?//"""
    )
    files = [file for kind in ("*.html", "*.css") for file in site.rglob(kind)]
    assert not [f"{file.name}: {found[0]}" for file in files if (found := loaded.search(file.read_text()))]


def test_drawings_stand_in_the_page(site: Path) -> None:
    page = (site / "explanation" / "error_feedback.html").read_text()
    assert page.count("<svg") == len(PICTURES)


def test_the_reference_is_of_the_code(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text()
    assert 'id="train"' in commands
    assert "--resume" in commands
    assert 'id="poissonbinomial"' in (site / "reference" / "compressors.html").read_text()
    assert 'id="bad-column"' in (site / "reference" / "errors.html").read_text()


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_what_the_script_draws(name: str) -> None:
    assert (IMAGES / name).read_text() == f"{PICTURES[name]()}\n", "run `python docs/making/pictures.py`"
