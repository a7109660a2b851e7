"""One process at a time; a stopped one is replaced and knows it when it wakes up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from thinwire.storage.atomic_file import WriteFailed
from thinwire.storage.folder_lock import AlreadyRunning, FolderLock

HOLDER = """
import sys
from pathlib import Path
from thinwire.storage.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
for line in sys.stdin:
    print(lock.still_mine(), flush=True)
"""


class Holder:
    """Another process that holds the lock."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "None\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def thinks_the_lock_is_its_own(self) -> bool:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == "True\n"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        until = monotonic() + 5
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert monotonic() < until
            sleep(0.01)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path)
    yield made
    made.kill()


def test_a_running_process_keeps_others_out_until_it_is_gone(tmp_path: Path, holder: Holder) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(AlreadyRunning, match=rf"under way here already \(process {holder.pid}\); stop it first"):
        lock.acquire()
    assert not lock.still_mine()
    assert holder.thinks_the_lock_is_its_own()
    holder.kill()
    assert lock.acquire() is None
    assert lock.still_mine()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that a process is stopped")
def test_a_stopped_process_is_replaced_and_knows_it(tmp_path: Path, holder: Holder) -> None:
    holder.stop()
    lock, third = FolderLock(tmp_path), FolderLock(tmp_path)
    assert lock.acquire() == holder.pid
    assert lock.still_mine()
    holder.wake()
    assert not holder.thinks_the_lock_is_its_own()
    with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"):
        third.acquire()
    holder.kill()
    assert lock.still_mine()
    lock.release()
    assert not lock.still_mine()
    assert third.acquire() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "lock.guard"]


def test_a_lock_can_be_taken_again_after_its_release(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "new")
    for _ in range(2):
        assert lock.acquire() is None
        assert (tmp_path / "new" / "lock").read_text() == f"{os.getpid()}\n"
        lock.release()


def test_a_holder_without_a_number_is_not_replaced(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    (tmp_path / "lock").write_text("")
    with pytest.raises(AlreadyRunning, match="process unknown"):
        FolderLock(tmp_path).acquire()


def test_a_lock_file_that_was_removed_is_no_longer_ours(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    (tmp_path / "lock").unlink()
    assert not lock.still_mine()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteFailed, match="Not a directory"):
        FolderLock(tmp_path / "file" / "run").acquire()
