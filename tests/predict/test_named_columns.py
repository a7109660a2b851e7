"""Rows as objects become the numbers that the same rows of a file become."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from thinwire.base.errors import BadInput
from thinwire.data.prepare import Preparation, Settings
from thinwire.data.readers.tables import GAPS, read_cells
from thinwire.data.readers.text_format import PLAIN, TextFormat
from thinwire.job.schema import PartyEntry, ServeSection
from thinwire.predict.errors import BadRequest
from thinwire.predict.online.api_schema import ScoreSchema
from thinwire.predict.party_models import PartyRows
from thinwire.predict.rows import NamedColumns, read_named_columns
from thinwire.predict.scoring import LedgerRows

ROWS = "age{0}town{0}since{0}insured{0}zip{0}same\n" + "".join(
    f"{20 + k}{{1}}5{{0}}{town}{{0}}2020-01-{k + 1:02}{{0}}{('yes', 'no')[k % 3 > 0]}{{0}}0{k}{{0}}x\n"
    for k, town in enumerate(["Bern", "Basel"] * 4 + ["Bern"])
)
OBJECT = {"age": 24.5, "town": "Bern", "since": "2020-01-05", "insured": False, "zip": "04"}


def columns(folder: Path, form: TextFormat) -> tuple[NamedColumns, torch.Tensor]:
    file = folder / "t.csv"
    text = ROWS.format(form.delimiter, form.decimal) + form.delimiter.join(["", "NA", "", "", "", "x"]) + "\n"
    file.write_text(text)
    cells = read_cells(file, form=form)
    preparation = Preparation.fit(cells, Settings(min_count=1))
    return NamedColumns(cells.names, preparation.sources, preparation, GAPS), preparation.apply(cells)


@pytest.mark.parametrize("form", [PLAIN, TextFormat(";", decimal=",")], ids=["plain", "decimal comma"])
def test_objects_are_prepared_as_the_training_rows_were(form: TextFormat, tmp_path: Path) -> None:
    named, expected = columns(tmp_path, form)
    assert "same" in named.names
    assert "same" not in named.required
    as_text = {**OBJECT, "age": f"24{form.decimal}5", "insured": "no", "same": "anything"}
    nothing = {**dict.fromkeys(OBJECT), "town": "NA"}
    found = named.convert([OBJECT, as_text, nothing, dict.fromkeys(OBJECT)])
    assert torch.equal(found, expected[[4, 4, 9, 9]])
    assert torch.equal(named.convert([nothing]), expected[[9]]), "a row does not depend on the others"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"towm": "Bern"}, "features[1] has 'towm', which is not a column of the model; did you mean 'town'?"),
        ({"age": "old"}, "column 'age' holds 'old', not a number"),
        ({"age": [1]}, "features[1]: 'age' must be a number, text, true, false or null"),
        ({"insured": 7}, "column 'insured' holds '7', neither true nor false"),
        ({"since": "soon"}, "column 'since' holds 'soon', not a date"),
    ],
)
def test_objects_that_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    named, _ = columns(tmp_path, PLAIN)
    with pytest.raises(BadInput, match=re.escape(message)):
        named.convert([OBJECT, {**OBJECT, **change}])


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    named, _ = columns(tmp_path, PLAIN)
    less = {name: value for name, value in OBJECT.items() if name not in ("age", "town")}
    with pytest.raises(BadInput, match=r"features\[0\] lacks 'age', 'town'; give null where a value is missing"):
        named.convert([less])
    with pytest.raises(BadInput, match=r"features\[1\] is not an object; give all rows as objects"):
        named.convert([OBJECT, [1.0]])


def test_tables_that_are_not_prepared_take_numbers_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("b,y,a\n1,0,2\n")
    section = PartyEntry.model_validate({"name": "shop", "features": {"file": "t.csv", "all_but": ["y"]}})
    named = read_named_columns(section, tmp_path, tmp_path)
    assert named is not None
    assert named.names == ("b", "a")
    assert named.convert([{"a": 1, "b": 2.5}]).tolist() == [[2.5, 1]]
    for wrong in ("1", None):
        with pytest.raises(BadInput, match=r"features\[0\]: 'a' must be a number: .*not prepared"):
            named.convert([{"a": wrong, "b": 2.5}])
    arrays = PartyEntry.model_validate({"name": "shop", "features": {"file": "t.npz", "key": "x"}})
    assert read_named_columns(arrays, tmp_path, tmp_path) is None


def test_trees_take_null_by_name_and_in_lists(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("b,y,a\n1,0,2\n")
    source = {"name": "shop", "features": {"file": "t.csv", "all_but": ["y"]}}
    named = read_named_columns(
        PartyEntry.model_validate({**source, "model": {"name": "boosted_trees"}}), tmp_path, tmp_path
    )
    assert named is not None
    rows = PartyRows(torch.zeros(3, 2), 3, None, None, LedgerRows(), columns=named, takes_gaps=True)
    schema = ScoreSchema(ServeSection())
    by_name = schema.read({"rows": [1], "features": [{"a": None, "b": 2.5}]}, rows, None).features
    by_list = schema.read({"rows": [1], "features": [[2.5, None]]}, rows, None).features
    for found in (by_name, by_list):
        assert found is not None
        assert found[0, 0] == 2.5
        assert found[0, 1].isnan()
    with pytest.raises(BadRequest, match=r"features\[0, 1\] is not finite"):
        schema.read({"rows": [1], "features": [[2.5, 1e300]]}, rows, None)
    with pytest.raises(BadRequest, match="features must be numbers"):
        schema.read({"rows": [1], "features": [[2.5, None]]}, replace(rows, takes_gaps=False), None)
