"""Every command and snippet of README.md and docs/ is executed, or says why it is not."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from documents.pages import ROOT, Block, blocks, pages
from documents.promises import PROMISES
from documents.running import run_page

ALL = [block for page in pages() for block in blocks(page)]
TO_RUN = [block for block in ALL if block.kind in ("shell", "python") and not block.hidden]
WITH_BLOCKS = sorted({block.page for block in TO_RUN if block.reason is None})


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_a_page_as_its_reader_runs_it(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_page(ROOT / page, tmp_path, monkeypatch)
    if page in PROMISES:
        PROMISES[page](tmp_path, ran)


def test_what_is_not_run_says_why_and_is_the_smaller_part(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = [block for block in TO_RUN if block.reason is not None]
    with capsys.disabled():
        print(f"\n{len(TO_RUN) - len(left_out)} blocks are run, {len(left_out)} are not:")
        print("\n".join(f"  {block.where}  {block.reason}" for block in left_out))
    assert all(block.reason for block in left_out)
    assert len(left_out) < len(TO_RUN) / 2
    assert set(PROMISES) <= set(WITH_BLOCKS)


@pytest.mark.parametrize("block", [one for one in ALL if one.kind == "toml"], ids=lambda one: one.where)
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text) or block.text.startswith("#:schema")


def test_a_block_is_of_a_known_kind() -> None:
    known = {"shell", "python", "toml", "json", "yaml", "text"}
    assert not [f"{block.where}: {block.kind}" for block in ALL if block.kind not in known]
