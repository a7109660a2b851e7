"""A run directory: the resolved job, events, ledger, models, checkpoints, and what only its party may know."""

from thinwire.runs.charges import ChargeLog
from thinwire.runs.checkpoints import CheckpointFailed, Checkpoints, Loaded
from thinwire.runs.directory import RunDirectory
from thinwire.runs.earlier import Earlier
from thinwire.runs.facts import RunFacts, read_facts, require_readable, write_facts
from thinwire.runs.folder_lock import AlreadyRunning, FolderLock, TakenOver
from thinwire.runs.private_state import PrivateState, Replaced

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
