"""One process at a time in a party's folder."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from thinwire.base.errors import BadInput
from thinwire.storage import layout
from thinwire.storage.atomic_file import make_folder, map_write_errors, open_descriptor

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class AlreadyRunning(BadInput):
    """Another process works in this folder."""


class FolderLock:
    """A lock on the file `lock`, which holds the process's number; it ends with the process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / layout.LOCK
        self._descriptor = -1

    def acquire(self) -> int | None:
        """The stopped process that held the lock, if any; when it wakes up, `still_mine` is false there."""
        with map_write_errors(self._path):
            make_folder(self._path.parent)
            return self._acquire()

    def still_mine(self) -> bool:
        """False: another process has put a lock file of its own in place of ours."""
        return self._descriptor >= 0 and _is_at(self._path, self._descriptor)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self) -> int | None:
        while True:
            descriptor = os.open(self._path, _FLAGS, 0o600)
            if _locked(descriptor):
                if _is_at(self._path, descriptor):
                    self._hold(descriptor)
                    return None
                os.close(descriptor)  # replaced between the two calls
                continue
            try:
                return self._take_over(descriptor)
            finally:
                os.close(descriptor)

    def _take_over(self, held: int) -> int:
        """From a stopped holder only. The guard lets one process at a time try."""
        text = os.pread(held, 32, 0).strip()
        pid = int(text) if text.isdigit() else None
        name = "process unknown" if pid is None else f"process {pid}"
        running = AlreadyRunning(f"{self._path.parent}: a run is under way here already ({name}); stop it first")
        with open_descriptor(self._path.with_name(layout.LOCK_GUARD), _FLAGS) as guard:
            if pid is None or not _is_stopped(pid) or not _locked(guard) or not _is_at(self._path, held):
                raise running
            fresh = self._path.with_name(f"lock.{secrets.token_hex(4)}")
            descriptor = os.open(fresh, _FLAGS | os.O_EXCL, 0o600)
            _locked(descriptor)
            self._hold(descriptor)
            os.replace(fresh, self._path)
        return pid

    def _hold(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self.release()
        self._descriptor = descriptor


def is_in_use(folder: Path) -> bool:
    """Whether a process works there now; looks, and leaves no trace."""
    try:
        descriptor = os.open(folder / layout.LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _is_stopped(pid: int) -> bool:
    """By SIGSTOP; known on Linux only."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] == "T"  # the name before it may hold anything
