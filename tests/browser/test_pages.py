"""Report and live page in a real browser. `make screenshots` has them make the documents' pictures anew."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser.chromium import Chromium, chromium
from processes import THINWIRE, environment, run
from thinwire.report.folder import find_runs

pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
LARGEST = 150_000  # bytes of a picture in the documents
PHONE = (390, 844)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its data."""
    folder = tmp_path_factory.mktemp("digits")
    for name in ("make_data.py", "job.toml"):
        (folder / name).write_text((EXAMPLE / name).read_text())
    subprocess.run([sys.executable, folder / "make_data.py"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs and their report."""
    folder = tmp_path_factory.mktemp("demo") / "runs"
    shown = run("demo", "--out", folder / "demo")
    assert shown.returncode == 0, shown.stderr
    return folder / "demo"


@pytest.fixture
def browser() -> Iterator[Chromium]:
    with chromium() as found:
        yield found


@contextmanager
def dashboard(folder: Path, port: int = 0) -> Iterator[str]:
    """Its address, as the command says it."""
    command = [str(THINWIRE), "dashboard", str(folder), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+)/ follows", said)
        assert found is not None, said + running.stderr.read()
        try:
            yield found[1]
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(timeout=300)
            assert running.stderr.read() == ""
            assert running.returncode == 0


@contextmanager
def training(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A real run that would take long; stopped by Ctrl-C where it still goes on."""
    settings = [
        "--set",
        "job.epochs=400",
        "--set",
        "job.stop=false",
        "--set",
        'recipe={method="celu",capacity=5,reuse=5}',
    ]
    command = [str(THINWIRE), "train", "job.toml", *settings, "--out", "runs/live", *more]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True, env=environment(), cwd=folder) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
            running.wait(timeout=300)


def kept(browser: Chromium, name: str, tmp_path: Path, height: int) -> None:
    """A picture for the documents, where they are asked for; small enough in any case."""
    path = Path(os.environ.get("THINWIRE_SCREENSHOTS") or tmp_path) / name
    browser.picture(path, height)
    assert 5_000 < path.stat().st_size < LARGEST


def require_quiet(browser: Chromium, address: str) -> None:
    """No error in the console, and nothing asked of anybody else."""
    assert browser.complaints == []
    assert [one for one in browser.requests if not one.startswith((address, "data:"))] == []


def require_fits(browser: Chromium) -> None:
    """Nothing sticks out: a phone need not be scrolled sideways."""
    assert browser.script("document.documentElement.scrollWidth <= innerWidth")


LIVE = "document.getElementById('live').textContent"
POINTS = "Math.max(0, ...[...document.querySelectorAll('#curves polyline')].map((one) => one.points.length))"
ROUND = "Number(document.querySelector('#overview progress')?.value ?? 0)"


SMALLEST_SCALE = """Math.min(...[...document.querySelectorAll('svg')]
    .map((one) => one.getBoundingClientRect().width / one.viewBox.baseVal.width))"""


@pytest.mark.parametrize(("name", "file"), [("report", "thin/report.html"), ("report-compared", "report.html")])
def test_a_report_is_read_wide_dark_and_on_a_phone(
    browser: Chromium, demo: Path, tmp_path: Path, name: str, file: str
) -> None:
    browser.size(1280, 900)
    browser.open((demo / file).as_uri())
    require_fits(browser)
    kept(browser, f"{name}.png", tmp_path, 950)
    browser.size(1280, 900, dark=True)
    assert browser.script("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    browser.size(*PHONE, phone=True)
    require_fits(browser)
    assert browser.script(SMALLEST_SCALE) > 0.7  # letters of 12 stay above 8 pixels
    kept(browser, f"{name}-phone.png", tmp_path, 1500)
    assert browser.requests == [(demo / file).as_uri()]
    assert browser.complaints == []


def test_a_report_is_whole_on_paper_whatever_the_screen(browser: Chromium, demo: Path) -> None:
    browser.size(700, 1000)  # A4 between its margins
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser("Emulation.setEmulatedMedia", media="print", features=[dark])
    browser.open((demo / "thin" / "report.html").as_uri())
    style = "getComputedStyle(document.body)"
    assert browser.script(f"[{style}.backgroundColor, {style}.fontSize]") == ["rgb(255, 255, 255)", "11px"]
    tables = "[...document.querySelectorAll('.wide')].filter((one) => one.offsetParent)"
    assert browser.script(f"{tables}.length") > 2
    assert browser.script(f"{tables}.every((one) => one.scrollWidth <= one.clientWidth)")
    assert browser.script("[...document.querySelectorAll('summary')].every((one) => !one.offsetParent)")


def test_the_page_follows_a_run_from_before_its_start_through_a_restart(
    browser: Chromium, digits: Path, tmp_path: Path
) -> None:
    (digits / "runs").mkdir()
    browser.size(1280, 900)
    with dashboard(digits / "runs") as address:
        browser.open(address)
        browser.until(f"{LIVE} === 'Nothing is running.'")
        assert "No run yet" in browser.script("document.body.innerText")
        with training(digits):
            browser.until(f"{POINTS} >= 3")
            assert browser.script(LIVE) == "Live."
            before = browser.script(POINTS)
            # What the reader has opened and where he is stay as they are while news come in.
            browser.script("document.querySelector('#curves details').open = true")
            browser.script("document.querySelector('#curves details summary').focus()")
            browser.until(f"{POINTS} > {before} + 1")
            assert browser.script("document.querySelector('#curves details').open")
            assert browser.script("document.activeElement.tagName") == "SUMMARY"
            assert browser.script("document.querySelector('.state').textContent") == "running"
        browser.until("document.querySelector('.state').textContent.startsWith('stopped')")
        stopped = browser.script(ROUND)
        with training(digits, "--resume"):
            browser.until("document.querySelector('.state').textContent.startsWith('running')")
            browser.until(f"{ROUND} > {stopped}")
            require_fits(browser)
        require_quiet(browser, address)


def test_the_page_finds_its_server_again(browser: Chromium, demo: Path) -> None:
    with dashboard(demo) as address:
        browser.open(address)
        browser.until(f"{LIVE} === 'Nothing is running.'")
    browser.until(f"{LIVE}.startsWith('The connection is gone')")
    with dashboard(demo, int(address.rsplit(":", 1)[1])):
        browser.until(f"{LIVE} === 'Nothing is running.'")


def test_several_runs_side_by_side_wide_dark_and_on_a_phone(browser: Chromium, demo: Path, tmp_path: Path) -> None:
    with dashboard(demo.parent) as address:
        for name, size, dark, height in (
            ("dashboard", (1280, 900), False, 1000),
            ("dashboard-dark", (1280, 900), True, 900),
            ("dashboard-phone", PHONE, False, 1500),
        ):
            browser.size(*size, phone=size == PHONE, dark=dark)
            browser.open(address)
            browser.until(f"{LIVE} === 'Nothing is running.'")
            assert browser.script("document.querySelectorAll('#overview .row').length") == len(find_runs(demo)) == 4
            require_fits(browser)
            kept(browser, f"{name}.png", tmp_path, height)
        require_quiet(browser, address)


def test_runs_are_chosen_with_the_keyboard_alone(browser: Chromium, demo: Path) -> None:
    with dashboard(demo.parent) as address:
        browser.open(address)
        browser.until(f"{LIVE} === 'Nothing is running.'")
        browser.press("Tab", 9)
        assert browser.script("document.activeElement.textContent") == "Skip to the runs"
        for _ in range(3):  # the first three boxes
            browser.press("Tab", 9)
            assert browser.script("document.activeElement.type") == "checkbox"
            browser(
                "Input.dispatchKeyEvent", type="keyDown", key=" ", code="Space", windowsVirtualKeyCode=32, text=" "
            )
            browser("Input.dispatchKeyEvent", type="keyUp", key=" ", code="Space", windowsVirtualKeyCode=32)
            assert not browser.script("document.activeElement.checked")
        browser.press("Tab", 9)
        browser.press("Tab", 9)
        assert browser.script("document.activeElement.id") == "show-runs"
        browser(
            "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
        browser.until("document.querySelectorAll('#overview .row').length === 1")
        assert browser.script("location.search").startswith("?run=")
        assert browser.complaints == []


def test_those_who_listen_are_told_the_same(browser: Chromium, demo: Path) -> None:
    """By the browser's own tree of what is named what."""
    with dashboard(demo.parent) as address:
        browser.open(address)
        nodes = browser("Accessibility.getFullAXTree")["nodes"]
    found: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            found.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert {"main", "navigation", "banner"} <= found.keys()
    for role in ("image", "checkbox", "progressbar", "button", "link", "heading", "log", "region"):
        assert found.get(role), role
        assert all(found[role]), f"a {role} without a name"
