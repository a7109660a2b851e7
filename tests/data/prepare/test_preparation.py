"""Fitted on some rows, applied to any: equations that hold for every kind of column."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from thinwire.base.errors import BadColumn, BadState, BadTable
from thinwire.data.prepare import Preparation, Settings
from thinwire.data.prepare.columns import NumberColumn
from thinwire.data.prepare.settings import FOR_TREES
from thinwire.data.prepare.statistics import Unscaled
from thinwire.data.readers.tables import Cells, read_cells

ROWS = 240


def table(rows: int = ROWS, seed: int = 0) -> dict[str, list[Any]]:
    """Every kind of column, with gaps, as a CSV file would give it: text."""
    rng = np.random.default_rng(seed)

    def gappy(values: list[str]) -> list[str | None]:
        return [None if rng.random() < 0.1 else value for value in values]

    first = date(2020, 1, 1)
    return {
        "age": gappy([f"{x:.2f}" for x in rng.normal(40, 10, rows)]),
        "income": [f"{x:.2f}" for x in np.exp(rng.normal(10, 1, rows))],
        "job": gappy(list(rng.choice(["clerk", "farmer", "nurse"], rows))),
        "town": [f"town {k}" for k in rng.integers(0, 70, rows)],
        "joined": gappy([str(first + timedelta(days=int(k))) for k in rng.integers(0, 900, rows)]),
        "seen": [f"{first + timedelta(days=int(k))} {k % 24:02}:30:00" for k in rng.integers(0, 900, rows)],
        "insured": gappy(list(rng.choice(["yes", "no"], rows))),
        "note": [f"note {k}" for k in range(rows)],
        "constant": ["same"] * rows,
    }


KINDS = {
    "age": "number",
    "income": "number",
    "job": "category",
    "town": "category",
    "joined": "date",
    "seen": "date",
    "insured": "boolean",
    "note": "left out",
    "constant": "left out",
}
ALL = [
    Settings(min_count=1, vocabulary=80),
    Settings(scaling="quantile", missing="mean"),
    Settings(categories="codes"),
    Settings(categories="codes", vocabulary=1, buckets=7, min_count=1),
    Settings(scaling="none"),
    Settings.model_validate(FOR_TREES),
]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit, gaps too."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def output(preparation: Preparation, x: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = x[:, preparation.outputs.index(name)].numpy()
    return found


def test_kinds_are_guessed() -> None:
    preparation = Preparation.fit(table(), Settings(min_count=1, vocabulary=80))
    assert {column.name: column.kind for column in preparation.columns} == KINDS


@pytest.mark.parametrize("settings", ALL)
def test_a_row_is_prepared_by_itself_and_as_wide_as_said(settings: Settings) -> None:
    cells = Cells.of(table())
    preparation = Preparation.fit(cells[np.arange(0, ROWS, 2)], settings)
    x = preparation.apply(cells)
    assert x.dtype == torch.float32
    assert x.shape == (ROWS, preparation.width)
    assert preparation.keeps_gaps == bool(x.isnan().any())
    assert not bool(x.isinf().any())
    rows = np.random.default_rng(1).permutation(ROWS)[:50]
    assert same(preparation.apply(cells[rows]), x[rows])


@pytest.mark.parametrize("settings", ALL)
def test_what_is_saved_is_the_same_preparation(settings: Settings) -> None:
    preparation = Preparation.fit(table(), settings)
    again = Preparation.from_json(preparation.to_json())
    assert again == preparation
    assert same(again.apply(table(seed=5)), preparation.apply(table(seed=5)))


@pytest.mark.parametrize("settings", ALL)
def test_a_csv_and_a_parquet_file_say_the_same(settings: Settings, tmp_path: Path) -> None:
    text = pa.table(table())
    typed = text.set_column(1, "income", text["income"].cast(pa.float64()))
    typed = typed.set_column(4, "joined", typed["joined"].cast(pa.date32()))
    typed = typed.set_column(2, "job", typed["job"].dictionary_encode())
    pa.csv.write_csv(text, tmp_path / "t.csv")
    pa.parquet.write_table(typed, tmp_path / "t.parquet")
    from_text, from_types = (read_cells(tmp_path / f"t.{kind}") for kind in ("csv", "parquet"))
    ours, theirs = Preparation.fit(from_text, settings), Preparation.fit(from_types, settings)
    assert ours == theirs
    assert same(ours.apply(from_text), theirs.apply(from_types))
    assert same(ours.apply(from_types), ours.apply(text.to_pydict()))


def test_trees_get_the_table_as_it_is() -> None:
    some = table()
    preparation = Preparation.fit(some, Settings.model_validate({**FOR_TREES, "vocabulary": 80, "min_count": 1}))
    assert preparation.outputs[:2] == ("job", "town")
    assert not [name for name in preparation.outputs if "missing" in name or "sine" in name]
    x = preparation.apply(some)
    for name in ("age", "income"):
        cells = [np.nan if cell is None else float(cell) for cell in some[name]]
        np.testing.assert_array_equal(output(preparation, x, name), np.array(cells, np.float32))
    insured = [np.nan if cell is None else float(cell == "yes") for cell in some["insured"]]
    np.testing.assert_array_equal(output(preparation, x, "insured"), insured)
    ages, weeks = output(preparation, x, "joined age"), output(preparation, x, "joined week")
    assert np.isnan(ages).tolist() == np.isnan(weeks).tolist() == [cell is None for cell in some["joined"]]
    assert set(weeks[~np.isnan(weeks)]) == set(range(7))
    clocks = [float(cell[11:13]) / 24 + 0.5 / 24 for cell in some["seen"]]
    assert output(preparation, x, "seen day") == pytest.approx(clocks, abs=1e-6)


def scale_of(preparation: Preparation) -> Any:
    (column,) = (one for one in preparation.columns if one.name == "seen")
    assert isinstance(column, NumberColumn)
    return column.scale


def test_times_in_seconds_keep_their_digits() -> None:
    seen = [1_700_000_000 + row for row in range(50)]
    rows = {"seen": [*seen, None], "year": [*range(1980, 2030), 1980]}
    fitted = Preparation.fit(rows, Settings.model_validate(FOR_TREES))
    x = fitted.apply({"seen": seen, "year": list(range(1980, 2030))})
    assert output(fitted, x, "seen").tolist() == (output(fitted, x, "seen")[0] + np.arange(50)).tolist()
    assert output(fitted, x, "year").tolist() == list(range(1980, 2030))  # as it is
    assert same(Preparation.from_json(fitted.to_json()).apply({"seen": seen, "year": [1980] * 50})[:, :1], x[:, :1])
    assert " minus " in fitted.columns[0].says
    other = Preparation.fit({"seen": [one + 3 for one in seen]}, Settings.model_validate(FOR_TREES))
    assert scale_of(other) == scale_of(fitted), "the same for rows of about the same time"
    known = Preparation.fit(
        {"seen": seen}, Settings.model_validate({**FOR_TREES, "known": {"seen": [1.7e9, 1.7e9 + 100]}})
    )
    assert len(known.apply({"seen": seen}).unique()) == 50
    old = Preparation.from_json(re.sub(r',\s*"offset": [0-9.]+', "", fitted.to_json()))
    assert scale_of(old) == Unscaled(), "as preparations say that are older"


def test_a_difference_between_two_preparations_is_named() -> None:
    known: dict[str, Any] = {"job": ["nurse", "clerk"] * 9, "age": list(range(18))}
    there = Preparation.fit(known, Settings.model_validate(FOR_TREES))
    for rows, says in (
        ({"job": ["clerk", "nurse"] * 9, "age": list(range(9, 27))}, None),
        ({"job": ["nurse", "farmer"] * 9, "age": list(range(18))}, "column 'job' was prepared as .*clerk, nurse"),
        ({"age": list(range(18))}, "columns 'job', 'age' there and 'age' here"),
    ):
        found = Preparation.fit(rows, Settings.model_validate(FOR_TREES)).find_difference(there)
        assert found is None if says is None else re.search(says, found or "")


def test_a_word_and_a_gap_that_training_rows_lack_have_a_place_among_trees_too() -> None:
    settings = Settings.model_validate({**FOR_TREES, "min_count": 1})
    preparation = Preparation.fit({"job": ["clerk", "nurse"] * 3, "age": [1, 2, 3, 4, 5, 6]}, settings)
    x = preparation.apply({"job": ["smith", None, "nurse"], "age": [None, 1e300, -1e300]})
    assert x[:, 0].tolist() == [0, 0, 2]
    assert x[0, 1].isnan()
    assert x[1:, 1].tolist() == [np.finfo(np.float32).max, np.finfo(np.float32).min]


def test_a_column_of_one_value_and_gaps_says_where_the_gaps_are() -> None:
    preparation = Preparation.fit({"paid": [None, 7, 7, None]}, Settings.model_validate(FOR_TREES))
    np.testing.assert_array_equal(preparation.apply({"paid": [7, None]}), [[7], [np.nan]])


def test_numbers_by_their_mean_and_deviation() -> None:
    some = table()
    ages = np.array([np.nan if age is None else float(age) for age in some["age"]])
    for missing, fill in (("median", np.nanmedian(ages)), ("mean", np.nanmean(ages))):
        preparation = Preparation.fit(some, Settings(missing=missing))  # type: ignore[arg-type]
        x = preparation.apply(some)
        filled = np.where(np.isnan(ages), fill, ages)
        expected = (filled - np.nanmean(ages)) / np.nanstd(ages)
        assert output(preparation, x, "age") == pytest.approx(expected, abs=1e-6)
        assert output(preparation, x, "age missing").tolist() == np.isnan(ages).astype(float).tolist()
        assert "income missing" not in preparation.outputs


def test_ranks_do_not_see_how_far_out_a_value_is() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=1001)  # a knot at every tenth value
    plain = Preparation.fit({"x": x}, Settings(scaling="quantile"))
    bent = Preparation.fit({"x": np.exp(3 * x)}, Settings(scaling="quantile"))
    ours, theirs = plain.apply({"x": x})[:, 0], bent.apply({"x": np.exp(3 * x)})[:, 0]
    assert torch.allclose(ours, theirs, atol=0.05)
    at_knots = np.argsort(x)[::10].copy()
    assert torch.allclose(ours[at_knots], theirs[at_knots], atol=1e-5)
    assert float(ours.mean()) == pytest.approx(0, abs=0.01)
    assert float(ours.std()) == pytest.approx(1, abs=0.01)
    assert bool((ours[np.argsort(x).copy()].diff() >= 0).all())


def test_a_value_far_out_counts_as_ten_deviations() -> None:
    preparation = Preparation.fit({"x": [0.0, 1.0, 2.0]})
    assert preparation.apply({"x": [1e12, -1e12]})[:, 0].tolist() == [10.0, -10.0]


def test_every_category_has_one_place_and_unseen_values_one_of_their_own() -> None:
    rows = {"job": ["clerk"] * 6 + ["nurse"] * 5 + ["smith"] * 2 + [None]}
    preparation = Preparation.fit(rows)
    assert preparation.outputs == ("job unseen", "job = clerk", "job = nurse", "job missing")
    x = preparation.apply({"job": ["nurse", " nurse ", "smith", "astronaut", None, ""]})
    assert x.argmax(dim=1).tolist() == [2, 2, 0, 0, 3, 3]
    assert x.sum(dim=1).tolist() == [1.0] * 6
    without = Preparation.fit({"job": ["clerk"] * 6 + ["nurse"] * 5})
    assert without.apply({"job": [None]}).tolist() == [[1, 0, 0]]


def test_categories_of_pandas_are_categories_whatever_they_are_made_of() -> None:
    codes = pa.chunked_array([pa.array([3, 1, None] * 9).dictionary_encode()])
    preparation = Preparation.fit({"pay": codes})
    assert preparation.outputs == ("pay unseen", "pay = 1", "pay = 3", "pay missing")
    assert preparation.apply({"pay": codes[:3]}).argmax(1).tolist() == [2, 1, 3]


def test_many_values_are_hashed_although_each_is_rare() -> None:
    rare = [f"{k % 300:05}" for k in range(900)]
    assert Preparation.fit({"zip": [*rare, *["00900"] * 20]}).columns[0].kind == "hashed"
    common = Preparation.fit({"zip": [*rare[:300], *["00900"] * 400]}).columns[0]
    assert (common.kind, getattr(common, "words", None)) == ("category", ("00900",))


def test_codes_say_what_one_hot_places_say() -> None:
    some = {"job": table()["job"], "town": table()["town"], "age": table()["age"]}
    for vocabulary in (80, 10):  # towns: a vocabulary, and hashed
        coded = Preparation.fit(some, Settings(categories="codes", vocabulary=vocabulary, min_count=1))
        placed = Preparation.fit(some, Settings(vocabulary=vocabulary, min_count=1))
        codes, places = coded.apply(some), placed.apply(some)
        start = 0
        assert coded.outputs[:2] == ("job", "town")
        for column, size in enumerate(coded.vocabularies):
            assert codes[:, column].tolist() == places[:, start : start + size].argmax(dim=1).tolist()
            start += size
        assert torch.equal(codes[:, 2:], places[:, start:])


def test_dates_have_an_age_and_a_place_in_the_year_and_week() -> None:
    days = [date(2024, 1, 1) + timedelta(days=k) for k in range(0, 400, 5)]
    preparation = Preparation.fit({"day": [str(day) for day in days]})
    x = preparation.apply({"day": [str(day) for day in days]})
    ages = np.array([(days[-1] - day).days for day in days])
    assert output(preparation, x, "day age") == pytest.approx((ages - ages.mean()) / ages.std(), abs=1e-6)
    week = output(preparation, x, "day week sine")
    for weekday in range(7):
        same = [k for k, day in enumerate(days) if day.weekday() == weekday]
        assert np.ptp(week[same]) < 1e-5
    assert len({round(float(value), 3) for value in week}) == 7
    german = Preparation.fit({"day": [f"{day:%d.%m.%Y}" for day in days]})
    assert torch.equal(german.apply({"day": [f"{day:%d.%m.%Y}" for day in days]}), x)


@pytest.mark.parametrize(
    "written",
    [
        "2024-01-0{} 10:00:00.123456",  # as pandas writes them
        "2024-01-0{}T10:00:00.5",
        "2024-01-0{}T10:00:00.5Z",
        "2024-01-0{} 11:00:00+01:00",
        "2024-01-0{}T08:00:00-0200",
    ],
)
def test_times_with_fractions_and_zones_are_dates_too(written: str) -> None:
    plain = Preparation.fit({"since": [f"2024-01-0{day} 10:00:00" for day in range(1, 8)]})
    preparation = Preparation.fit({"since": [written.format(day) for day in range(1, 8)]})
    assert preparation == plain
    assert preparation.columns[0].kind == "date"


def test_a_row_may_lack_any_value() -> None:
    preparation = Preparation.fit(table())
    row = {name: [column[0]] for name, column in table().items()}
    for name in row:
        assert preparation.apply({**row, name: [None]}).isfinite().all()


def test_true_false_and_nothing() -> None:
    preparation = Preparation.fit({"ok": ["Yes", "no", "YES", None]})
    assert preparation.apply({"ok": ["y", "false", "1", " "]})[:, 0].tolist() == [1.0, -1.0, 1.0, 0.0]


def test_what_is_known_is_not_looked_up_in_the_rows() -> None:
    known: dict[str, Any] = {
        "age": [0.0, 100.0],
        "job": ["clerk", "nurse"],
        "town": 16,
        "joined": [date(2020, 1, 1), date(2024, 1, 1)],
    }
    settings = Settings(known=known, types={"insured": "boolean"})
    names = [*known, "insured"]
    some, other = ({name: table(seed=seed)[name] for name in names} for seed in (0, 1))
    preparation = Preparation.fit(some, settings)
    assert preparation.row_dependent_columns == ()
    assert preparation == Preparation.fit(other, settings)
    x = preparation.apply({**{name: some[name][:2] for name in names}, "age": ["25", "1000"]})
    assert output(preparation, x, "age").tolist() == [-0.5, 1.0]
    assert Preparation.fit(some).row_dependent_columns == tuple(names)


def test_rows_that_do_not_fit_are_refused() -> None:
    preparation = Preparation.fit(
        {"age": ["1", "2", "3"], "ok": ["yes", "no", "no"], "day": ["2024-01-01"] * 2 + [None]}
    )
    good = {"age": ["1"], "ok": ["no"], "day": ["2024-01-01"]}
    preparation.apply({**good, "more": [1]})
    with pytest.raises(BadColumn, match="row 1, column 'age' holds 'old', not a number"):
        preparation.apply({**good, "age": ["old"]})
    with pytest.raises(BadColumn, match="column 'age' holds 'inf', not a number"):
        preparation.apply({**good, "age": ["inf"]})
    with pytest.raises(BadColumn, match="column 'ok' holds 'perhaps', neither true nor false"):
        preparation.apply({**good, "ok": ["perhaps"]})
    with pytest.raises(
        BadColumn, match="there is no column 'age'; the columns are 'Age', 'ok', 'day'; did you mean 'Age'"
    ):
        preparation.apply({"Age": ["1"], "ok": ["no"], "day": ["2024-01-01"]})
    with pytest.raises(BadTable, match="no rows"):
        preparation.apply({"age": [], "ok": [], "day": []})
    with pytest.raises(BadTable, match="int is not a table"):
        preparation.apply(3)


def test_tables_that_cannot_be_fitted() -> None:
    with pytest.raises(BadColumn, match="row 100, column 'age' holds 'old', but 99 of 100 cells are numbers"):
        Preparation.fit({"age": [str(k) for k in range(99)] + ["old"]})
    with pytest.raises(BadColumn, match=r'missing_words = \["\\"x\\""\], or types = \{ "net income" = "category" \}'):
        Preparation.fit({"net income": [str(k) for k in range(99)] + ['"x"']})
    with pytest.raises(BadColumn, match=r"'age' holds numbers with a comma, such as '1,5'; set decimal = "):
        Preparation.fit({"age": ["1,5", "-2,25", "3"]})
    with pytest.raises(BadColumn, match="no column is left to learn from"):
        Preparation.fit({"a": [1, 1], "b": [None, None]})
    with pytest.raises(BadColumn, match="there is no column 'aeg'; the columns are 'age'; did you mean 'age'"):
        Preparation.fit({"age": [1, 2]}, Settings(types={"aeg": "number"}))
    with pytest.raises(BadColumn, match="there is no column 'aeg'"):
        Preparation.fit({"age": [1, 2]}, Settings(known={"aeg": [0.0, 1.0]}))
    with pytest.raises(BadColumn, match=r"known\.age describes a number, but types declares category"):
        Preparation.fit({"age": [1, 2]}, Settings(known={"age": [0.0, 1.0]}, types={"age": "category"}))
    with pytest.raises(BadColumn, match=r"known\.age must be \[lowest, highest\]"):
        Preparation.fit({"age": [1, 2]}, Settings(known={"age": [1.0, 0.0]}))
    with pytest.raises(BadColumn, match="holds list<item: int64>"):
        Preparation.fit({"age": [[1], [2]]})
    with pytest.raises(BadColumn, match="would become 5000 features; use a smaller vocabulary, fewer buckets"):
        Preparation.fit({"town": ["x", "y"]}, Settings(known={"town": 5000}))
    with pytest.raises(BadColumn, match="is that intended"):
        Preparation.fit({"age": [1e300, 2]})


def test_words_that_mean_nothing_and_codes_with_zeros() -> None:
    preparation = Preparation.fit({"age": [*map(str, range(50)), "?"]}, Settings(missing_words=["?"]))
    assert preparation.outputs == ("age", "age missing")
    assert preparation.apply({"age": ["?"]})[0, 1] == 1
    codes = Preparation.fit({"zip": ["01234"] * 9 + ["98765"] * 9})
    assert codes.columns[0].kind == "category"
    by_pattern = Preparation.fit(
        {"PAY_1": ["1", "2"] * 9, "AGE": ["1", "2"] * 9}, Settings(types={"PAY_*": "category"})
    )
    assert [column.kind for column in by_pattern.columns] == ["category", "number"]


NUMBER = {"kind": "number", "name": "x", "gaps": False, "fill": 0.0}
WRONG: list[dict[str, Any]] = [
    {},
    {"format": 2},
    {"columns": [{"kind": "pickle", "name": "x"}]},
    {"columns": [{**NUMBER, "scale": {"by": "standard", "mean": 0.0, "deviation": 0.0}}]},
    {"columns": [{**NUMBER, "scale": {"by": "standard", "mean": "0", "deviation": 1.0}}]},
    {"columns": [{**NUMBER, "scale": {"by": "quantile", "values": [1.0], "shares": []}}]},
    {"columns": [{**NUMBER, "scale": {"by": "range", "low": 1.0, "high": 1.0}}]},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_other_text_is_no_preparation(wrong: dict[str, Any]) -> None:
    right = json.loads(Preparation.fit({"x": [1, 2]}).to_json())
    assert Preparation.from_json(json.dumps(right)).width == 1
    text = json.dumps({**right, **wrong}) if wrong else "no JSON"
    with pytest.raises(BadState, match="no preparation that this version reads"):
        Preparation.from_json(text)
