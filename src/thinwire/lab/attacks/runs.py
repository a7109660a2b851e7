"""The audit of a run folder: its job, its data, its models as they began and as they ended."""

from __future__ import annotations

import tomllib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from thinwire.base.errors import BadInput
from thinwire.job.job_loader import load_job
from thinwire.job.job_snapshot import digest_data, require_same_text
from thinwire.lab.attacks.auditing import audit_job
from thinwire.lab.attacks.finding import AuditReport
from thinwire.lab.attacks.listening import heard, with_own_modules
from thinwire.storage import layout
from thinwire.storage.encrypted_files import Files
from thinwire.storage.encryption_key import files_of


def audit_run(folder: str | Path, rows: int = 2000, replay: bool = False) -> AuditReport:
    """Runs the leakage attacks that apply against a finished run, on so many of its training rows.

    `replay=True` trains it once more and attacks what the feature parties have heard in all its rounds together.
    """
    folder = Path(folder)
    if not (folder / layout.JOB).is_file():
        raise BadInput(
            f"{folder} is no run folder: it holds no job.toml. Give the folder that `thinwire train` named; "
            "a job of your own Python is audited with thinwire.audit.audit_job(job)"
        )
    _require_all_parties(folder)
    job = load_job(folder / layout.JOB)
    require_same_text(folder, (folder / layout.JOB).read_text(), digest_data(job))
    begun = with_own_modules(job)
    for name, module in job.modules().items():
        _load(layout.model_file(folder, name), module, files_of(folder))
    return audit_job(job, begun, rows, heard(begun) if replay else None)


def _require_all_parties(folder: Path) -> None:
    """A party of a run over the network keeps its own part only."""
    try:
        parties = tomllib.loads((folder / layout.JOB).read_text()).get("party", [])
    except (OSError, ValueError):
        return  # reading it as a job says what is wrong
    absent = [str(party.get("name")) for party in parties if isinstance(party, dict) and "features" not in party]
    if absent:
        raise BadInput(
            f"{folder} holds one party's part of a run over the network, without the data of {', '.join(absent)}; an "
            "audit plays all parties. Audit the same job trained in one process: thinwire train, on data of your own"
        )


def _load(path: Path, module: nn.Module, files: Files) -> None:
    try:
        module.load_state_dict(load(files.read(path)))
    except FileNotFoundError:
        raise BadInput(
            f"{path} is missing: the run has not ended. Go on with it: thinwire train ... --resume"
        ) from None
    except (SafetensorError, RuntimeError, OSError) as error:
        raise BadInput(f"{path} does not hold this job's model: {error}") from None
