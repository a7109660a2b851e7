"""Kubernetes manifests by the published schemas, and as a party finds them; Slurm scripts with a stand-in for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from job.tables.companies import write_csv
from shipping.building import ROOT
from thinwire.cli import app
from thinwire.job.party_view import read_party_view
from thinwire.job.wizard import CoreAnswers, PartAnswers, write_core, write_part
from thinwire.net.pki.authority import issue
from thinwire.net.pki.certificates import BadCertificate, load_credentials

KUBERNETES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
SLURM = sorted((ROOT / "deploy" / "slurm").glob("*.sbatch"))
VERSIONS = ("1.31", "1.37")
COMMANDS: dict[str, Any] = getattr(get_command(app), "commands", {})


def read_all(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def find_pods(file: Path) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in read_all(file) if one["kind"] in ("Job", "Deployment")]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.stem)
def test_manifests_hold_by_the_published_schemas(file: Path, version: str) -> None:
    for one in read_all(file):
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.stem)
def test_a_pod_has_no_rights_and_no_secret_in_its_file(file: Path) -> None:
    for pod in find_pods(file):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in (*pod["initContainers"], *pod["containers"]):
            rights = container["securityContext"]
            assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert not [one for one in read_all(file) if one["kind"] == "Secret"]
    assert "ca.key" not in file.read_text()


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.stem)
def test_ports_and_probes_meet(file: Path) -> None:
    for pod in find_pods(file):
        (container,) = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(kind, {})
            for way in ("httpGet", "tcpSocket"):
                assert probe.get(way, {"port": next(iter(ports))})["port"] in ports
        served = [int(word.rpartition(":")[2]) for word in container["args"] if word.startswith("0.0.0.0:")]
        assert set(served) <= set(ports.values())
        for service in (one for one in read_all(file) if one["kind"] == "Service"):
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)


def test_the_label_party_can_be_reached_before_it_is_ready() -> None:
    """It is ready to serve once the others are here, and they come through this Service."""
    (service,) = (one for one in read_all(ROOT / "deploy/kubernetes/label_party.yaml") if one["kind"] == "Service")
    assert service["spec"]["publishNotReadyAddresses"] is True
    for file in ("label_party", "serve"):
        for one in read_all(ROOT / f"deploy/kubernetes/{file}.yaml"):
            if one["kind"] in ("Job", "Deployment"):
                labels = one["spec"]["template"]["metadata"]["labels"]
                assert service["spec"]["selector"].items() <= labels.items()


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as organisations have it once their parts are written; here those of two in one."""
    folder = tmp_path_factory.mktemp("kit")
    core = write_core(CoreAnswers("trees", ("imaging",), "clinic", "fl.clinic.example:7443"), folder / "core.toml")
    issue(folder / "certs", ["imaging", "clinic"])
    rows = range(60)
    for name in ("imaging", "clinic"):
        columns = {"patient": [f"p{k}" for k in rows], "size": list(rows), "ill": [k % 2 for k in rows]}
        write_csv(folder / f"{name}.csv", columns, rows)
        label = "ill" if name == "clinic" else None
        write_part(PartAnswers(None, core.path, name, folder / f"{name}.csv", label), folder / f"{name}.toml")
    return folder


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.stem)
def test_what_a_pod_finds_is_what_its_command_reads(file: Path, kit: Path, tmp_path: Path) -> None:
    (pod,) = find_pods(file)
    (container,), (first,) = pod["containers"], pod["initContainers"]
    command, job, _, name, *_ = container["args"]
    secret, certs = tmp_path / "secret", tmp_path / "job" / "certs"
    for folder in (secret, certs):
        folder.mkdir(parents=True)
    for mount in container["volumeMounts"]:
        if "subPath" in mount:
            shutil.copy(kit / mount["subPath"], tmp_path / mount["mountPath"].lstrip("/"))
    for source in ("ca.pem", "revoked.txt", f"{name}.pem", f"{name}.key"):
        shutil.copy(kit / "certs" / source, secret / source)
        (secret / source).chmod(0o440)  # as a mounted secret is, under fsGroup
    own = read_party_view(tmp_path / "job" / job, name)
    shutil.copy(secret / f"{name}.key", certs)
    with pytest.raises(BadCertificate):
        load_credentials(own.certificate_files, name)
    words = [word.replace("/secret", str(secret)).replace("/certs", str(certs)) for word in first["command"]]
    subprocess.run(words, check=True)
    load_credentials(own.certificate_files, name)
    known = {option for parameter in COMMANDS[command].params for option in parameter.opts}
    assert {word for word in container["args"] if word.startswith("--")} <= known


