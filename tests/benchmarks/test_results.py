"""Two things against each other, and a run against the last one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.results import Pair, Results, Row, measure_in_turns, middle, read_results, write_results
from benchmarks.suite import draw_ratios, render_results
from thinwire.base.errors import BadInput


def row(name: str, ratio: float | None, note: str = "") -> Row:
    ours = None if ratio is None else 10 * ratio
    return Row(name, f"what <{name}> is", "torch & co", "ms", ours, None if ratio is None else 10.0, ratio, note)


def test_ours_and_the_others_are_measured_in_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    ours = iter([100.0, 2.0, 9.0, 4.0])
    other = iter([100.0, 1.0, 3.0, 4.0])

    def one(name: str) -> float:
        calls.append(name)
        return next(ours if name == "ours" else other)

    pair = measure_in_turns(lambda: one("ours"), lambda: one("other"), 3)
    assert calls == ["other", "ours"] + ["ours", "other"] * 3
    assert pair == Pair(ours=4.0, other=3.0, ratio=2.0)  # of 2/1, 9/3, 4/4, and not 4/3


def test_the_median_of_the_ratios_is_not_the_ratio_of_the_medians() -> None:
    assert middle([Pair(1, 10, 0.1), Pair(20, 10, 2.0), Pair(30, 1, 30.0)]).ratio == 2.0


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    saved = Results().update({"engine": [row("small", 1.2), row("large", None, "not here")]})
    write_results(tmp_path, saved)
    assert read_results(tmp_path) == saved
    assert saved.ratio("engine", "small") == 1.2
    assert saved.ratio("engine", "large") is None
    assert saved.ratio("engine", "none") is None
    assert saved.ratio("none", "small") is None


def test_a_bench_that_is_left_out_keeps_its_rows() -> None:
    first = Results({"engine": [row("small", 1.2)], "psi": [row("CPU", 0.8)]}, {"engine": "then", "psi": "then"})
    second = first.update({"engine": [row("small", 1.1)]})
    assert second.ratio("engine", "small") == 1.1
    assert second.ratio("psi", "CPU") == 0.8
    assert second.made["psi"] == "then"
    assert second.made["engine"] != "then"


def test_a_folder_without_a_run_holds_none(tmp_path: Path) -> None:
    assert read_results(tmp_path) == Results()
    assert read_results(tmp_path / "missing") == Results()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"benches": 3}', '{"benches": {"engine": {"rows": [{"nam": 1}], "made": ""}}}']
)
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(BadInput, match=r"bench.json: not what `benchmarks/suite.py` writes.*use a different --out"):
        read_results(tmp_path)


def test_the_page_has_a_bar_for_each_ratio_and_a_mark_for_each_last_one() -> None:
    now = Results().update({"engine": [row("small", 1.2), row("large", 0.01), row("gone", None, "no <data>")]})
    last = Results({"engine": [row("small", 1.5)]})
    drawn = draw_ratios(now, last)
    assert "engine: small" in drawn
    assert "engine: large" in drawn
    assert "engine: gone" not in drawn
    assert drawn.count("last: 1.5x") == drawn.count("<title>last: ") == 1
    page = render_results(now, last)
    assert page.count("<svg") == 1
    assert "no &lt;data&gt;" in page
    assert "what &lt;small&gt; is" in page
    assert "torch &amp; co" in page
    for outside in ("src=", "href=", "@import"):
        assert outside not in page


def test_bars_grow_from_1_to_either_side() -> None:
    """A ratio and its inverse have bars of one length."""
    now = Results().update({"x": [row("more", 10.0), row("less", 0.1)]})
    widths = [
        float(part.split('width="')[1].split('"')[0]) for part in draw_ratios(now, Results()).split("<rect ")[2:]
    ]
    assert widths[0] == pytest.approx(widths[1])


def test_saved_runs_are_plain_json(tmp_path: Path) -> None:
    path = write_results(tmp_path, Results().update({"engine": [row("small", 1.2)]}))
    found = json.loads(path.read_text())
    assert found["benches"]["engine"]["rows"][0]["help"] == "what <small> is"
    assert set(found["environment"]) == {"thinwire", "torch", "python", "system"}
