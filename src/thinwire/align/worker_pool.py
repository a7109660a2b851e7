"""Workers that compute while the program talks to its peers.

libsodium runs outside of Python's lock, so threads share the cores as well as processes do, and need neither copies
nor a guarded main module. Beyond eight the lock is passed on too often; there, processes take over, which are
spawned: a process that speaks gRPC must not be forked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context

from thinwire.align.group import POINT_SIZE, InvalidPoint, blind_ids, compute_tags
from thinwire.align.protocol import WorkersFailed
from thinwire.base.errors import BadParameter

MOST_THREADS = 8
_PIECE = 512  # ids a task: some 30 ms


class Work:
    """Bytes that are being computed, in pieces."""

    def __init__(self, pieces: Sequence[Future[bytes]]) -> None:
        self._pieces = pieces

    def result(self) -> bytes:
        """All pieces in order; waits for them. Raises InvalidPoint with the place among all."""
        found = []
        for number, piece in enumerate(self._pieces):
            try:
                found.append(piece.result())
            except InvalidPoint as error:
                raise InvalidPoint(number * _PIECE + error.place) from None
            except BrokenProcessPool:
                raise WorkersFailed(
                    f"a worker process ended. A script that starts more than {MOST_THREADS} workers must do so below "
                    '`if __name__ == "__main__":`; otherwise look for missing memory, or ask for fewer workers'
                ) from None
        return b"".join(found)


class WorkerPool:
    """Hands out pieces of work; its executor computes them in any order."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def blind(self, texts: Sequence[bytes], key: bytes) -> Work:
        """Ids to points under a key."""
        starts = range(0, len(texts), _PIECE)
        return Work([self._executor.submit(blind_ids, texts[at : at + _PIECE], key) for at in starts])

    def tag(self, points: bytes, key: bytes, size: int) -> Work:
        """A peer's points under a key of ours, shortened."""
        length = _PIECE * POINT_SIZE
        starts = range(0, len(points), length)
        return Work([self._executor.submit(compute_tags, points[at : at + length], key, size) for at in starts])


@contextmanager
def open_worker_pool(workers: int | None = None) -> Iterator[WorkerPool]:
    """So many workers; None: one for each core this process may use, up to eight."""
    if workers is None:
        workers = min(_cores(), MOST_THREADS)
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= 1024:
        raise BadParameter(f"workers must be a whole number from 1 to 1024, got {workers!r}")
    if workers <= MOST_THREADS:
        executor: Executor = ThreadPoolExecutor(workers, thread_name_prefix="align")
    else:
        executor = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield WorkerPool(executor)
    finally:
        executor.shutdown(cancel_futures=True)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
