"""Bodies written by earlier versions decode for ever, to the same floats."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from engine.wire.make_golden import floats
from thinwire.base.types import Kind
from thinwire.engine import wire
from thinwire.engine.wire import Frame, codec, unpack_frame
from thinwire.engine.wire.entropy import Coding

FOLDER = Path(__file__).parent / "golden"
BODIES = sorted(FOLDER.glob("*.body"))
FORMAT = (Path(wire.__file__).parent / "FORMAT.md").read_text()


@pytest.mark.parametrize("file", BODIES, ids=lambda file: file.stem)
def test_a_golden_body_decodes_to_the_same_floats(file: Path) -> None:
    symbols = wire.decode(file.read_bytes())
    name = re.sub("-(small|fast)$", "", file.stem)
    expected = np.frombuffer((FOLDER / f"{name}.values").read_bytes(), np.float64)
    assert np.array_equal(floats(symbols), expected)


def test_the_golden_frame_unpacks() -> None:
    frame = unpack_frame((FOLDER / "frame-1.frame").read_bytes())
    assert frame == Frame(0x0123456789ABCDEF, 2, 0, Kind.DERIVATIVE, 4096, 1, b"body")


def test_every_kind_has_a_golden_body() -> None:
    assert {file.read_bytes()[0] for file in BODIES} == {c.tag for c in codec._CODECS}


def test_the_format_page_lists_what_the_code_knows() -> None:
    for c in codec._CODECS:
        assert f"| {c.tag} | {c.kind.__name__} |" in FORMAT
    for coding in Coding:
        assert f"| {coding} | {coding.name.lower()} |" in FORMAT
    for kind in Kind:
        assert f"{int(kind)} {kind.name.lower().replace('_', ' ')}" in FORMAT
