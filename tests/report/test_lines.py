"""Charts: everything drawn is inside, round marks, one style a line."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.base.format import short
from thinwire.report.svg.drawing import axis_over, cut, text_width
from thinwire.report.svg.line_chart import Chart, Line, Point

SVG = "{http://www.w3.org/2000/svg}"


def chart(lines: int = 3, log: bool = False, far: float = 1.0) -> Chart:
    drawn = [
        Line(f"curve & {k}", [Point(x * far**k, 1 / (x + 1 + k), 0.05) for x in range(8)], k) for k in range(lines)
    ]
    return Chart("A <title>", "epochs", "loss", drawn, log, across=0.2)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("lines", [1, 3, 16])
@pytest.mark.parametrize("far", [1.0, 30.0])
def test_all_that_is_drawn_is_inside_the_picture(lines: int, log: bool, far: float) -> None:
    root = ElementTree.fromstring(chart(lines, log, far).svg())  # noqa: S314
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    drawn = 0
    for kind in ("polyline", "polygon"):
        for one in root.iter(f"{SVG}{kind}"):
            drawn += kind == "polyline"
            for pair in one.attrib["points"].split():
                x, y = map(float, pair.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height
    assert drawn == lines
    for text in root.iter(f"{SVG}text"):
        if "x" in text.attrib and text.attrib.get("text-anchor") == "start":
            assert float(text.attrib["x"]) + 6 * len(text.text or "") <= width
            assert float(text.attrib["y"]) <= height


def test_every_line_has_a_style_of_its_own() -> None:
    root = ElementTree.fromstring(chart(16).svg())  # noqa: S314
    styles = [(one.attrib["stroke"], one.attrib.get("stroke-dasharray")) for one in root.iter(f"{SVG}polyline")]
    assert len(set(styles)) == 16


def test_a_start_before_training_does_not_flatten_the_rest() -> None:
    points = [Point(0, 0.1, 0), *(Point(x, 0.9 + x / 1000, 0) for x in range(1, 9))]
    root = ElementTree.fromstring(Chart("", "", "", [Line("a", points, 0)]).svg())  # noqa: S314
    pairs = [pair.split(",") for pair in next(root.iter(f"{SVG}polyline")).attrib["points"].split()]
    places = [(float(x), float(y)) for x, y in pairs]
    assert places[1][1] - places[-1][1] > 100
    # From 0.1 to the axis' foot at 0.9 or so is nearly all of the way to the second point: there the line comes in.
    a_step = places[2][0] - places[1][0]
    assert 0 <= places[1][0] - places[0][0] < 0.02 * a_step


def test_a_level_line_has_its_start_on_the_axis() -> None:
    """Else the axis would reach as far above the best score as below it."""
    points = [Point(0, 0.5), *(Point(x, 1.0) for x in range(1, 9))]
    root = ElementTree.fromstring(Chart("", "", "", [Line("a", points, 0)]).svg())  # noqa: S314
    marks = [one.text for one in root.iter(f"{SVG}text") if one.attrib.get("text-anchor") == "end"]
    assert (marks[0], marks[-1]) == ("0.5", "1")


def test_a_start_outside_the_axes_has_no_band() -> None:
    points = [Point(0, 0.1, 0.05), *(Point(x, 0.9 + x / 1000, 0.001) for x in range(1, 9))]
    root = ElementTree.fromstring(Chart("", "", "", [Line("a", points, 0)]).svg())  # noqa: S314
    (band,) = root.iter(f"{SVG}polygon")
    assert len(band.attrib["points"].split()) == 2 * 8


def test_one_line_needs_no_legend() -> None:
    assert ">curve &amp; 0</text>" in chart(2).svg()
    assert ">curve &amp; 0</text>" not in chart(1).svg()


@pytest.mark.parametrize("text", ["illicit", "worst_fractal_dimension", "MAXIMUM", "a"])
def test_what_is_cut_fits_and_ends_in_an_ellipsis(text: str) -> None:
    assert cut(text, text_width(text)) == text
    shorter = cut(text + text, text_width(text))
    assert shorter.endswith("…")
    assert text_width(shorter) <= text_width(text) or len(shorter) == 2


def test_without_points_there_is_an_empty_chart() -> None:
    assert "<polyline" not in Chart("empty", "x", "y", []).svg()


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20))
def test_a_linear_axis_holds_every_value_and_has_even_marks(values: list[float]) -> None:
    axis = axis_over(values)
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low - slack <= min(values)
    assert max(values) <= axis.high + slack
    assert 2 <= len(axis.marks) <= 9
    steps = [after - before for before, after in pairwise(axis.marks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=20))
def test_a_logarithmic_axis_holds_every_value_and_marks_powers_of_ten(values: list[float]) -> None:
    axis = axis_over(values, log=True)
    assert all(-1e-9 <= axis.place(value) <= 1 + 1e-9 for value in values)
    assert axis.low <= min(values) * (1 + 1e-9)
    assert axis.high >= max(values) * (1 - 1e-9)
    assert all(f"{mark:e}".startswith("1.000000e") for mark in axis.marks)


def test_marks_are_short() -> None:
    assert [short(value) for value in (0, 0.25, 1500, 2.5e6, 1e9, 1e-4)] == [
        "0",
        "0.25",
        "1.5k",
        "2.5M",
        "1G",
        "1e-4",
    ]
