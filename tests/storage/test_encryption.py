"""Encrypted run folders: nothing of rows, values or weights is readable, and with the key all goes on as before."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

import thinwire as tw
from cli.conftest import here  # noqa: F401
from job.small import JOB, ROWS, write_job
from thinwire.base.errors import BadInput, BadParameter
from thinwire.job.job_loader import load_job
from thinwire.lab.attacks import audit_run
from thinwire.predict.model_store import load_model
from thinwire.report.folder import read_run
from thinwire.storage.encrypted_files import DamagedFile
from thinwire.storage.encryption_key import BadKey, begin_files, new_key, open_folder
from thinwire.storage.private_state import PrivateState
from thinwire.storage.retention import Retention, clean
from thinwire.training.erase import erase_rows
from training.party.parties import Shape, made, ran

Here = Callable[..., subprocess.CompletedProcess[str]]
MARK = b"TWREST1"
ENCRYPTED = ['encryption.key="run.key"', "network.checkpoint_seconds=0.001"]  # settings
NOW = datetime(2099, 1, 1, tzinfo=UTC)
TOWNS = ("Appingedam", "Bredevoort", "Culemborg")
ILL = ("poorly-off", "well-to-do")

ENCRYPTED_JOB = (
    JOB.replace('columns = ["age", "visits"]', 'columns = ["age", "town"]')
    .replace('name = "linear", width = 4 }', 'name = "linear", width = 4 }\nprepare = {}')
    .replace('column = "ill" }\ntest', 'column = "ill", task = "binary" }\ntest')
    + '\n[encryption]\nkey = "run.key"\n'
)


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THINWIRE_KEY", raising=False)


def write_encrypted_job(folder: Path) -> Path:
    """The small job with words for towns and for labels, and a key."""
    path = write_job(folder, ENCRYPTED_JOB)
    for name in ("", "_test"):
        ages = np.loadtxt(folder / f"shop{name}.csv", delimiter=",", skiprows=1)[:, 0]
        ill = np.loadtxt(folder / f"clinic{name}.csv", skiprows=1).astype(int)
        lines = [f"{age:.6f},{TOWNS[row % 3]}" for row, age in enumerate(ages)]
        (folder / f"shop{name}.csv").write_text("\n".join(["age,town", *lines]) + "\n")
        (folder / f"clinic{name}.csv").write_text("\n".join(["ill", *(ILL[one] for one in ill)]) + "\n")
    new_key(folder / "run.key")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job's folder with an encrypted run in it, made as the command makes it."""
    from processes import run as command

    folder = tmp_path_factory.mktemp("trained")
    write_encrypted_job(folder)
    shown = command("train", "job.toml", "--out", "run", folder=folder)
    assert shown.returncode == 0, shown.stderr
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, whose key is `run.key` beside it."""
    shutil.copytree(trained / "run", tmp_path / "run")
    shutil.copy2(trained / "run.key", tmp_path / "run.key")
    begin_files(tmp_path / "run", tmp_path / "run.key")
    return tmp_path / "run"


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)


def names(folder: Path, encrypted: bool) -> set[str]:
    """Of the files that are, or are not; generations of checkpoints and segments of logs are one."""
    found = {path.relative_to(folder) for path in files_in(folder) if path.read_bytes().startswith(MARK) == encrypted}
    return {f"{one.parts[0]}/{one.name if one.suffix != '.log' else one.parts[-2]}" for one in found}


def require_unreadable(folder: Path, secrets: dict[str, bytes]) -> None:
    for path in files_in(folder):
        data = path.read_bytes()
        for what, secret in secrets.items():
            assert secret not in data, f"{path} holds {what}"


def weights_in(run: Path) -> dict[str, bytes]:
    """Of every model, as files hold them."""
    from safetensors.torch import load

    found = {}
    for path in (run / "models").glob("*.safetensors"):
        for name, tensor in load(open_folder(run).read(path)).items():
            found[f"{path.stem}.{name}"] = tensor.numpy().tobytes()
    return {name: data for name, data in found.items() if len(data) >= 8}


def secrets_of(run: Path) -> dict[str, bytes]:
    private = PrivateState.open(run)
    return {
        **weights_in(run),
        "the noise secret": private.noise_secret.hex().encode(),
        "the MAC's key": private.mac_key.hex().encode(),
    }


# What is encrypted ------------------------------------------------------------------------------------------------


def test_nothing_of_rows_values_or_weights_is_readable(trained: Path) -> None:
    run = trained / "run"
    bank = np.load(trained / "bank.npz")["x"]
    rows = {f"row {row} of bank": bank[row].astype(kind).tobytes() for row in range(ROWS) for kind in ("f4", "f8")}
    words = {word: word.encode() for word in (*TOWNS, *ILL)}
    digests = {f"the digest of {name}": one.encode() for name, one in read_run(run).digests.items()}
    assert len(digests) == 6
    assert len(weights_in(run)) == 8
    require_unreadable(run, {**rows, **words, **digests, **secrets_of(run)})


def test_the_files_that_the_documents_list_are_encrypted_and_no_others(trained: Path) -> None:
    assert names(trained / "run", encrypted=True) == {
        "data.json/data.json",
        "private.json/private.json",
        "quality.json/quality.json",
        "models/bank.safetensors",
        "models/shop.safetensors",
        "models/shop.preparation.json",
        "models/clinic.labels.json",
        "models/top.safetensors",
        "checkpoints/manifest",
        "checkpoints/state.json",
        "checkpoints/bank.safetensors",
        "checkpoints/shop.safetensors",
        "checkpoints/clinic.safetensors",
    }
    readable = {name.partition("/")[0] for name in names(trained / "run", encrypted=False)}
    assert readable == {
        "about.json",
        "encryption.json",
        "events.jsonl",
        "job.toml",
        "ledger.json",
        "lock",
        "model.json",
        "pulse.json",
        "recipe.json",
        "report.html",
        "result.json",
        "run.json",
        "timeline.jsonl",
    }


def test_a_run_over_the_network_is_encrypted_and_comes_out_the_same(tmp_path: Path) -> None:
    shape = Shape({"method": "celu", "capacity": 2, "reuse": 2, "overlap": True}, ids=True)
    readable = ran(made(tmp_path / "readable", shape))
    place = made(tmp_path / "place", shape)
    new_key(place.folder / "run.key")
    encrypted = ran(place, settings=ENCRYPTED)
    assert {name: one["digest"] for name, one in encrypted.items()} == {
        name: one["digest"] for name, one in readable.items()
    }
    ids = {str(one): str(one).encode() for one in np.load(place.folder / "bank.npz")["id"]}
    for name in place.names:
        require_unreadable(place.out(name), {**ids, **secrets_of(place.out(name))})
        closed = names(place.out(name), encrypted=True)
        peers = ["clinic"] if name != "clinic" else list(place.feature_parties)
        assert {*(f"sent/{peer}" for peer in peers), "private.json/private.json", "data.json/data.json"} <= closed
        parts = {one.partition("/")[0] for one in names(place.out(name), encrypted=False)}
        assert not parts & {"models", "checkpoints", "sent", "answers"}


def test_charges_of_a_run_with_noise_are_encrypted(tmp_path: Path) -> None:
    shape = Shape({"method": "pbm", "trials": 8, "beta": 0.2}, job={"training": "frozen"}, parties=3)
    place = made(tmp_path, shape)
    new_key(place.folder / "run.key")
    ran(place, settings=ENCRYPTED)
    assert "charges.jsonl/charges.jsonl" in names(place.out("bank"), encrypted=True)


def test_without_a_key_no_file_is_encrypted(tmp_path: Path) -> None:
    tw.train(load_job(write_job(tmp_path)), callbacks=[], out=tmp_path / "run")
    assert names(tmp_path / "run", encrypted=True) == set()
    assert not (tmp_path / "run" / "encryption.json").exists()


# With the key, as before ------------------------------------------------------------------------------------------


def test_encryption_changes_no_result(tmp_path: Path) -> None:
    job = write_encrypted_job(tmp_path)
    tw.train(load_job(job), callbacks=[], out=tmp_path / "encrypted")
    readable = load_job(job)
    readable.encryption_key = None
    tw.train(readable, callbacks=[], out=tmp_path / "readable")
    assert weights_in(tmp_path / "encrypted") == weights_in(tmp_path / "readable")
    for name in ("shop.preparation.json", "clinic.labels.json"):
        written = (tmp_path / "readable" / "models" / name).read_bytes()
        assert open_folder(tmp_path / "encrypted").read(tmp_path / "encrypted" / "models" / name) == written


def test_a_resumed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    job = write_encrypted_job(tmp_path)
    tw.train(load_job(job, ["job.epochs=1"]), callbacks=[], out=tmp_path / "resumed")
    tw.train(load_job(job), callbacks=[], out=tmp_path / "resumed", resume=True)
    tw.train(load_job(job), callbacks=[], out=tmp_path / "whole")
    assert weights_in(tmp_path / "resumed") == weights_in(tmp_path / "whole")


def test_the_run_opens_for_every_use(run: Path, tmp_path: Path) -> None:
    loaded = tw.load_run(run)
    assert loaded.job is not None
    features = {party.name: party.features for party in loaded.job.parties}
    assert torch.isfinite(loaded.predict(features)).all()
    loaded.export("exported-program", tmp_path / "exported")
    assert b"Bredevoort" in (tmp_path / "exported" / "shop.preparation.json").read_bytes()
    assert read_run(run).quality is not None
    taken = load_job(run / "job.toml").start_from(run, optimizers=True)
    assert taken.taken == ("bank", "shop", "top")
    assert set(taken.memories) == {"bank", "shop", "top"}
    assert audit_run(run, rows=50).findings
    assert clean(run, Retention(checkpoints_count=1), NOW).removed
    assert erase_rows(run, rows=[3]).removed
    assert erase_rows(run, rows=[4]).rows == [4]
    assert (run / "forgotten.jsonl").read_bytes().startswith(MARK)
    assert b'"rows": [3]' in open_folder(run).read(run / "forgotten.jsonl")


def test_a_run_from_python_is_encrypted_with_its_jobs_key(tmp_path: Path) -> None:
    new_key(tmp_path / "run.key")
    job = load_job(write_job(tmp_path))
    job.encryption_key = tmp_path / "run.key"
    tw.train(job, callbacks=[], out=tmp_path / "run")
    assert "models/top.safetensors" in names(tmp_path / "run", encrypted=True)
    modules = {name: torch.nn.Linear(1, 1) for name in ("bank", "shop", "top")}
    with pytest.raises(BadInput, match="does not hold this job's model"):
        load_model(tmp_path / "run", "top", modules["top"])


# Refused ----------------------------------------------------------------------------------------------------------

USES: dict[str, Callable[[Path], object]] = {
    "load_run": tw.load_run,
    "resume": lambda run: tw.train(load_job(run / "job.toml"), callbacks=[], out=run, resume=True),
    "from": lambda run: load_job(run / "job.toml").start_from(run),
    "report": read_run,
    "audit": audit_run,
    "forget": lambda run: erase_rows(run, rows=[3]),
    "clean": lambda run: clean(run, Retention(checkpoints_days=0), NOW),
}
NEEDED_BY: dict[str, Callable[[Path], object]] = {
    "models/top.safetensors": tw.load_run,
    "models/clinic.labels.json": lambda run: tw.load_run(run).outputs,
    "private.json": USES["clean"],
    "data.json": USES["report"],
}


def without_key(run: Path) -> Path:
    """The job in the folder names a key too, and both are gone."""
    text = (run / "job.toml").read_text()
    (run / "job.toml").write_text(
        "\n".join(f'key = "{run.parent}/run.key"' if "run.key" in line else line for line in text.splitlines())
    )
    (run.parent / "run.key").unlink()
    return run


@pytest.mark.parametrize("use", USES)
def test_without_its_key_the_run_is_refused(run: Path, use: str) -> None:
    without_key(run)
    before = {path: path.read_bytes() for path in files_in(run) if path.name != "lock"}
    with pytest.raises(BadKey, match="is encrypted, and its key is not there"):
        USES[use](run)
    assert {path: path.read_bytes() for path in files_in(run) if path.name != "lock"} == before


@pytest.mark.parametrize("use", USES)
def test_with_another_key_the_run_is_refused(run: Path, use: str) -> None:
    new_key(without_key(run).parent / "run.key")
    with pytest.raises(BadKey, match="is encrypted with another key"):
        USES[use](run)


def test_the_command_ends_with_2_and_the_way_out(run: Path, here: Here) -> None:  # noqa: F811
    without_key(run)
    shown = here("predict", "run", "--out", "scores.csv", folder=run.parent)
    assert shown.returncode == 2
    assert shown.stderr.count("\n") == 1
    assert "THINWIRE_KEY=FILE [bad-key]" in shown.stderr
    shown = here("report", "run", folder=run.parent)
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("damage", [flipped, lambda data: data[:-20], lambda _: b"", lambda _: b"{}"])
@pytest.mark.parametrize("name", NEEDED_BY)
def test_a_damaged_file_is_named_and_not_used(run: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    (run / name).write_bytes(damage((run / name).read_bytes()))
    with pytest.raises(DamagedFile, match=f"{name} is .*; restore the run folder from a backup"):
        NEEDED_BY[name](run)


def test_files_that_change_places_are_noticed(run: Path) -> None:
    top, bank = run / "models" / "top.safetensors", run / "models" / "bank.safetensors"
    top.rename(run / "aside")
    bank.rename(top)
    (run / "aside").rename(bank)
    with pytest.raises(DamagedFile, match="from another path or run"):
        tw.load_run(run)


def test_a_damaged_checkpoint_is_left_for_the_one_before(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    newest = max((run / "checkpoints").iterdir())
    state = newest / "bank.safetensors"
    state.write_bytes(flipped(state.read_bytes()))
    tw.train(load_job(run / "job.toml"), callbacks=[], out=run, resume=True)
    assert "bank.safetensors is damaged" in caplog.text
    assert "fell back to generation" in caplog.text


def test_without_its_marker_the_folder_is_refused_and_not_taken_for_a_readable_one(run: Path) -> None:
    (run / "encryption.json").unlink()
    for use in USES.values():
        with pytest.raises(DamagedFile, match=r"is encrypted, and encryption\.json, which describes how, is missing"):
            use(run)


def test_a_report_is_not_put_into_an_encrypted_run_unasked(run: Path, here: Here) -> None:  # noqa: F811
    shown = here("report", "run", folder=run.parent)
    assert shown.returncode == 2
    assert "is encrypted, but a report is not; name the file to write it to: --out FILE" in shown.stderr
    assert here("report", "run", "--out", "seen.html", folder=run.parent).returncode == 0
    assert ILL[0] in (run.parent / "seen.html").read_text()
    assert ILL[0] not in (run / "report.html").read_text()


# Files for lack of memory -----------------------------------------------------------------------------------------


def test_what_does_not_fit_into_memory_goes_to_no_file_that_nobody_named(tmp_path: Path) -> None:
    job = write_encrypted_job(tmp_path)
    little = "job.memory_limit_mb=0"
    with pytest.raises(
        BadParameter, match=r"this run is encrypted, .* are not\. Raise the limit, or set job\.scratch"
    ):
        tw.train(load_job(job, [little]), callbacks=[], out=tmp_path / "refused")
    (tmp_path / "scratch").mkdir()
    tw.train(load_job(job, [little, 'job.scratch="scratch"']), callbacks=[], out=tmp_path / "spilled")
    tw.train(load_job(job), callbacks=[], out=tmp_path / "held")
    assert weights_in(tmp_path / "spilled") == weights_in(tmp_path / "held")


# The command that makes keys ----------------------------------------------------------------------------------------


def test_a_key_is_made_by_a_command(tmp_path: Path, here: Here) -> None:  # noqa: F811
    shown = here("key", "run.key", "--json", folder=tmp_path)
    assert (shown.returncode, json.loads(shown.stdout)) == (0, {"key": "run.key"})
    assert (tmp_path / "run.key").stat().st_mode & 0o777 == 0o600
    shown = here("key", "run.key", folder=tmp_path)
    assert shown.returncode == 2
    assert "already exists" in shown.stderr
