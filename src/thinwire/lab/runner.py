"""Many runs at the same time, each with one thread; and one run's folder, brought to its end.

Sweeps, comparisons, tuning, diagnoses and the papers' experiments all run through here.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_all_start_methods, get_context, synchronize
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from thinwire.base.errors import BadParameter, ThinwireError
from thinwire.base.process import share_memory_pool
from thinwire.storage import layout

if TYPE_CHECKING:
    from thinwire.job.job import Job
    from thinwire.training.callbacks import Callback
    from thinwire.training.result import Result

Item = TypeVar("Item")
Found = TypeVar("Found")
_Signal: TypeAlias = "Event | synchronize.Event"  # of threads or of processes


class WorkerLost(ThinwireError):
    """A process that computed a run died."""


def train_to_end(
    job: Job,
    callbacks: Sequence[Callback] = (),
    out: Path | None = None,
    resume: bool = False,
    on_round: Callable[[int], None] | None = None,
) -> Result:
    """As `train`, without baselines and importance; Ctrl-C raises KeyboardInterrupt once the round has ended.

    Many runs of one job share their baselines, and compare themselves with each other.
    """
    from thinwire.training.train import train

    if job.baselines or job.settings.measures_importance:
        job = replace(job, baselines=False, importance=False, column_importance=False)
    result = train(job, list(callbacks), out=out, resume=resume, on_round=on_round)
    if result.interrupted:
        raise KeyboardInterrupt
    return result


def can_resume(folder: Path) -> bool:
    """Is there a checkpoint? What a run left that was killed before its first one is cleared away."""
    if any((folder / layout.CHECKPOINTS).glob("*")):
        return True
    if folder.exists():
        shutil.rmtree(folder)
    return False


def run_each(
    work: Callable[[Item], Found], items: Sequence[Item], workers: int = 2, executor: str = "processes"
) -> Iterator[tuple[Item, Found]]:
    """work(item) for every item, in the order in which they end; each with one thread.

    `work` and the items must be known to other processes: a function of a module, plain values. On Ctrl-C whatever
    runs gets it too, and ends as it sees fit; nothing new begins.
    """
    if executor not in EXECUTORS:
        raise BadParameter(f"executor must be one of {', '.join(EXECUTORS)}, got {executor!r}")
    if workers < 1:
        raise BadParameter(f"workers must be 1 or more, got {workers}")
    return EXECUTORS[executor](work, items, workers)


def _in_processes(work: Callable[[Item], Found], items: Sequence[Item], workers: int) -> Iterator[tuple[Item, Found]]:
    with RunnerPool(workers) as pool:
        waiting = {pool.submit(work, item): item for item in items}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


class RunnerPool:
    """Processes with one thread each, or one thread of this process; what still runs at the end is asked to stop."""

    def __init__(self, workers: int, in_thread: bool = False) -> None:
        self._in_thread = in_thread
        if in_thread:
            self._stop: _Signal = Event()
            self._pool: Executor = ThreadPoolExecutor(1, initializer=_watch, initargs=(self._stop,))
        else:
            _processes.set_forkserver_preload(["thinwire.training.train"])
            self._stop = _processes.Event()
            self._pool = ProcessPoolExecutor(workers, _processes, _begin_worker, (self._stop,))

    def submit(self, work: Callable[[Item], Found], item: Item) -> Future[Found]:
        return self._pool.submit(work, item) if self._in_thread else self._pool.submit(_run_alone, work, item)

    def __enter__(self) -> RunnerPool:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._stop.set()  # the pool hands out one item more than it has workers, and would not take it back
        self._pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise WorkerLost(
                "a worker process died, often because memory ran out; run the same command again to resume the "
                "unfinished runs, if necessary with fewer --workers"
            ) from None


# Forked from a process that has loaded torch and has no threads yet: ours do not survive a fork.
_processes = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
_stop: _Signal = Event()  # of the pool that this process works for


def is_stopping() -> bool:
    """In a worker: has its pool ended?"""
    return _stop.is_set()


def _watch(stop: _Signal) -> None:
    global _stop  # noqa: PLW0603
    _stop = stop


def _begin_worker(stop: _Signal) -> None:
    """One thread, and deaf to Ctrl-C while it has nothing to do."""
    import torch

    torch.set_num_threads(1)
    share_memory_pool()
    _watch(stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_alone(work: Callable[[Item], Found], item: Item) -> Found:
    if is_stopping():
        raise CancelledError
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return work(item)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _on_ray(work: Callable[[Item], Found], items: Sequence[Item], workers: int) -> Iterator[tuple[Item, Found]]:
    """On the cluster that RAY_ADDRESS names, or on this machine; every machine must see the job's files."""
    try:
        import ray
    except ImportError as error:
        raise BadParameter(
            f"executor 'ray' needs Ray, which cannot be imported here ({error}): pip install 'thinwire[ray]'; or "
            "use 'processes'"
        ) from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    remote = ray.remote(num_cpus=1, max_retries=0)(work)
    left = list(items)
    running: dict[Any, Item] = {}
    try:
        while left or running:
            while left and len(running) < workers:
                item = left.pop(0)
                running[remote.remote(item)] = item
            done, _ = ray.wait(list(running), num_returns=1)
            try:
                found = ray.get(done[0])
            except ray.exceptions.WorkerCrashedError as error:
                raise WorkerLost(f"a Ray worker died: {str(error).splitlines()[0]}") from None
            yield running.pop(done[0]), found
    finally:
        for one in running:
            ray.cancel(one)


EXECUTORS: dict[str, Callable[..., Iterator[tuple[Any, Any]]]] = {"processes": _in_processes, "ray": _on_ray}
