"""The documents' site in a real browser, from a folder: it looks right, finds words and asks nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.chromium import Chromium, chromium
from documents.pages import ROOT

pytestmark = pytest.mark.browser

PAGES = {"start": "index", "tutorial": "tutorial", "reference": "reference/python/index", "gallery": "gallery"}
DESKTOP, PHONE = (1280, 900), (390, 844)
LARGEST = 300_000  # bytes of a picture in the documents


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its address, in a folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder.as_uri()


@pytest.fixture
def browser() -> Iterator[Chromium]:
    with chromium() as found:
        yield found


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (DESKTOP, True), (PHONE, False), (PHONE, True)])
def test_pages_fit_and_ask_nobody_else(
    site: str, browser: Chromium, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("THINWIRE_SCREENSHOTS") or tmp_path)
    browser.size(*size, phone=size == PHONE, dark=dark)
    for name, page in PAGES.items():
        browser.open(f"{site}/{page}.html")
        assert browser.script("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
        assert browser.script("document.documentElement.scrollWidth <= innerWidth"), f"{page} sticks out"
        browser.script("document.head.insertAdjacentHTML('beforeend', '<style>*{transition:none!important}</style>')")
        browser.until("document.getAnimations().every(one => one.playState !== 'running')")
        path = folder / f"site-{name}{'-phone' * (size == PHONE)}{'-dark' * dark}.png"
        browser.picture(path, height=size[1])
        assert 5_000 < path.stat().st_size < LARGEST
    assert browser.complaints == []
    assert [one for one in browser.requests if not one.startswith((site, "data:"))] == []


def test_words_are_found_without_a_server(site: str, browser: Chromium) -> None:
    browser.open(f"{site}/index.html?q=early+stopping")
    browser.until("/matching document/.test(document.querySelector('.md-search-result__meta').innerText)")
    assert browser.script("document.querySelectorAll('.md-search-result__item').length") > 3
    assert browser.complaints == []


def test_code_can_be_copied_and_tabs_switch(site: str, browser: Chromium) -> None:
    browser.open(f"{site}/tutorial.html")
    browser.until("document.querySelectorAll('.md-clipboard, .md-code__button').length > 2")
    shown = "[...document.querySelectorAll('.tabbed-block')].findIndex(one => one.offsetParent !== null)"
    assert browser.script(shown) == 0
    browser.script("document.querySelectorAll('.tabbed-labels label')[1].click()")
    browser.until(f"{shown} === 1")
