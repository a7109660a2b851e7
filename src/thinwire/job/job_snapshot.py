"""The job beside its run: what was asked for, and a digest of the data it was asked of."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from pydantic import ValidationError
from torch import Tensor

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.streams import release_pages
from thinwire.job.job import Job
from thinwire.job.job_loader import LabelData
from thinwire.job.messages import explain_problems
from thinwire.job.schema import RetentionSection
from thinwire.storage import layout
from thinwire.storage.atomic_file import make_folder, replace_file
from thinwire.storage.encrypted_files import Files
from thinwire.storage.encryption_key import begin_files
from thinwire.storage.json_file import dump_indented_json, parse_object
from thinwire.storage.retention import Retention, holds_run

_PIECE = 65_536  # rows

# A run may go on for longer, on another device, or to another goal; all else makes it another run.
_MAY_CHANGE = {
    "job.epochs",
    "job.device",
    "job.memory_limit_mb",
    "job.scratch",
    "job.target",
    "job.stop",
    "job.patience",
    "job.deliver",
    "job.split.evaluate",
    "job.byte_budget",
    "job.link_seconds_budget",
    "job.diagnostics",
    "job.baselines",
    "job.importance",
    "job.column_importance",
    "network",
    "serve",
    "retention",
    "encryption",
}
# Files may have moved: what is in them is compared by digest. Certificates expire.
_MAY_CHANGE_AT_A_PARTY = re.compile(
    r"(party\.[^.]+|label_party)\."
    r"((test_)?(features|labels|ids)\.(file|sql|connection)|certificate|certificate_name|key|authority|revoked|approved|"
    r"parallel|serve(\..+)?)"
)


def save_job(folder: Path, text: str, job: Job) -> None:
    """Writes job.toml and data.json; refuses a folder that holds a run."""
    save_text(folder, text, digest_data(job))


def require_same_job(folder: Path, text: str, job: Job) -> None:
    """Is this the job, and the data, that the run in the folder began with? Killed before it was noted, it begins."""
    half_begun = (folder / layout.DATA).exists() and not (folder / layout.JOB).exists()
    (save_text if half_begun else require_same_text)(folder, text, digest_data(job))


def save_text(folder: Path, text: str, digests: Mapping[str, str]) -> None:
    """The same for any resolved job text, and the digests of whatever data one party holds."""
    if holds_run(folder):
        raise BadInput(f"{folder} already holds a run; resume it with --resume, or use a different --out")
    try:
        make_folder(folder)
        files = _files(folder, text)
        files.replace(folder / layout.DATA, dump_indented_json(dict(digests)))
        replace_file(folder / layout.JOB, text.encode())
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}") from None


def require_same_text(folder: Path, text: str, digests: Mapping[str, str]) -> None:
    """The same for any resolved job text, and the digests of whatever data one party holds."""
    try:
        before = _flat(tomllib.loads((folder / layout.JOB).read_text()))
        known = parse_object(_files(folder, text).read(folder / layout.DATA)) or {}
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} holds no run to resume: {error}") from None
    now = _flat(tomllib.loads(text))
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path) and not _may_change(path):
            raise BadInput(
                f"{path} is {now.get(path)!r}, but the run in {folder} began with {before.get(path)!r}; use the "
                "same job, or a different --out"
            )
    for name, digest in digests.items():
        if known.get(name) != digest:
            raise BadInput(f"{name} has changed since the run in {folder} began; restore the data it started with")


def _files(folder: Path, text: str) -> Files:
    """Encrypted from the start, where the job names a key."""
    section = tomllib.loads(text).get("encryption")
    return begin_files(folder, None if section is None else Path(section["key"]))


def _may_change(path: str) -> bool:
    free = any(path == name or path.startswith(f"{name}.") for name in _MAY_CHANGE)
    return free or _MAY_CHANGE_AT_A_PARTY.fullmatch(path) is not None


def digest_data(job: Job) -> dict[str, str]:
    """One digest for each party's features and labels."""
    return {key: digest for one in job.everyone for key, digest in digest_tables(one.name, one).items()}


def digest_tables(name: PartyName, data: FeatureParty | LabelParty | LabelData) -> dict[str, str]:
    """One digest for each table of one party."""
    kinds = ("", "validation_", "test_")
    fields = [f"{kind}{what}" for what in ("features", "labels") for kind in kinds]
    tables = {field: getattr(data, field, None) for field in fields}
    tables |= {f"{kind}group": getattr(data, f"{kind}group", None) for kind in kinds}
    for party, groups in (data.owners if isinstance(data, LabelData) else {}).items():
        tables |= {f"owners at {party}": groups.training.index}
    return {f"{name}.{field}": _digest(table) for field, table in tables.items() if isinstance(table, Tensor)}


def _digest(tensor: Tensor) -> str:
    return digest_pieces(tensor.dtype, tuple(tensor.shape), tensor.split(_PIECE))


def digest_pieces(dtype: torch.dtype, shape: tuple[int, ...], pieces: Iterable[Tensor]) -> str:
    """Of a table that need not be in memory: its rows in order, some at a time."""
    digest = xxhash.xxh3_128(f"{dtype} {shape}".encode())
    for piece in pieces:
        digest.update(piece.reshape(-1).numpy().data)
        release_pages(piece)
    return digest.hexdigest()


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


def read_retention(run: Path) -> Retention:
    """Of the run in this folder; no rules where its job has none, or where there is no job file."""
    path = run / layout.JOB
    if not path.exists():
        return Retention()
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    try:
        section = RetentionSection.model_validate(document.get("retention", {}))
    except ValidationError as error:
        raise explain_problems(error, document, ("retention",)).within(str(path)) from None
    return Retention(**section.model_dump())
