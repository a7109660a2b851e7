"""The search: optuna asks, probes answer, in this process or in several."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from multiprocessing import get_context
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from thinwire.job.toml_text import inline
from thinwire.lab.tune.probing import Ground, Probe, Probed, probed
from thinwire.lab.tune.space import METHODS_TRIED, starts, suggested

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial


@dataclass(frozen=True)
class Budget:
    """How much is tried. One process: the same seed tries the same recipes in the same order."""

    trials: int
    jobs: int = 1  # processes
    seed: int = 0


@dataclass(frozen=True)
class Searched:
    """What the search is over."""

    ground: Ground
    handling_seconds: Mapping[str, float]  # a round, by method
    beside: Mapping[str, Any]  # of every recipe: what the job asks for whatever the method

    def probe(self, recipe: Mapping[str, Any], limit_seconds: float = inf) -> Probe:
        return Probe(self.ground, recipe, self.handling_seconds[recipe["method"]], limit_seconds)


@dataclass(frozen=True)
class Found:
    """All that was probed, in the order in which it ended."""

    probes: list[Probed]
    interrupted: bool = False


def search(over: Searched, budget: Budget, limit: float, told: Callable[[Probed], None]) -> Found:
    """Probes recipes until the budget is spent or Ctrl-C; what cannot beat `limit` seconds is given up."""
    study = _study(budget)
    done: dict[str, Probed] = {}  # by recipe: a probe repeats, so none is made twice
    running: dict[Future[Probed], Trial] = {}
    asked = 0
    with _workers(budget.jobs) as workers:
        try:
            while asked < budget.trials or running:
                while asked < budget.trials and len(running) < budget.jobs:
                    trial = study.ask()
                    asked += 1
                    recipe = {**suggested(trial), **over.beside}
                    if inline(recipe) in done:
                        _tell(study, trial, done[inline(recipe)])
                    else:
                        running[workers.start(over.probe(recipe, limit))] = trial
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    one = future.result()
                    _tell(study, running.pop(future), one)
                    done[inline(one.recipe)] = one
                    if one.prediction is not None:
                        limit = min(limit, one.prediction.seconds)
                    told(one)
        except KeyboardInterrupt:
            return Found([*done.values()], interrupted=True)
    return Found([*done.values()])


def _tell(study: Study, trial: Trial, one: Probed) -> None:
    from optuna.trial import TrialState

    if one.prediction is not None:
        study.tell(trial, one.prediction.seconds)
    else:
        study.tell(trial, state=TrialState.PRUNED if one.error is None else TrialState.FAIL)


def _study(budget: Budget) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=budget.seed, n_startup_trials=2 * len(METHODS_TRIED))
    study = optuna.create_study(sampler=sampler, direction="minimize")
    for start in starts():
        study.enqueue_trial(start)
    return study


class _Signal(Protocol):
    """An event of threads or of processes."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...


@dataclass(frozen=True)
class _Workers:
    pool: Executor
    work: Callable[[Probe], Probed]

    def start(self, probe: Probe) -> Future[Probed]:
        return self.pool.submit(self.work, probe)


@contextmanager
def _workers(jobs: int) -> Iterator[_Workers]:
    """A thread of this process, or processes; on the way out whatever still runs ends after its round."""
    stop: _Signal
    if jobs == 1:
        stop = Event()
        workers = _Workers(ThreadPoolExecutor(1), lambda probe: probed(probe, stop.is_set))
    else:
        # Spawned, not forked: torch's threads do not survive a fork.
        context = get_context("spawn")
        stop = context.Event()
        workers = _Workers(ProcessPoolExecutor(jobs, context, _begin, (stop,)), _probed_there)
    try:
        yield workers
    finally:
        stop.set()
        workers.pool.shutdown(wait=True, cancel_futures=True)


_stop: _Signal = Event()  # of this process, where it is a worker


def _begin(stop: _Signal) -> None:
    """A worker process: one thread, and deaf to Ctrl-C, which is for the process that started it."""
    global _stop  # noqa: PLW0603
    import torch

    from thinwire.base.process import share_memory_pool

    torch.set_num_threads(1)
    share_memory_pool()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stop = stop


def _probed_there(probe: Probe) -> Probed:
    return probed(probe, _stop.is_set)
