"""Report and live page in a real browser. `make screenshots` has them make the documents' pictures anew."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

from browser.chromium import Chromium, chromium
from processes import THINWIRE, environment, run

pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
LARGEST = 300_000  # bytes of a picture in the documents
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
def loans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank's customers as a telecom and a retailer know them too, with a job of networks that `init` wrote."""
    folder = tmp_path_factory.mktemp("loans")
    for party, columns in make_loans(4000).items():
        ids = [f"c{number:05}" for number in range(4000)]
        pandas.DataFrame({"customer": ids, **columns}).to_csv(folder / f"{party}.csv", index=False)
    parties = [word for party in ("bank", "telecom", "retailer") for word in ("--party", f"{party}={party}.csv")]
    begin = ["init", *parties, "--label", "bank:defaulted", "--model", "mlp"]
    for command in (begin, ["train", "job.toml", "--out", "runs/loans"]):
        shown = run(*command, folder=folder)
        assert shown.returncode == 0, shown.stderr
    return folder


def make_loans(rows: int) -> dict[str, dict[str, Any]]:
    """Made up, by party: each knows something about who will pay that the others do not."""
    rng = numpy.random.default_rng(7)
    thrift = rng.normal(size=rows)  # seen by none
    income = numpy.exp(rng.normal(10.3, 0.4, rows) + 0.15 * thrift)
    loan = numpy.exp(rng.normal(9, 0.6, rows))
    years = rng.exponential(5, rows)
    housing = rng.choice(["rent", "own", "mortgage"], rows, p=[0.5, 0.2, 0.3])
    late_bills = rng.poisson(numpy.exp(-0.6 - 0.9 * thrift))
    returned = numpy.clip(rng.normal(0.12 - 0.03 * thrift, 0.06, rows), 0, 1)
    instalments = rng.poisson(numpy.exp(0.2 - 0.4 * thrift))
    risk = (
        numpy.log(loan / income)
        + 0.45 * numpy.minimum(late_bills, 4)
        + 0.35 * numpy.minimum(instalments, 5)
        + 0.5 * (housing == "rent")
        + 2 * returned
        - 0.05 * numpy.minimum(years, 12)
        - 0.6 * thrift
        - 1.8
    )
    defaulted = rng.random(rows) < 1 / (1 + numpy.exp(-risk))
    return {
        "bank": {
            "age": rng.integers(21, 70, rows),
            "income": income.round(-2),
            "loan_amount": loan.round(-2),
            "years_employed": years.round(1),
            "housing": housing,
            "defaulted": numpy.where(defaulted, "yes", "no"),
        },
        "telecom": {
            "months_customer": numpy.clip(rng.normal(40 + 12 * thrift, 25), 0, 200).round(),
            "late_bills": late_bills,
            "minutes_abroad": rng.exponential(20, rows).round(1),
        },
        "retailer": {
            "mean_basket": numpy.exp(rng.normal(3.4, 0.5, rows)).round(2),
            "share_returned": returned.round(3),
            "instalments": instalments,
            "share_online": rng.random(rows).round(2),
        },
    }


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
        found = re.match(r"(http://127\.0\.0\.1:\d+)/ shows", said)
        try:
            assert found is not None, said
            yield found[1]
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(timeout=300)
            assert running.stderr.read() == ""
            assert running.returncode == 0


