"""How large the house is, and what its rooms are called; benchmarks/house.py prints the same figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import house
from benchmarks.house import ROOT, House, is_participle_name, measure


@pytest.mark.parametrize("name", ["told", "woven", "tables_shown", "wanted_key", "score_said", "parsed_tree"])
def test_a_name_that_begins_or_ends_with_a_participle_is_found(name: str) -> None:
    assert is_participle_name(name)


@pytest.mark.parametrize(
    "name", ["seed", "embed", "need", "is_closed", "require_signed", "read_saved", "select_rows", "squared_error"]
)
def test_verbs_and_exceptions_are_not(name: str) -> None:
    assert not is_participle_name(name)


LIMITS = {
    "names in the import order": 14,
    "files": 350,
    "lines": 66_000,
    "longest file": 500,
    "public class names used twice or more": 0,
    "public functions named by a participle": 0,
}


@pytest.fixture(scope="module")
def figures() -> dict[str, int | float]:
    return measure(house.open_house(ROOT))


@pytest.mark.parametrize("figure", LIMITS)
def test_the_house_stays_small(figure: str, figures: dict[str, int | float]) -> None:
    assert figures[figure] <= LIMITS[figure], "`python benchmarks/house.py --offenders` lists what is too much"


def test_the_figures_are_printed_beside_those_of_another_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figures: dict[str, int | float]
) -> None:
    (tmp_path / "src" / "thinwire").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_architecture.py").write_text('ORDER = [["a", "b"], "c"]\n')
    (tmp_path / "src" / "thinwire" / "one.py").write_text("class A: ...\nclass B:\n    def told(self): ...\n")
    (tmp_path / "src" / "thinwire" / "two.py").write_text("class A: ...\ndef run():\n    def said(): ...\n")
    other = House(tmp_path)
    assert other.participles() == ["one.py:3 told"]
    assert other.repeated_classes() == ["A"]
    assert measure(other)["names in the import order"] == 3
    house.main(["--beside", str(tmp_path), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["before"]["lines"] == 6
    assert printed["now"] == figures
