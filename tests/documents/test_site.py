"""The site builds without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from documents.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "making"))

from api import PAGES
from notebooks import notebook_pages
from pictures import IMAGES, PICTURES

needs_build = pytest.mark.long  # the site takes half a minute; `make docs` is strict too


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In strict mode a warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    build(config)
    return folder


@needs_build
def test_every_page_is_built(site: Path) -> None:
    built = {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")}
    written = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    made = {f"reference/{name}" for name in ("commands", "job_file", "errors")}
    made |= {path.removesuffix(".md") for path in (*PAGES.values(), *notebook_pages())}
    assert written | made <= built


@needs_build
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Links may lead out; what a page loads by itself may not."""
    loaded = re.compile(
        r"""<(?:script|img|iframe|source|audio|video|embed)\b[^>]*\bsrc\s*=\s*["']?(?:https?:)?//"""
        r"""|<link\b(?![^>]*rel="?canonical)[^>]*\bhref\s*=\s*["']?(?:https?:)?//"""
        r"""|(?:@import|url\()\s*["'(]*(?:https?:)?//""",
        re.IGNORECASE,
    )
    files = [file for kind in ("*.html", "*.css") for file in site.rglob(kind)]
    assert len(files) > 100
    assert not [f"{file.name}: {found[0]}" for file in files if (found := loaded.search(file.read_text()))]


@needs_build
def test_files_for_programs_are_on_the_site(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert len(links) > 20
    assert not [link for link in links if not (site / link).exists()]
    assert json.loads((site / "schema" / "job-1.json").read_text())["$defs"]


@needs_build
def test_drawings_stand_in_the_page(site: Path) -> None:
    page = (site / "explanation" / "error_feedback.html").read_text()
    assert len(re.findall(r'<svg[^>]* role="img"', page)) == len(PICTURES)


@needs_build
def test_the_reference_is_of_the_code(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text()
    assert 'id="train"' in commands
    assert "--resume" in commands
    assert 'id="thinwire.compress.PoissonBinomial"' in (site / "reference" / "compressors.html").read_text()
    assert "passes over the training rows" in (site / "reference" / "python" / "index.html").read_text()
    assert 'id="bad-column"' in (site / "reference" / "errors.html").read_text()


def test_readme_and_gallery_have_the_same_figures() -> None:
    tables = [_read_table(ROOT / name) for name in ("README.md", "docs/gallery.md")]
    assert len(tables[0]) > 5
    assert tables[0] == tables[1]


def _read_table(page: Path) -> list[str]:
    return [line for line in page.read_text().split("| data set |")[1].split("\n\n")[0].splitlines() if line]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_what_the_script_draws(name: str) -> None:
    assert (IMAGES / name).read_text() == f"{PICTURES[name]()}\n", "run `python docs/making/pictures.py`"
