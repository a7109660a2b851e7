"""The colours of report and live page: text can be read in the light, in the dark and on paper."""

from __future__ import annotations

import re

import pytest

from thinwire.report.rendering import page_style

READABLE = 4.5  # WCAG 2, level AA
LIGHT, DARK, PRINT = range(3)


def colours(scheme: int) -> dict[str, str]:
    """What each name stands for; paper is printed over whatever the screen has."""
    blocks = re.findall(r":root \{(.*?)\}", page_style(), re.DOTALL)
    found: dict[str, str] = {}
    for block in {LIGHT: blocks[:1], DARK: blocks[:2], PRINT: blocks}[scheme]:
        found |= dict(re.findall(r"--(\w+): ([^;]+);", block))
    return found


def luminance(colour: tuple[float, ...]) -> float:
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def rgb(text: str) -> tuple[float, ...]:
    digits = text.removeprefix("#")
    wide = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    return tuple(int(wide[place : place + 2], 16) / 255 for place in (0, 2, 4))


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK, PRINT])
@pytest.mark.parametrize("ink", ["ink", "soft", "good", "bad", "accent"])
@pytest.mark.parametrize("ground", ["paper", "panel"])
def test_text_stands_out(scheme: int, ink: str, ground: str) -> None:
    named = colours(scheme)
    assert contrast(rgb(named[ink]), rgb(named[ground])) >= READABLE


@pytest.mark.parametrize("scheme", [LIGHT, DARK, PRINT])
def test_counts_stand_out_in_the_fullest_cell_of_a_confusion_table(scheme: int) -> None:
    named = colours(scheme)
    share = float(named["shade"].removesuffix("%")) / 100
    mixed = zip(rgb(named["c0"]), rgb(named["paper"]), strict=True)
    cell = tuple(share * colour + (1 - share) * paper for colour, paper in mixed)
    assert contrast(rgb(named["ink"]), cell) >= READABLE
