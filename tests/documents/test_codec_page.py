"""The codec's page has every compressor, in both of its tables."""

from __future__ import annotations

import pytest

from documents.pages import ROOT
from thinwire.engine.compress import COMPRESSORS, Compressor

PAGE = (ROOT / "docs" / "codec.md").read_text()


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_every_compressor_has_a_row(kind: type[Compressor]) -> None:
    tables = PAGE.split("\n## ")[1:]
    assert len(tables) == 2
    for table in tables:
        assert f"\n| {kind.__name__}(" in table
