"""Methods and the settings that fewest_bytes.py tries: the same search for every method.

A method is a function from a task and drawn settings to a recipe and what it changes in the task and the job.
Optimiser, learning rate and batch size are drawn alike for all methods; each has parameters of its own beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

import thinwire as tw
from benchmarks.tasks import Codes, Task, TaskData, build_coded, build_job
from thinwire.engine.compress import QSGD, Compressor, RowScale, TopK, Uniform
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.recipe import Recipe

Settings = dict[str, Any]


class Plan(NamedTuple):
    """What a method makes of its settings."""

    recipe: Recipe
    job: Mapping[str, Any] = {}  # fields of the job that the method decides itself
    task: Mapping[str, Any] = {}  # and of the task


Choices = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Method:
    """How it is planned, and the values of its own parameters in a task; the first ones are its defaults."""

    plan: Callable[[Task, Settings, int], Plan]  # the number of training rows last
    list_choices: Callable[[Task], Choices] = lambda _: {}
    settings_of: str | None = None  # a method whose settings it is judged with, without a search of its own


_COMPRESSORS: dict[str, Callable[[float], Compressor]] = {
    "qsgd": lambda bits: QSGD(bits=int(bits)),
    "top-k": TopK,
    "uniform": lambda bits: Uniform(int(bits)),
}


def build_compressor(text: str) -> Compressor:
    """Of a name and its number, such as "top-k 0.1"."""
    name, number = text.split()
    return _COMPRESSORS[name](float(number))


def plan_rounds(recipe: Recipe) -> Plan:
    """Rows that are only scored travel at 8 bits per value, whatever the method."""
    return Plan(replace(recipe, scoring=RowScale(8)))


_BLOCKS = 4  # in which `once` sends the rows
_LEAST_PASSES, _MOST_ROWS = 25, 400_000  # of a network over its codes: more passes where rows are few
_TREES = (300, 20)  # at most; how many without a better validation score end it


def count_passes(top: str, rows: int) -> tuple[int, int]:
    """Of the label party over its codes at most, and its patience."""
    if top == "trees":
        return _TREES
    passes = max(_LEAST_PASSES, _MOST_ROWS // rows)
    return passes, max(4, passes // 10)


def plan_once(task: Task, own: Settings, rows: int) -> Plan:
    """The drawn optimiser and batch size are those of the label party's passes."""
    passes, patience = count_passes(own["top"], rows)
    codes = Codes(task.codes.encoder, own.get("bits_per_row") or own["bins"], own["top"])
    return Plan(
        tw.methods.once(passes, own["batch_size"], patience),
        {"batch_size": -(-rows // _BLOCKS), "eval_every": 1, "epochs": 1},
        {"networks": lambda data: build_coded(task, data, codes), "fusion": "concat"},
    )


_CODES: dict[str, Choices] = {
    "directions": {"bits_per_row": (17.0, 40.0, 100.0, 250.0)},
    "bins": {"bins": (8, 16, 32, 4)},
}


METHODS: dict[str, Method] = {
    "svfl": Method(lambda *_: plan_rounds(tw.methods.svfl())),
    "thin": Method(lambda *_: plan_rounds(tw.methods.thin()), settings_of="svfl"),
    "once": Method(plan_once, lambda task: {**_CODES[task.codes.encoder], "top": task.codes.tops}),
    "celu": Method(
        lambda _, own, __: plan_rounds(tw.methods.celu(own["capacity"], own["reuse"], own["xi_degrees"])),
        lambda _: {"capacity": (5, 3), "reuse": (6, 2, 3, 12), "xi_degrees": (60.0, 90.0)},
    ),
    "efvfl": Method(
        lambda _, own, __: plan_rounds(tw.methods.efvfl(build_compressor(own["compressor"]), labels="private")),
        lambda _: {"compressor": ("top-k 0.1", "qsgd 4", "top-k 0.05", "top-k 0.25", "qsgd 6")},
    ),
    "cvfl": Method(
        lambda _, own, __: plan_rounds(tw.methods.cvfl(build_compressor(own["compressor"]), labels="private")),
        lambda _: {"compressor": ("uniform 4", "uniform 2", "uniform 3", "top-k 0.25", "uniform 8")},
    ),
}


# The search: the same for every method ----------------------------------------------------------------------------


_OPTIMIZERS: dict[str, Callable[[float], OptimizerSpec]] = {
    "adam": lambda lr: tw.Adam(lr=lr),
    "sgd": lambda lr: tw.SGD(lr=lr),
    "adagrad": lambda lr: tw.AdaGrad(lr=lr, initial_accumulator=1e-6),
}
_RATES = {"adam": (0.001, 0.05), "sgd": (0.03, 1.0), "adagrad": (0.01, 0.2)}  # learning rates, on a log scale
_DRAWN = ("adam", "adam", "sgd", "adagrad")
_BATCHES = (64, 256, 1024)
_FIRST_POINT = 14  # of the sequence: early points of it cover the batch sizes of Adam badly


def draw_point(place: int, base: int) -> float:
    """The radical inverse: any first points of the sequence cover the interval evenly."""
    value, share = 0.0, 1.0
    while place:
        share /= base
        value += share * (place % base)
        place //= base
    return value


def draw_common(number: int, lr: float) -> Settings:
    """Trial `number`'s optimiser, learning rate and batch size; Adam with the task's rate is the first."""
    if number == 0:
        return {"optimizer": "adam", "lr": lr, "batch_size": 256}
    u, v, w = (draw_point(_FIRST_POINT + number - 1, base) for base in (2, 3, 5))
    optimizer = _DRAWN[int(u * len(_DRAWN))]
    low, high = _RATES[optimizer]
    rate = low * (high / low) ** v
    return {"optimizer": optimizer, "lr": float(f"{rate:.2g}"), "batch_size": _BATCHES[int(w * len(_BATCHES))]}


def draw_settings(task: Task, name: str, number: int) -> Settings:
    """The common part, and the method's own parameters: their defaults first, then every value as often."""
    choices = METHODS[name].list_choices(task)
    own = {key: draw_value(f"{name} {key}", values, number) for key, values in choices.items()}
    return {**draw_common(number, task.lr), **own}


def draw_value(name: str, values: Sequence[Any], number: int) -> Any:
    """Trial `number`'s, of one random order of the values after the other."""
    if number == 0:
        return values[0]
    turn, place = divmod(number - 1, len(values))
    rng = np.random.default_rng(crc32(name.encode()))
    orders = [rng.permutation(len(values)) for _ in range(turn + 1)]
    return values[orders[turn][place]]


def build_trial(task: Task, data: TaskData, name: str, settings: Settings, seed: int) -> tw.Job:
    plan = METHODS[name].plan(task, settings, len(data.train.labels))
    optimizer = _OPTIMIZERS[settings["optimizer"]](settings["lr"])
    common = {"optimizer": optimizer, "batch_size": settings["batch_size"], "seed": seed}
    return build_job(replace(task, **plan.task), data, plan.recipe, {**common, **plan.job})
