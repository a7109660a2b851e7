"""The log keeps the exact bytes of every append that returned, whatever happens to the process."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.base.errors import BadInput, BadState
from thinwire.net.links import outgoing_log
from thinwire.net.links.outgoing_log import DamagedLog, LogFailed, OutgoingLog
from thinwire.storage.atomic_file import WriteFailed


class Full(Exception):
    """What `on_full` raises here."""


def refuse(failed: WriteFailed) -> None:
    raise Full(str(failed))


def opened(folder: Path, incarnation: int = 1) -> OutgoingLog:
    return OutgoingLog(folder, incarnation, refuse)


def filled(folder: Path, count: int, incarnation: int = 1) -> OutgoingLog:
    log = opened(folder, incarnation)
    for number in range(log.next_sequence, log.next_sequence + count):
        log.append(number, (content(number),))
    return log


def content(number: int) -> bytes:
    return f"frame {number} ".encode() * 3


def frames_from(log: OutgoingLog, sequence: int) -> Iterator[tuple[int, bytes]]:
    """Each record from this number on, those included that are appended meanwhile."""
    while sequence < log.next_sequence:
        yield sequence, log.read(sequence)
        sequence += 1


def everything(log: OutgoingLog) -> dict[int, bytes]:
    return dict(frames_from(log, log.first_sequence))


def newest(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def test_frames_are_there_after_reopening(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    log.append(5, (b"head", memoryview(b"body"), b""), durable=True)
    log.append(6, ())
    assert (log.first_sequence, log.next_sequence) == (0, 7)
    again = opened(tmp_path, 2)
    assert everything(again) == {**{n: content(n) for n in range(5)}, 5: b"headbody", 6: b""}
    assert 6 in again
    assert 7 not in again
    with pytest.raises(BadInput, match="number 9 is appended, 7 is due"):
        again.append(9, (b"",))
    with pytest.raises(DamagedLog, match="number 7 is asked for, the log holds 0 up to, not including, 7"):
        again.read(7)


def test_many_parts_go_in_one_record(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(0, [bytes([n % 256]) for n in range(3000)])
    assert log.read(0) == bytes(n % 256 for n in range(3000))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(max_size=40)),
        st.tuples(st.just("prune"), st.integers(0, 30)),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=25,
)


@given(steps=steps)
@pytest.mark.long
def test_after_a_crash_at_any_byte_every_earlier_append_is_there(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "log")
        log, incarnation = opened(folder), 1
        model: dict[int, bytes] = {}
        ends: dict[int, tuple[str, int]] = {}  # where each record ends
        for step, value in steps:
            if step == "append":
                number = log.next_sequence
                log.append(number, (value[:7], value[7:]))
                model[number] = value
                ends[number] = (newest(folder).name, newest(folder).stat().st_size)
            elif step == "prune":
                log.prune(value)
                assert all(n in log for n in model if n >= value)
                model = {n: held for n, held in model.items() if n >= log.first_sequence}
            elif step == "roll":
                log.roll()
            else:
                incarnation += 1
                log = opened(folder, incarnation)
            assert log.next_sequence == len(ends)
            assert everything(log) == model
        last = newest(folder)
        for size in range(last.stat().st_size + 1):
            crashed = Path(name, f"crashed-{size}")
            shutil.copytree(folder, crashed)
            os.truncate(crashed / last.name, size)
            after = opened(crashed, incarnation + 1)
            kept = [n for n, (file, end) in ends.items() if file != last.name or end <= size]
            assert after.next_sequence == len(kept)
            assert everything(after) == {n: held for n, held in model.items() if n in kept}
            after.append(len(kept), (b"goes on",))
            assert opened(crashed, incarnation + 2).read(len(kept)) == b"goes on"
            shutil.rmtree(crashed)


def test_the_same_process_may_open_its_log_again(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    os.truncate(newest(tmp_path), newest(tmp_path).stat().st_size - 1)
    for count in range(1, 4):
        assert opened(tmp_path).next_sequence == count
        filled(tmp_path, 1)
    assert everything(opened(tmp_path)) == {n: content(n) for n in range(4)}


def test_kill_9_loses_no_append_that_returned(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from thinwire.net.links.outgoing_log import OutgoingLog\n"
        "log = OutgoingLog(Path(sys.argv[1]), 1, print)\n"
        "for n in range(10**9): log.append(n, (b'%d ' % n * 1000,)); print(n, flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(200):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    told = int((["199", *child.stdout.read().split()])[-1])
    child.stdout.close()
    child.wait()
    log = opened(tmp_path, 2)
    assert log.next_sequence > told
    assert all(held == b"%d " % n * 1000 for n, held in frames_from(log, 0))


# Damage -----------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_anywhere_is_damage_and_never_a_torn_tail(tmp_path: Path) -> None:
    filled(tmp_path / "good", 3)
    whole = newest(tmp_path / "good").read_bytes()
    for index in range(len(whole)):
        for bit in range(8):
            folder = tmp_path / "bad"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            flipped = bytearray(whole)
            flipped[index] ^= 1 << bit
            (folder / "000001-0000000000.log").write_bytes(flipped)
            with pytest.raises(DamagedLog, match=r"000001-0000000000\.log, byte \d+: .*number \d, and .* is lost"):
                opened(folder, 2)


def test_damage_after_opening_is_noticed_on_reading(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    path = newest(tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert log.read(1) == content(1)
    with pytest.raises(DamagedLog, match="number 2 is lost"):
        log.read(2)
    path.unlink()
    with pytest.raises(DamagedLog, match="number 1 cannot be read: No such file"):
        log.read(1)


def test_a_hole_between_segments_names_the_lost_numbers(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.roll()
    for number in range(3, 6):
        log.append(number, (content(number),))
    log.roll()
    log.append(6, (b"",))
    (tmp_path / "000001-0000000003.log").unlink()
    with pytest.raises(DamagedLog, match="numbers 3 to 5 are lost"):
        opened(tmp_path, 2)


def test_records_cut_from_an_older_process_are_missed(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    opened(tmp_path, 2)
    os.truncate(tmp_path / "000001-0000000000.log", 10)
    with pytest.raises(DamagedLog, match="numbers 0 to 2 are lost"):
        opened(tmp_path, 3)


def test_zeros_after_a_power_cut_are_a_torn_tail(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    with newest(tmp_path).open("ab") as file:
        file.write(bytes(4096))
    assert everything(opened(tmp_path, 2)) == {n: content(n) for n in range(3)}


# Replaced processes -----------------------------------------------------------------------------------------------


def test_what_a_replaced_process_still_appends_never_counts(tmp_path: Path) -> None:
    old = filled(tmp_path, 3)
    new = opened(tmp_path, 2)
    new.append(3, (b"new 3",))
    for number in range(3, 8):
        old.append(number, (b"old",))
        old.roll()
    assert everything(opened(tmp_path, 3)) == {**{n: content(n) for n in range(3)}, 3: b"new 3"}


def test_nor_when_the_new_process_has_sent_nothing_yet(tmp_path: Path) -> None:
    old = filled(tmp_path, 3)
    opened(tmp_path, 2)
    old.append(3, (b"old",))
    newest_of_old = tmp_path / "000001-0000000000.log"
    with newest_of_old.open("ab") as file:
        file.write(b"rubbish in the void part")
    assert opened(tmp_path, 3).next_sequence == 3


def test_segments_that_a_replaced_process_began_go_with_the_next_prune(tmp_path: Path) -> None:
    old = filled(tmp_path, 3)
    new = filled(tmp_path, 3, incarnation=2)
    old.roll()
    old.append(3, (b"old",))
    new.roll()
    new.append(6, (b"new",))
    new.prune(6)
    assert [path.name for path in tmp_path.iterdir()] == ["000002-0000000006.log"]


def test_an_older_process_may_not_open_the_log(tmp_path: Path) -> None:
    opened(tmp_path, 5)
    with pytest.raises(BadState, match="process 5 of this run has written here, this is process 4"):
        opened(tmp_path, 4)


# Pruning ----------------------------------------------------------------------------------------------------------


def test_numbers_go_on_after_everything_was_pruned(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.prune(100)
    assert (log.first_sequence, log.next_sequence, log.size_bytes) == (3, 3, 0)
    assert everything(log) == {}
    for incarnation in range(2, 5):
        assert opened(tmp_path, incarnation).next_sequence == 3
    assert len(list(tmp_path.iterdir())) <= 2


def test_only_whole_segments_are_pruned(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.roll()
    for number in range(3, 6):
        log.append(number, (content(number),))
    log.prune(2)
    assert log.first_sequence == 0
    log.prune(4)
    assert log.first_sequence == 3
    assert log.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_segments_roll_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_log, "SEGMENT_SIZE", 80)
    filled(tmp_path, 10)
    assert all(path.stat().st_size <= 80 for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 10
    assert everything(opened(tmp_path, 2)) == {n: content(n) for n in range(10)}


def test_frames_are_read_while_another_thread_appends(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)

    def append() -> None:
        for number in range(1, 1000):
            log.append(number, (content(number),))
            if number % 100 == 0:
                log.roll()
                log.sync()

    thread = Thread(target=append)
    thread.start()
    seen: list[tuple[int, bytes]] = []
    while len(seen) < 1000:
        seen += frames_from(log, len(seen))
    thread.join()
    assert seen == [(n, content(n)) for n in range(1000)]


# A disk that does not take it -------------------------------------------------------------------------------------


class Disk:
    """Takes half of a write, then fails, so often."""

    def __init__(self, failures: int, code: int) -> None:
        self.failures = failures
        self.code = code
        self.halved = False
        self._writev = os.writev

    def writev(self, descriptor: int, parts: Sequence[bytes | memoryview]) -> int:
        if self.failures and self.halved:
            self.failures -= 1
            self.halved = False
            raise OSError(self.code, os.strerror(self.code))
        if self.failures:
            self.halved = True
            data = b"".join(parts)
            return os.write(descriptor, data[: len(data) // 2])
        return self._writev(descriptor, parts)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    asked: list[tuple[Path, int]] = []
    log = OutgoingLog(tmp_path, 1, lambda failed: asked.append((failed.path, failed.bytes_needed)))
    log.append(0, (b"before",))
    size = log.size_bytes
    monkeypatch.setattr(os, "writev", Disk(3, code).writev)
    log.append(1, (b"x" * 1000,))
    assert asked == [(tmp_path / "000001-0000000000.log", 1024)] * 3
    assert log.size_bytes == size + 1024 == newest(tmp_path).stat().st_size
    assert everything(opened(tmp_path, 2)) == {0: b"before", 1: b"x" * 1000}


def test_on_full_may_give_up_and_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 2)
    monkeypatch.setattr(os, "writev", Disk(1, errno.ENOSPC).writev)
    with pytest.raises(Full):
        log.append(2, (b"x" * 100,))
    assert newest(tmp_path).stat().st_size == log.size_bytes
    log.append(2, (b"x" * 100,))
    assert opened(tmp_path, 2).read(2) == b"x" * 100


def test_other_errors_name_path_bytes_and_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 2)
    monkeypatch.setattr(os, "writev", Disk(1, errno.EIO).writev)
    with pytest.raises(LogFailed, match=r"000001-0000000000\.log: could not write 124 bytes: Input/output error"):
        log.append(2, (b"x" * 100,))
    log.append(2, (b"goes on",))
    assert opened(tmp_path, 2).read(2) == b"goes on"


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", lambda descriptor, parts: os.write(descriptor, b"".join(parts)[:3]))
    filled(tmp_path, 3)
    assert everything(opened(tmp_path, 2)) == {n: content(n) for n in range(3)}


def test_sync_costs_nothing_where_nothing_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    log = opened(tmp_path)
    log.sync()
    calls.clear()
    log.sync()
    assert calls == []
    log.append(0, (b"x",))
    assert calls == []
    log.append(1, (b"x",), durable=True)
    assert calls
    calls.clear()
    log.close()
    log.close()
    assert calls == []


def test_a_failed_sync_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 1)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LogFailed, match="Input/output error"):
        log.sync()
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    log.sync()
    assert calls


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogFailed, match="file/log: could not write 0 bytes: Not a directory"):
        opened(tmp_path / "file" / "log")


def test_a_log_that_could_not_go_back_says_so_at_every_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 2)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "writev", fail)
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(LogFailed):
        log.append(2, (content(2),))
    for _ in range(2):
        with pytest.raises(LogFailed, match="Bad file descriptor"):
            log.sync()
