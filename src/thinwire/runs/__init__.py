"""A run directory: the resolved job, events, ledger, models, checkpoints, and what only its party may know."""

from thinwire.runs.checkpoints import CheckpointFailed, Checkpoints, Loaded
from thinwire.runs.folder_lock import AlreadyRunning, FolderLock, TakenOver
from thinwire.runs.private_state import ChargeLog, PrivateState, Replaced
from thinwire.runs.run_directory import RunDirectory
from thinwire.runs.run_facts import Earlier, RunFacts, read_facts, require_readable, write_facts

__all__ = [
    "AlreadyRunning",
    "ChargeLog",
    "CheckpointFailed",
    "Checkpoints",
    "Earlier",
    "FolderLock",
    "Loaded",
    "PrivateState",
    "Replaced",
    "RunDirectory",
    "RunFacts",
    "TakenOver",
    "read_facts",
    "require_readable",
    "write_facts",
]
