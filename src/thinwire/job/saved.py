"""The job beside its run: what was asked for, and a digest of the data it was asked of."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import xxhash
from torch import Tensor

from thinwire.errors import BadInput
from thinwire.job.job import Job
from thinwire.party import FeatureParty, LabelParty

__all__ = ["data_digests", "require_same_job", "save_job"]

# A run may go on for longer, on another device, or to another goal; all else makes it another run.
_MAY_CHANGE = {
    "job.epochs",
    "job.device",
    "job.target",
    "job.stop",
    "job.byte_budget",
    "job.link_seconds_budget",
    "job.diagnostics",
}


def save_job(folder: Path, text: str, job: Job) -> None:
    """Writes job.toml and data.json; refuses a folder that holds a run."""
    if (folder / "events.jsonl").exists():
        raise BadInput(f"{folder} holds a run already; go on with it by --resume, or give another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "job.toml", text)
        _write(folder / "data.json", json.dumps(data_digests(job), indent=2) + "\n")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}") from None


def require_same_job(folder: Path, text: str, job: Job) -> None:
    """Is this the job, and the data, that the run in the folder began with?"""
    try:
        before = _flat(tomllib.loads((folder / "job.toml").read_text()))
        digests = json.loads((folder / "data.json").read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} holds no run to go on with: {error}") from None
    now = _flat(tomllib.loads(text))
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path) and not _may_change(path):
            raise BadInput(
                f"{path} is {now.get(path)!r}, but the run in {folder} began with {before.get(path)!r}; "
                "give the same job, or another --out"
            )
    for name, digest in data_digests(job).items():
        if digests.get(name) != digest:
            raise BadInput(f"{name} has changed since the run in {folder} began; bring back the data it began with")


def _may_change(path: str) -> bool:
    """Files may have moved: what is in them is compared below."""
    free = any(path == name or path.startswith(f"{name}.") for name in _MAY_CHANGE)
    return free or path.endswith(("features.file", "labels.file"))


def data_digests(job: Job) -> dict[str, str]:
    """One digest for each party's features and labels."""
    everyone: list[FeatureParty | LabelParty] = [*job.parties, job.label_party]
    fields = ("features", "test_features", "labels", "test_labels")
    found = {f"{party.name}.{field}": getattr(party, field, None) for party in everyone for field in fields}
    return {name: _digest(tensor) for name, tensor in found.items() if isinstance(tensor, Tensor)}


def _digest(tensor: Tensor) -> str:
    shape = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return xxhash.xxh3_128_hexdigest(shape + tensor.contiguous().numpy().tobytes())


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every leaf by its dotted path; parties by their names."""
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        value = {str(part.get("name", index)): part for index, part in enumerate(value)}
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, part in value.items():
        found |= _flat(part, f"{path}.{key}" if path else key)
    return found


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(text)
    os.replace(temporary, path)