# Slurm ------------------------------------------------------------------------------------------------------------

SBATCH = {
    "job-name",
    "nodes",
    "ntasks",
    "cpus-per-task",
    "mem",
    "time",
    "signal",
    "requeue",
    "open-mode",
    "output",
    "array",
}


@pytest.mark.parametrize("file", SLURM, ids=lambda file: file.stem)
def test_scripts_are_bash_with_directives_first(file: Path) -> None:
    subprocess.run(["bash", "-n", file], check=True)
    lines = file.read_text().splitlines()
    directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert lines[0] == "#!/bin/bash"
    assert not [line for line in lines[: directives[-1]] if not line.startswith("#")]  # sbatch reads no further
    for number in directives:
        found = re.fullmatch(r"#SBATCH --([a-z-]+)(=\S+)?", lines[number])
        assert found is not None, lines[number]
        assert found[1] in SBATCH


def run_script(
    folder: Path, file: str, ending: str, stop: bool = False, **variables: str
) -> tuple[int, list[str], str]:
    """The script with a `thinwire` and an `scontrol` of ours: its exit code, the requeued jobs, and the command."""
    for name, text in {
        "thinwire": f'echo "$@" > asked; trap "sleep 0.2; exit 130" TERM; touch up; {ending}',
        "scontrol": 'echo "$@" >> requeued',
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **variables}
    running = subprocess.Popen(["bash", ROOT / "deploy" / "slurm" / file], cwd=folder, env=environment)
    while stop and not (folder / "up").exists():
        time.sleep(0.01)
    if stop:
        running.send_signal(signal.SIGTERM)
    code = running.wait(timeout=300)
    requeued = folder / "requeued"
    return code, requeued.read_text().split("\n")[:-1] if requeued.exists() else [], (folder / "asked").read_text()


@pytest.mark.parametrize(
    ("ending", "count", "code", "requeued"),
    [("exit 0", "0", 0, []), ("exit 1", "0", 1, ["requeue 7"]), ("exit 1", "20", 1, []), ("exit 2", "0", 2, [])],
)
def test_slurm_starts_again_what_can_resume(
    ending: str, count: str, code: int, requeued: list[str], tmp_path: Path
) -> None:
    found = run_script(tmp_path, "party.sbatch", ending, PARTY="imaging", SLURM_RESTART_COUNT=count)
    assert found == (code, requeued, "party imaging.toml --name imaging\n")


def test_slurm_waits_for_the_checkpoint_when_time_is_up(tmp_path: Path) -> None:
    ending = "while true; do sleep 0.05; done"
    code, requeued, _ = run_script(tmp_path, "party.sbatch", ending, stop=True, PARTY="imaging")
    assert (code, requeued) == (130, ["requeue 7"])


def test_slurm_scores_one_shard_a_task(tmp_path: Path) -> None:
    given = {"RUN": "runs/job-1", "OUT": "scores.parquet", "SLURM_ARRAY_TASK_ID": "3"}
    _, _, command = run_script(tmp_path, "predict.sbatch", "exit 0", False, **given)
    assert command == "predict runs/job-1 --out scores.parquet --shard 3/16 --resume\n"
    assert "#SBATCH --array=1-16\n" in (ROOT / "deploy" / "slurm" / "predict.sbatch").read_text()