@contextmanager
def training(folder: Path, settings: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A real run that would take long; stopped by Ctrl-C where it still goes on."""
    command = [str(THINWIRE), "train", "job.toml", *settings]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True, env=environment(), cwd=folder) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
            running.wait(timeout=300)


def kept(browser: Chromium, name: str, tmp_path: Path, height: int = 10_000, **ends: str) -> None:
    """A picture for the documents, where they are asked for; small enough in any case."""
    path = Path(os.environ.get("THINWIRE_SCREENSHOTS") or tmp_path) / name
    browser.picture(path, height, **ends)
    assert 5_000 < path.stat().st_size < LARGEST


def require_quiet(browser: Chromium, address: str) -> None:
    """No error in the console, and nothing asked of anybody else."""
    assert browser.complaints == []
    assert [one for one in browser.requests if not one.startswith((address, "data:"))] == []


def require_fits(browser: Chromium) -> None:
    """Nothing sticks out: a phone need not be scrolled sideways."""
    assert browser.script("document.documentElement.scrollWidth <= innerWidth")


LONG = ["--set", "job.epochs=400", "--set", "job.stop=false", "--out", "runs/live"]
LONG += ["--set", 'recipe={method="celu",capacity=5,reuse=5}']
LIVE = "document.getElementById('live').textContent"
POINTS = "Math.max(0, ...[...document.querySelectorAll('#curves polyline')].map((one) => one.points.length))"
ROUND = "Number(document.querySelector('#overview progress')?.value ?? 0)"


SMALLEST_SCALE = """Math.min(...[...document.querySelectorAll('svg')]
    .map((one) => one.getBoundingClientRect().width / one.viewBox.baseVal.width))"""


TABLES_FIT = """[...document.querySelectorAll('.wide')].filter((one) => one.checkVisibility())
    .every((one) => one.scrollWidth <= one.clientWidth)"""


def test_a_report_of_a_table_is_read_wide_dark_and_on_a_phone(browser: Chromium, loans: Path, tmp_path: Path) -> None:
    report = (loans / "runs" / "loans" / "report.html").as_uri()
    browser.size(1280, 900)
    browser.open(report)
    require_fits(browser)
    assert browser.script(TABLES_FIT)
    order = browser.script("[...document.querySelectorAll('h2')].map((one) => one.textContent)")
    assert order[:4] == ["Comparison with baselines", "Training curves", "Model quality", "Importance"]
    kept(browser, "report.png", tmp_path, end="#validation-auc-by-seconds")
    kept(browser, "report-quality.png", tmp_path, start="#run1", end="#run1-importance")
    kept(browser, "report-importance.png", tmp_path, start="#run1-importance", end="#run1-method")
    browser.size(1280, 900, dark=True)
    assert browser.script("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    browser.size(*PHONE, phone=True)
    require_fits(browser)
    assert browser.script(SMALLEST_SCALE) > 0.7  # letters of 12 stay above 8 pixels
    kept(browser, "report-phone.png", tmp_path, end="#validation-auc-by-bytes-total")
    assert browser.requests == [report]
    assert browser.complaints == []


TIP = "document.querySelector('.tip')"
FIRST_KEY = "document.querySelector('svg [data-key][role=button]')"
SHOWN = "[...document.querySelector('svg [data-key][role=button]').closest('svg').querySelectorAll('[data-series]')]"
SHOWN += ".filter((one) => getComputedStyle(one).display !== 'none').length"


def test_a_chart_shows_values_under_the_pointer_and_hides_a_line(browser: Chromium, demo: Path) -> None:
    browser.size(1280, 900)
    browser.open((demo / "report.html").as_uri())
    browser.script(f"{FIRST_KEY}.closest('svg').scrollIntoView()")
    left, top, width, height = browser.script(
        f"(({{left, top, width, height}}) => [left, top, width, height])"
        f"({FIRST_KEY}.closest('svg').getBoundingClientRect())"
    )
    assert browser.script(f"{TIP}.hidden")
    browser("Input.dispatchMouseEvent", type="mouseMoved", x=left + width / 2, y=top + height / 2)
    browser.until(f"!{TIP}.hidden")
    lines = browser.script(f"{TIP}.innerText").splitlines()
    before = browser.script(SHOWN)
    assert len(lines) == before + 1
    name = browser.script(f"{FIRST_KEY}.dataset.key")
    assert re.fullmatch(rf"{re.escape(name)}: [\d.]+( ± [\d.e-]+)?", lines[1])
    browser.script(f"{FIRST_KEY}.focus()")
    browser.press("Enter", 13)
    assert browser.script(SHOWN) == before - 1
    assert browser.script(f"{FIRST_KEY}.getAttribute('aria-pressed')") == "false"
    browser.press("Enter", 13)
    assert browser.script(SHOWN) == before
    assert browser.complaints == []


def test_a_comparison_is_read_wide_and_on_a_phone(browser: Chromium, demo: Path, tmp_path: Path) -> None:
    browser.size(1280, 900)
    browser.open((demo / "report.html").as_uri())
    require_fits(browser)
    kept(browser, "report-compared.png", tmp_path, end="#run1")
    browser.size(*PHONE, phone=True)
    require_fits(browser)
    assert browser.script(SMALLEST_SCALE) > 0.7
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
        assert "No runs yet" in browser.script("document.body.innerText")
        with training(digits, LONG):
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
        with training(digits, [*LONG, "--resume"]):
            browser.until("document.querySelector('.state').textContent.startsWith('running')")
            browser.until(f"{ROUND} > {stopped}")
            require_fits(browser)
        require_quiet(browser, address)


def test_the_page_finds_its_server_again(browser: Chromium, demo: Path) -> None:
    with dashboard(demo) as address:
        browser.open(address)
        browser.until(f"{LIVE} === 'Nothing is running.'")
    browser.until(f"{LIVE}.startsWith('Connection lost')")
    with dashboard(demo, int(address.rsplit(":", 1)[1])):
        browser.until(f"{LIVE} === 'Nothing is running.'")


def test_a_run_beside_the_seeds_of_others_wide_dark_and_on_a_phone(
    browser: Chromium, loans: Path, tmp_path: Path
) -> None:
    wanted = ["--methods", "svfl,thin", "--seeds", "0,1,2", "--out", "all/runs/yesterday"]
    shown = run("compare", "job.toml", *wanted, folder=loans)
    assert shown.returncode == 0, shown.stderr
    settings = ["--set", "job.epochs=400", "--set", "job.patience=400", "--out", "all/runs/today"]
    with dashboard(loans / "all" / "runs") as address, training(loans, settings):
        for name, size, dark, end in (
            ("dashboard", (1280, 900), False, "#details"),
            ("dashboard-dark", (1280, 900), True, "#details"),
            ("dashboard-phone", PHONE, False, "#overview .row:nth-child(4)"),
        ):
            browser.size(*size, phone=size == PHONE, dark=dark)
            browser.open(address)
            browser.until(f"{LIVE} === 'Live.' && {ROUND} > 150")
            assert browser.script("document.querySelectorAll('#overview .row').length") == 7
            assert browser.script("document.querySelector('.row .state').textContent") == "running"
            assert browser.script("document.querySelectorAll('#runs li').length") == 3
            require_fits(browser)
            kept(browser, f"{name}.png", tmp_path, end=end)
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
