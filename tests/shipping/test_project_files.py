"""Files at the root that repeat what the package says."""

from __future__ import annotations

import tomllib
from typing import Any

import yaml

import thinwire
from shipping.building import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_is_of_this_version() -> None:
    citation = _read_yaml("CITATION.cff")
    assert (citation["version"], citation["license"]) == (thinwire.__version__, PROJECT["license"])


def test_every_supported_python_is_tested() -> None:
    kind = "Programming Language :: Python :: "
    supported = [one.removeprefix(kind) for one in PROJECT["classifiers"] if one.startswith(f"{kind}3.")]
    assert _read_yaml(".github/workflows/ci.yml")["jobs"]["check"]["strategy"]["matrix"]["python"] == supported


def test_a_release_builds_wheel_and_image() -> None:
    jobs = _read_yaml(".github/workflows/release.yml")["jobs"]
    commands = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    assert "make dist" in commands
    assert any(command.startswith("docker build -f deploy/Dockerfile") for command in commands)


def test_the_documents_need_what_developers_have() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras["docs"]) <= set(extras["dev"])


def test_reports_ask_for_the_environment() -> None:
    asked = _read_yaml(".github/ISSUE_TEMPLATE/bug.yml")["body"]
    assert any("thinwire --version" in str(one) for one in asked)
