"""What a user installs: everything the package needs, and nothing that does not belong there."""

from __future__ import annotations

import tarfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

import thinwire
from shipping.building import ROOT, build

SOURCE = ROOT / "src" / "thinwire"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return ZipFile(build("wheel", tmp_path_factory.mktemp("wheel")))


def _metadata(wheel: ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def test_the_wheel_holds_every_file_of_the_package(wheel: ZipFile) -> None:
    ours = {f"thinwire/{file.relative_to(SOURCE)}" for file in SOURCE.rglob("*") if file.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    experiments = {f"thinwire/lab/papers/experiments/{file.name}" for file in (ROOT / "experiments").glob("*.toml")}
    assert len(experiments) > 20
    there = {name for name in wheel.namelist() if name.startswith("thinwire/")}
    assert there == ours | experiments
    for needed in (
        "py.typed",
        "engine/wire/FORMAT.md",
        "align/FORMAT.md",
        "report/templates/report.html",
        "report/svg/page.css",
    ):
        assert f"thinwire/{needed}" in there


def test_the_wheel_holds_nothing_else(wheel: ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top.split("-")[0] for top in tops} == {"thinwire"}
    assert len(tops) == 2


def test_the_metadata_is_right(wheel: ZipFile) -> None:
    said = _metadata(wheel)
    assert (said["Name"], said["Version"]) == ("thinwire", thinwire.__version__)
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"].replace(" ", "") in ("<3.14,>=3.11", ">=3.11,<3.14")
    assert said["Description-Content-Type"] == "text/markdown"
    needed = said.get_all("Requires-Dist") or []
    plain = {line.split(";")[0].split("<")[0].split(">")[0].strip() for line in needed if "extra ==" not in line}
    assert {"torch", "numpy", "grpcio", "typer"} <= plain
    assert not plain & {"pytest", "mkdocs", "hatchling", "ray", "uvicorn"}
    assert {"dashboard", "serve", "docs"} <= set(said.get_all("Provides-Extra") or [])
    (entries,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "thinwire = thinwire.cli:main" in wheel.read(entries).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_the_source_archive_can_be_tested_and_documented(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as opened:
        there = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    needed = ["Makefile", "constraints/cpu.txt", "mkdocs.yml", "docs/index.md", "docs/making/hooks.py"]
    needed += ["deploy/Dockerfile", "deploy/compose.yaml", "tests/conftest.py", "examples/digits/job.toml", "LICENSE"]
    assert not set(needed) - there
    assert not [name for name in there if name.endswith((".pyc", ".key"))]
    assert {Path(name).suffix for name in there if name.startswith("examples/")} <= {"", ".toml", ".py"}
