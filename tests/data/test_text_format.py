"""How a text file writes numbers: spelled one by one as in a column, and found in a file's words."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from thinwire.base.errors import BadColumn, BadInput
from thinwire.data.prepare import LabelCoding, Preparation, Settings
from thinwire.data.readers.tables import read_cells
from thinwire.data.readers.text_format import TextFormat, guess_delimiter, guess_numbers

WORDS = (
    *("1", "-12", "+1,5", "1.5", "1.234", "1,234", "12.345.678", "1.234,56", "1,234.56", "1'234.5", "1 234,5", "01"),
    *(
        "1\u00a0234",
        "1\u2019234",
        ",5",
        ".5",
        "5.",
        "5,",
        "1e3",
        "1,5e-3",
        "1.2.3",
        "1,2,3",
        "12.34,5",
        "",
        "x",
        "1_0",
    ),
)
FORMS = [
    TextFormat(decimal=decimal, thousands=thousands)
    for decimal in ".,"
    for thousands in (None, *".,' ")
    if decimal != thousands
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_column_is_spelled_as_its_cells_are(form: TextFormat) -> None:
    assert form.spell_numbers(pa.array(WORDS)).to_pylist() == [form.spell_number(word) for word in WORDS]


@pytest.mark.parametrize(
    ("decimal", "thousands", "word", "number"),
    [
        (",", ".", "1.234,56", "1234.56"),
        (",", ".", "1.5", None),
        (",", None, "1.234", None),
        (".", ",", "1,234,567.5", "1234567.5"),
        (".", ",", "1,5", None),
        (".", " ", "1\u202f234", "1234"),
        (".", "'", "1\u2019234", "1234"),
    ],
)
def test_thousands_are_grouped_by_three(decimal: str, thousands: str | None, word: str, number: str | None) -> None:
    assert TextFormat(decimal=decimal, thousands=thousands).spell_number(word) == number


@pytest.mark.parametrize(
    ("delimiter", "columns", "found"),
    [
        (";", [["1,5", "2"], ["7"]], (",", None)),
        (";", [["1,5"], ["1.234,56", "3"]], (",", ".")),
        (";", [["1,5"], ["1.234", "12.345"]], (",", ".")),
        (",", [["1,234", "12"]], (".", ",")),
        (";", [["1,234.5"]], (".", ",")),
        (",", [["1.5"], ["1.234"]], (".", None)),
        (";", [["1'234.50", "3"]], (".", "'")),
        (";", [["1 234,50", "3"]], (",", " ")),
        (";", [["31.12.2024"], ["A,5"], []], (".", None)),
    ],
)
def test_a_files_numbers_are_recognised(
    delimiter: str, columns: list[list[str]], found: tuple[str, str | None]
) -> None:
    form = guess_numbers([pa.array(words, pa.string()) for words in columns], TextFormat(delimiter))
    assert (form.delimiter, form.decimal, form.thousands) == (delimiter, *found)


def test_what_is_given_stays() -> None:
    words = [pa.array(["1.234,5", "2"])]
    assert guess_numbers(words, TextFormat(";"), decimal=",").thousands == "."
    assert guess_numbers(words, TextFormat(";"), thousands=".").decimal == ","
    assert guess_numbers(words, TextFormat(";"), ".").decimal == "."
    with pytest.raises(BadInput, match=r"decimal and thousands are both '\."):
        guess_numbers(words, TextFormat(";"), ".", ".")


@pytest.mark.parametrize("sign", ",;\t|")
def test_the_delimiter_is_found_in_the_line_of_names(sign: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f'\n"last, first; or | both"{sign}age{sign}größe\nx{sign}1{sign}2\n', "utf-16")
    assert guess_delimiter(tmp_path / "t.csv", "utf-16") == sign


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encoding": "latin-0"}, "encoding 'latin-0' is unknown"),
        ({"encoding": "rot13"}, "encoding 'rot13' is unknown"),
        ({"decimal": ";"}, "decimal must be '.' or ','"),
        ({"thousands": "x"}, "thousands must be one of"),
        ({"delimiter": ";;"}, "delimiter must be one ASCII character"),
    ],
)
def test_a_format_that_is_none(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        TextFormat(**given)


PLAIN_ROWS = "a,b,town\n1.5,1234,Bern\n2,5678.5,Basel\n3.25,,Bern\n"
GERMAN_ROWS = "a;b;town\n1,5;1.234;Bern\n2;5.678,5;Basel\n3,25;;Bern\n"
GERMAN = TextFormat(";", "latin-1", ",", ".")


def test_a_preparation_remembers_how_numbers_are_written(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text(PLAIN_ROWS)
    (tmp_path / "german.csv").write_text(GERMAN_ROWS, "latin-1")
    plain, german = read_cells(tmp_path / "plain.csv"), read_cells(tmp_path / "german.csv", form=GERMAN)
    ours, theirs = (Preparation.fit(cells, Settings(min_count=1)) for cells in (plain, german))
    assert (theirs.decimal, theirs.thousands, theirs.columns) == (",", ".", ours.columns)
    kept = Preparation.from_json(theirs.to_json())
    assert torch.equal(kept.apply(german), ours.apply(plain))
    assert torch.equal(kept.apply(plain), ours.apply(plain)), "a file's own format takes precedence"
    without_a_file = {"a": ["1,5"], "b": ["1.234"], "town": ["Bern"]}
    assert torch.equal(kept.apply(without_a_file), kept.apply(german)[:1])
    with pytest.raises(BadColumn, match=r"column 'a' holds '1\.5', not a number"):
        kept.apply({**without_a_file, "a": ["1.5"]})


def test_a_preparation_of_an_older_version_reads_plain_numbers() -> None:
    now = Preparation.fit({"a": ["1.5", "2.5"]})
    before = now.to_json().replace(',\n "decimal": ".",\n "thousands": null', "")
    assert "decimal" not in before
    assert Preparation.from_json(before) == now


def test_a_column_that_contradicts_the_files_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b\n1,5;1.5\n2,5;2.25\n")
    with pytest.raises(
        BadColumn, match=r'column \'b\' holds numbers with a point, such as .*(write|set) decimal = "\."'
    ):
        Preparation.fit(read_cells(tmp_path / "t.csv", form=TextFormat(";", decimal=",")))
    with pytest.raises(BadColumn, match=r'column \'a\' holds numbers with a comma, .*set decimal = ","'):
        Preparation.fit(read_cells(tmp_path / "t.csv", form=TextFormat(";")))


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_labels_in_the_files_own_format(task: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y;z\n1,5;1\n1.000;2\n2;3\n1000;4\n")
    (tmp_path / "plain.csv").write_text("y\n1.5\n1000\n2\n1e3\n")
    cells = read_cells(tmp_path / "t.csv", form=TextFormat(";", decimal=",", thousands="."))
    plain = read_cells(tmp_path / "plain.csv")
    coding = LabelCoding.fit(cells, "y", task)  # type: ignore[arg-type]
    assert coding == LabelCoding.fit(plain, "y", task)  # type: ignore[arg-type]
    assert torch.equal(coding.apply(cells), coding.apply(plain))
    assert coding.classes == (("1.5", "2", "1000") if task == "multiclass" else ())
