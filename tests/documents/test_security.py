"""Every promise of SECURITY.md has a test that is there."""

from __future__ import annotations

import re

import pytest

from documents.pages import ROOT

PROMISES = sorted(set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text())))


def test_there_are_promises() -> None:
    assert len(PROMISES) > 20


@pytest.mark.parametrize(("file", "test"), PROMISES)
def test_a_promise_names_its_test(file: str, test: str) -> None:
    path = ROOT / file if file.startswith("src/") else ROOT / "tests" / file
    assert path.exists()
    assert not test or f"def {test}(" in path.read_text()
