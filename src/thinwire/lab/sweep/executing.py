"""Where many runs are computed: the one way to run a function over many things at the same time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.synchronize import Event as EventOfProcesses
from typing import Any, TypeVar

from thinwire.base.errors import BadParameter, ThinwireError
from thinwire.base.process import share_memory_pool

Item = TypeVar("Item")
Found = TypeVar("Found")


class WorkerLost(ThinwireError):
    """A process that computed a run died."""


def each(
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
    context = get_context("spawn")  # not forked: torch's threads do not survive that
    stopped = context.Event()
    with ProcessPoolExecutor(workers, context, _begin, (stopped,)) as pool:
        waiting = {pool.submit(_alone, work, item): item for item in items}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool:
            raise WorkerLost(
                "a process that computed a run died, often for want of memory; the same command goes on with the "
                "runs that are not finished, perhaps with fewer --workers"
            ) from None
        finally:
            stopped.set()  # the pool hands out one item more than it has workers, and would not take it back
            pool.shutdown(wait=True, cancel_futures=True)


_stopped: EventOfProcesses | None = None  # in a worker


def _begin(stopped: EventOfProcesses) -> None:
    """A worker: one thread, and deaf to Ctrl-C while it has nothing to do."""
    global _stopped  # noqa: PLW0603
    import torch

    torch.set_num_threads(1)
    share_memory_pool()
    _stopped = stopped
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _alone(work: Callable[[Item], Found], item: Item) -> Found:
    if _stopped is not None and _stopped.is_set():
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
            f"executor 'ray' needs Ray, which cannot be loaded here ({error}): pip install 'thinwire[ray]'; or use "
            "'processes'"
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
