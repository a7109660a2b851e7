"""The search for a recipe: optuna asks, probes answer, in this process or in several.

Tried are a few methods with private labels, and those of their parameters that matter on a link. What a method takes
is read off its own signature: a parameter that is not in `_RANGES`, or whose default is no plain number, keeps its
default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from thinwire.engine.methods import METHODS
from thinwire.job.job_file import inline
from thinwire.job.registry import list_parameters
from thinwire.lab.runner import RunnerPool, is_stopping
from thinwire.lab.tune.probe import Probe, ProbeResult, ProbeSettings, run_probe

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial


METHODS_TRIED = ("thin", "celu", "efvfl")  # svfl is the baseline


@dataclass(frozen=True)
class _Range:
    """Numbers by steps; whole ones where the step is one."""

    low: float
    high: float
    step: float

    def suggest(self, trial: Trial, name: str) -> float:
        suggest: Any = trial.suggest_int if isinstance(self.step, int) else trial.suggest_float
        found: float = suggest(name, self.low, self.high, step=self.step)
        return found

    def nearest(self, value: float) -> float:
        return self.low + self.step * round((min(self.high, max(self.low, value)) - self.low) / self.step)


@dataclass(frozen=True)
class _Choice:
    of: tuple[bool | str, ...]

    def suggest(self, trial: Trial, name: str) -> Any:
        return trial.suggest_categorical(name, self.of)

    def nearest(self, value: bool | str) -> bool | str:
        return value


_RANGES: dict[str, _Range | _Choice] = {
    "up_step": _Range(0.5, 4.0, 0.5),
    "down_step": _Range(0.5, 10.0, 0.5),
    "capacity": _Range(1, 10, 1),
    "reuse": _Range(1, 12, 1),
    "overlap": _Choice((False, True, "ahead")),
}
_FRACTIONS = (0.02, 0.05, 0.1, 0.2)
_STARTS: dict[str, dict[str, Any]] = {"celu": {"capacity": 5, "reuse": 5}, "efvfl": {"fraction": 0.1}}


def list_starts() -> list[dict[str, Any]]:
    """What is tried first: each method as it comes."""
    return [_start(method) for method in METHODS_TRIED]


def _start(method: str) -> dict[str, Any]:
    given = {key: parameter.default for key, parameter in list_parameters(METHODS[method]).items()}
    given |= _STARTS.get(method, {})
    kept = {key: _RANGES[key].nearest(given[key]) for key in _searched(method)}
    kept |= {"fraction": given["fraction"]} if "fraction" in given else {}
    return {"method": method, **kept}


def _searched(method: str) -> list[str]:
    """The parameters with a range, unless their default is no number: such a default is cleverer than a range."""
    parameters = list_parameters(METHODS[method])
    return [
        key
        for key in _RANGES
        if key in parameters
        and (parameters[key].default is parameters[key].empty or isinstance(parameters[key].default, (int, float)))
    ]


def suggest_recipe(trial: Trial) -> dict[str, Any]:
    """The search's next recipe, as a job file's table."""
    method = trial.suggest_categorical("method", METHODS_TRIED)
    fraction = trial.suggest_categorical("fraction", _FRACTIONS) if method == "efvfl" else None
    return _table(method, fraction) | {key: _RANGES[key].suggest(trial, key) for key in _searched(method)}


def _table(method: str, fraction: float | None) -> dict[str, Any]:
    compressed = {"compressor": {"name": "TopK", "fraction": fraction}, "labels": "private"}
    return {"method": method} | ({} if fraction is None else compressed)


def one_step(method: str) -> dict[str, Any]:
    """The method with one step per round, whose handling can be told from its steps."""
    return _table(method, _STARTS.get(method, {}).get("fraction")) | {
        key: 1 for key in ("capacity", "reuse") if key in list_parameters(METHODS[method])
    }


def format_recipe(table: Mapping[str, Any]) -> str:
    """On one line: the method and what it is given."""
    given = {key: value for key, value in table.items() if key not in ("method", "labels")}
    compressor = given.pop("compressor", None)
    said = [] if compressor is None else [f"{compressor['name']} {compressor['fraction']:g}"]
    said += [
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {_word(value)}" for key, value in given.items()
    ]
    return f"{table['method']}" + (f" ({', '.join(said)})" if said else "")


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


# The search: optuna asks, probes answer, in this process or in several --------------------------------------------


def search(
    ground: ProbeSettings, trials: int, jobs: int, limit: float, told: Callable[[ProbeResult], None]
) -> tuple[list[ProbeResult], bool]:
    """Probes so many recipes, `jobs` at a time; what cannot beat `limit` seconds is given up. (probes, interrupted).

    One process: the same seed tries the same recipes in the same order.
    """
    study = _study(ground.seed)
    done: dict[str, ProbeResult] = {}  # by recipe: a probe repeats, so none is made twice
    running: dict[Future[ProbeResult], Trial] = {}
    asked = 0
    probe_here = partial(run_probe, stopped=is_stopping)
    with RunnerPool(jobs, in_thread=jobs == 1) as pool:
        try:
            while asked < trials or running:
                while asked < trials and len(running) < jobs:
                    trial = study.ask()
                    asked += 1
                    recipe = {**suggest_recipe(trial), **ground.beside}
                    if inline(recipe) in done:
                        _tell(study, trial, done[inline(recipe)])
                    else:
                        running[pool.submit(probe_here, Probe(ground, recipe, limit))] = trial
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    one = future.result()
                    _tell(study, running.pop(future), one)
                    done[inline(one.recipe)] = one
                    limit = min(limit, one.seconds)
                    told(one)
        except KeyboardInterrupt:
            return [*done.values()], True
    return [*done.values()], False


def _tell(study: Study, trial: Trial, one: ProbeResult) -> None:
    from optuna.trial import TrialState

    if one.prediction is not None:
        study.tell(trial, one.prediction.seconds)
    else:
        study.tell(trial, state=TrialState.PRUNED if one.error is None else TrialState.FAIL)


def _study(seed: int) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=2 * len(METHODS_TRIED))
    study = optuna.create_study(sampler=sampler, direction="minimize")
    for start in list_starts():
        study.enqueue_trial(start)
    return study
