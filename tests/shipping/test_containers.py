"""Dockerfile and compose file where no engine runs: by rule, and by reading what each container would have."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shipping.building import ROOT
from thinwire.cli import app
from thinwire.job.party_view import read_party_view
from thinwire.net.pki.certificates import load_credentials

DEPLOY = ROOT / "deploy"
EXAMPLE = ROOT / "examples" / "three_organisations"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SECRET = re.compile(r"(\w+)\.key$")


def _instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def _all_of(word: str) -> list[str]:
    return [rest for one, rest in _instructions() if one == word]


def test_images_are_named_with_a_version() -> None:
    for image in _all_of("FROM"):
        name = image.split(" AS ")[0]
        assert re.fullmatch(r"[\w./-]+:\d[\w.-]*", name), name


def test_the_image_runs_as_nobody_in_particular() -> None:
    words = [word for word, _ in _instructions()]
    last = len(words) - 1 - words[::-1].index("USER")
    assert _all_of("USER")[-1] not in ("root", "0")
    assert words.index("ENTRYPOINT") > last
    assert not {"RUN", "COPY"} & set(words[last:])


def test_the_image_is_small_and_plain() -> None:
    assert not _all_of("ADD")
    for command in _all_of("RUN"):
        assert "sudo" not in command
        assert "pip " not in command or "--no-cache-dir" in command
        assert "apt-get install" not in command or "--no-install-recommends" in command
    assert any("whl/cpu" in said for said in _all_of("ARG"))
    for word in ("ENTRYPOINT", "CMD"):  # as a list, so that signals arrive
        assert all(said.startswith("[") for said in _all_of(word))
    assert [word for word, _ in _instructions()].count("CMD") == 1


def test_what_is_copied_is_there_and_let_through() -> None:
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for said in _all_of("COPY"):
        if said.startswith("--from"):
            continue
        for name in said.split()[:-1]:
            assert (ROOT / name).exists(), name
            assert f"!{name}" in ignore


@pytest.mark.parametrize("name", SERVICES)
def test_a_party_has_its_own_key_and_no_rights(name: str) -> None:
    service = SERVICES[name]
    keys = [found[1] for volume in service["volumes"] if (found := SECRET.search(volume.split(":")[0]))]
    assert keys == [name]
    assert not [volume for volume in service["volumes"] if "ca.key" in volume]
    assert all(volume.endswith(":ro") for volume in service["volumes"] if "/runs/" not in volume)
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "network_mode", "ports", "pid"} & set(service)


def test_what_services_refer_to_exists() -> None:
    for service in SERVICES.values():
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert set(service.get("depends_on", [])) <= set(SERVICES)
    builds = [service["build"] for service in SERVICES.values() if "build" in service]
    assert [(DEPLOY / one["context"] / one["dockerfile"]).resolve() for one in builds] == [DEPLOY / "Dockerfile"]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the file's head says: data, then certificates."""
    folder = tmp_path_factory.mktemp("example")
    for name in ("make_data.py", "job.toml"):
        shutil.copy(EXAMPLE / name, folder / name)
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, capture_output=True)
    parties = [word for name in SERVICES for word in ("--party", name)]
    assert CliRunner().invoke(app, ["certs", str(folder / "certs"), *parties]).exit_code == 0
    return folder


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_all_that_a_party_reads(name: str, example: Path, tmp_path: Path) -> None:
    service = SERVICES[name]
    for volume in service["volumes"]:
        host, inside = volume.split(":")[:2]
        within = Path(host).relative_to("../examples/three_organisations")
        there = tmp_path / Path(inside).relative_to("/job")
        there.parent.mkdir(parents=True, exist_ok=True)
        if "runs" not in within.parts:
            shutil.copy(example / within, there)
    command, file, *options = service["command"]
    assert (command, file) == ("party", "job.toml")
    settings = [value for option, value in pairwise(options) if option == "--set"]
    own = read_party_view(tmp_path / file, name, settings)
    assert options[options.index("--name") + 1] == own.me == name
    if own.is_label_party:
        assert len(own.load_label_data().labels) > 100
        assert own.network_party.listen_address() == "0.0.0.0:7443"
    else:
        assert len(own.load_features().features) > 100
    host, _, port = own.network_party.dial_address().partition(":")
    assert host in SERVICES
    assert port in SERVICES[host]["expose"]
    load_credentials(own.certificate_files, own.certificate_names[name])
