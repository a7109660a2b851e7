"""What we write as TOML, the standard library reads back."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.base.errors import BadInput
from thinwire.job.job_file import inline, toml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_written_and_read_back(document: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(document)) == document


@given(VALUES)
def test_inline_values_as_well(value: Any) -> None:
    assert tomllib.loads(f"x = {inline(value)}") == {"x": value}


def test_what_toml_has_no_word_for() -> None:
    with pytest.raises(BadInput, match="None cannot be written as TOML"):
        inline(None)
