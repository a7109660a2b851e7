"""The published schema is the one that job files are read by."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from documents.pages import Block, blocks, pages
from shipping.building import ROOT
from shipping.json_schema import complaints
from thinwire.cli import app
from thinwire.job.schema import SCHEMA_VERSION, job_schema

PUBLISHED = ROOT / "docs" / "schema" / f"job-{SCHEMA_VERSION}.json"
SCHEMA = json.loads(PUBLISHED.read_text())
FILES = sorted((ROOT / "examples").glob("*/*.toml"))
TOML = [block for page in pages() for block in blocks(page) if block.kind == "toml"]
INCLUDING = [block for block in TOML if "\ninclude" in block.text]
WHOLE = [
    block for block in TOML if "[label_party]" in block.text and "[recipe]" in block.text and "labels =" in block.text
]


def _plain(value: Any) -> Any:
    """As JSON has it: a day is text."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.isoformat() if isinstance(value, date) else value


def _wrong(text: str) -> list[str]:
    return list(complaints(_plain(tomllib.loads(text)), SCHEMA, SCHEMA))


def test_the_file_is_up_to_date() -> None:
    assert job_schema() == SCHEMA, "run `thinwire schema --out docs/schema/job-1.json`"


def test_the_command_prints_and_writes_it(tmp_path: Path) -> None:
    assert json.loads(CliRunner().invoke(app, ["schema"]).stdout) == SCHEMA
    assert CliRunner().invoke(app, ["schema", "--out", str(tmp_path / "s.json")]).exit_code == 0
    assert (tmp_path / "s.json").read_text() == PUBLISHED.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_examples_are_valid(file: Path) -> None:
    assert not _wrong(file.read_text())


@pytest.mark.parametrize("block", [*WHOLE, *INCLUDING], ids=lambda block: block.where)
def test_job_files_of_the_pages_are_valid(block: Block) -> None:
    assert not _wrong(block.text)


def test_pages_have_both_kinds() -> None:
    assert WHOLE
    assert INCLUDING


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs = 20", "epoch = 20"),
        ("epochs = 20", "epochs = -1"),
        ("epochs = 20", 'epochs = "20"'),
        ("batch_size = 128", "batch_size = 0"),
        ('fusion = "sum"', 'fusion = "add"'),
        ('method = "efvfl"\n', ""),
        ('name = "north_west"\n', ""),
        ("latency_ms = 10", "latency_ms = -1"),
    ],
)
def test_what_a_job_file_may_not_hold_is_not_valid(old: str, new: str) -> None:
    text = (ROOT / "examples" / "digits" / "job.toml").read_text()
    assert old in text
    assert _wrong(text.replace(old, new, 1))
