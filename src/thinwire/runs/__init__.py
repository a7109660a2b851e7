"""A run directory: the resolved job, events, ledger, models, checkpoints, and what only its party may know."""

from thinwire.runs.charges import ChargeLog
from thinwire.runs.checkpoints import CheckpointFailed, Checkpoints, Loaded
from thinwire.runs.directory import RunDirectory
from thinwire.runs.folder_lock import AlreadyRunning, FolderLock, TakenOver
from thinwire.runs.private_state import PrivateState, Replaced

__all__ = [
    "AlreadyRunning",
    "ChargeLog",
    "CheckpointFailed",
    "Checkpoints",
    "FolderLock",
    "Loaded",
    "PrivateState",
    "Replaced",
    "RunDirectory",
    "TakenOver",
]
