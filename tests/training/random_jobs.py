"""Whole jobs at random: a strategy over what a user may combine. Each is a value that gives a job, or its files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import thinwire as tw
from every import BOUNDED_INPUT, COMPRESSORS
from processes import DEADLINE
from thinwire.engine.compress import Cast, Diminishing, DiminishingError, Milestones, RowScale, StdGrid, TopK, Uniform
from thinwire.engine.models.losses import LOSSES
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.recipe import Recipe
from thinwire.job.job import Job
from thinwire.job.registry import build_optimizer, build_recipe, build_settings
from thinwire.job.schema import JobSection
from thinwire.net.pki.authority import issue
from training import random_models
from training.party.parties import LABEL_PARTY, Place, free_port
from training.random_models import BOTTOMS, NEEDS_ALL_ROWS, TOPS, Bottom, Top

SECRET = bytes(range(32))  # private noise repeats with it

Table = Mapping[str, Any]


def absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss that is the user's own."""
    return (outputs.reshape(-1) - labels).abs()


TASKS: dict[str, tuple[Any, int, list[str]]] = {  # the loss, outputs and metrics
    "cross_entropy": (LOSSES["cross_entropy"], 3, ["accuracy"]),
    "binary_cross_entropy": (LOSSES["binary_cross_entropy"], 1, ["auc", "accuracy"]),
    "squared_error": (LOSSES["squared_error"], 1, ["mse"]),
    "own": (absolute_error, 1, ["mse"]),
}


NAMED_TOPS: dict[str, Table] = {  # ours: under shared labels every party runs the top model
    "linear": {"name": "linear_top"},
    "deep": {"name": "mlp_top", "hidden": [4], "activation": "tanh"},
}


def to_table(value: Any) -> Any:
    """A compressor, and what is in it, as a job file has it."""
    match value:
        case Milestones(steps=steps):
            return {"milestones": [list(step) for step in steps]}
        case Diminishing(start=start):
            return {"diminishing": start}
        case DiminishingError(initial=initial):
            return {"diminishing_error": initial}
        case tw.compress.Compressor():
            held = {one.name: to_table(getattr(value, one.name)) for one in fields(value)}  # type: ignore[arg-type]
            return {"name": type(value).__name__, **{key: part for key, part in held.items() if part is not None}}
    return list(value) if isinstance(value, tuple) else value


# A job as a value: building it twice gives the same one ------------------------------------------------------------


@dataclass(frozen=True)
class RandomJob:
    """What was drawn, as a job file has it. `build` gives modules of its own each time, with the same weights."""

    recipe: Table
    job: Table
    optimizer: Table
    link: Table | None
    columns: tuple[int, ...]  # of each party, the label party's own last
    widths: tuple[int, ...]
    bottoms: tuple[str, ...]
    dtypes: tuple[str, ...]  # of the tables
    optimizers: tuple[Table | None, ...]  # of each party
    own: bool
    top: str
    loss: str
    label_dtype: str
    fusion: str
    rows: int
    tests: int
    weighted: bool

    @property
    def names(self) -> list[str]:
        feature_parties = [f"p{number}" for number in range(len(self.columns) - self.own)]
        return [*feature_parties, LABEL_PARTY] if self.own else feature_parties

    @property
    def kinds(self) -> set[str]:
        """Of the models."""
        return {*self.bottoms, self.top}

    @property
    def built_recipe(self) -> Recipe:
        return build_recipe("recipe", self.recipe)

    @property
    def rounds(self) -> int:
        """If nothing ends it earlier."""
        return build_settings(JobSection(**self.job), Path()).divide_rows(self.rows).rounds

    @property
    def class_weights(self) -> dict[str, Any]:
        return {"class_weights": [1.0, 2.0, 0.5][: max(2, TASKS[self.loss][1])]} if self.weighted else {}

    def tables(self) -> tuple[list[NDArray[Any]], NDArray[Any]]:
        """Everybody's features and the labels, test rows last."""
        rng = np.random.default_rng(7)
        tables = [rng.normal(size=(self.rows + self.tests, columns)) for columns in self.columns]
        score = np.sum([table[:, 0] for table in tables], axis=0)
        classes = np.minimum((score > 0).astype(int) + (score > 1), max(1, TASKS[self.loss][1] - 1))
        labels = score if self.loss in ("squared_error", "own") else classes
        return (
            [_convert(table, dtype) for table, dtype in zip(tables, self.dtypes, strict=True)],
            labels.astype(self.label_dtype),
        )

    # In memory -----------------------------------------------------------------------------------------------------

    def build(self) -> Job:
        features, labels = self.tables()
        torch.manual_seed(11)
        held: list[dict[str, Any]] = [self._build_party(number, table) for number, table in enumerate(features)]
        loss, outputs, _ = TASKS[self.loss]
        mine: dict[str, Any] = held.pop() if self.own else {}
        width = sum(self.widths) if self.fusion == "concat" else self.widths[0]
        return tw.Job(
            [tw.FeatureParty(name, **one) for name, one in zip(self.names, held, strict=False)],
            tw.LabelParty(
                LABEL_PARTY,
                torch.from_numpy(labels[: self.rows]),
                Top(width, outputs, self.top),
                test_labels=torch.from_numpy(labels[self.rows :]) if self.tests else None,
                fusion=self.fusion,
                loss=loss,
                **self.class_weights,
                **mine,
            ),
            self.built_recipe,
            build_optimizer("optimizer", self.optimizer),
            link=None if self.link is None else _build_link(self.link),
            noise_secret=SECRET,
            **vars(build_settings(JobSection(**self.job), Path())),
        )

    def _build_party(self, number: int, table: NDArray[Any]) -> dict[str, Any]:
        return {
            "features": torch.from_numpy(table[: self.rows]),
            "test_features": torch.from_numpy(table[self.rows :]) if self.tests else None,
            "bottom": Bottom(self.columns[number], self.widths[number], self.bottoms[number]),
            "optimizer": self._build_optimizer(number),
        }

    def _build_optimizer(self, number: int) -> tw.OptimizerSpec | None:
        table = self.optimizers[number]
        return None if table is None else build_optimizer("optimizer", table)

    # In files ------------------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> Place:
        """The same job, with other first weights, as files: its data, its models' code and its certificates."""
        features, labels = self.tables()
        shutil.copy(random_models.__file__, folder)
        np.savez(folder / "labels.npz", y=labels[: self.rows], y_test=labels[self.rows :])
        parties = [self._write_party(folder, number, table) for number, table in enumerate(features)]
        mine = parties.pop() if self.own else {}
        label: dict[str, Any] = {
            **mine,
            "name": LABEL_PARTY,
            "labels": {"file": "labels.npz", "key": "y"},
            "top": self._write_top(),
            "fusion": self.fusion,
            "loss": self.loss,
            **self.class_weights,
        }
        if self.tests:
            label["test_labels"] = {"file": "labels.npz", "key": "y_test"}
        place = Place(folder, free_port(), {})
        place.document.update(
            {
                "job": dict(self.job),
                "recipe": dict(self.recipe),
                "optimizer": dict(self.optimizer),
                "network": {
                    "listen": place.address,
                    "address": place.address,
                    "wait_seconds": DEADLINE,
                    "checkpoint_seconds": 0.05,
                },
                "party": parties,
                "label_party": label,
                **({} if self.link is None else {"link": dict(self.link)}),
            }
        )
        issue(place.certs, place.names)
        place.write("job.toml")
        return place

    def _write_top(self) -> dict[str, Any]:
        outputs = TASKS[self.loss][1]
        if self.top in NAMED_TOPS:
            return {**NAMED_TOPS[self.top], "classes": outputs}
        return {"module": "random_models:Top", "outputs": outputs, "kind": self.top}

    def _write_party(self, folder: Path, number: int, table: NDArray[Any]) -> dict[str, Any]:
        name, optimizer = self.names[number], self.optimizers[number]
        np.savez(folder / f"{name}.npz", x=table[: self.rows], x_test=table[self.rows :])
        return {
            "name": name,
            "features": {"file": f"{name}.npz", "key": "x"},
            "model": {"module": "random_models:Bottom", "width": self.widths[number], "kind": self.bottoms[number]},
            **({"test_features": {"file": f"{name}.npz", "key": "x_test"}} if self.tests else {}),
            **({} if optimizer is None else {"optimizer": dict(optimizer)}),
        }


def _convert(table: NDArray[Any], dtype: str) -> NDArray[Any]:
    return (table if dtype.startswith("float") else np.abs(table * 3)).astype(dtype)


def _build_link(table: Table) -> tw.Link:
    parties = {name: tw.Link(**one) for name, one in table.get("parties", {}).items()}
    return tw.Link(**{**table, "parties": parties})


# The strategy -----------------------------------------------------------------------------------------------------


def _method(name: str, optional: Mapping[str, Any] | None = None, **required: Any) -> st.SearchStrategy[Table]:
    return st.fixed_dictionaries({"method": st.just(name), **required}, optional=dict(optional or {}))


KINDS = (*COMPRESSORS, *BOUNDED_INPUT[-2:], TopK(DiminishingError(0.5)), Uniform(DiminishingError(2.0)))
FED = [one for one in KINDS if one.suits_error_feedback]
ADDING = (Uniform(6, dither=False, bounds=(-8, 8)), StdGrid(0.5, scale=0.1, limit=100))
compressors, fed, adding = (st.sampled_from([to_table(one) for one in kinds]) for kinds in (KINDS, FED, ADDING))
labels = st.sampled_from(["shared", "private"])
steps = st.integers(1, 3)
overlaps = st.sampled_from([False, True, "ahead"])
angles = st.sampled_from(["none", 60.0])
secure: dict[str, Any] = {"compressor": adding, "labels": labels, "aggregation": st.just("secure_sum")}
recipes = st.one_of(
    _method("svfl"),
    _method("fedbcd", local_steps=steps),
    _method("cvfl", {"top_compressor": compressors}, compressor=compressors, local_steps=steps),
    _method("cvfl", compressor=compressors, labels=st.just("private")),
    _method(
        "efvfl",
        {"top_compressor": fed},
        compressor=fed,
        labels=labels,
        local_steps=steps,
        order=st.sampled_from(["exchange_first", "update_first"]),
        warm_start=st.booleans(),
        scope=st.sampled_from(["rows", "table"]),
        broadcast=st.sampled_from(["symbols", "surrogates"]),
    ).map(lambda given: {**given, "warm_start": given["warm_start"] or given["order"] == "update_first"}),
    _method(
        "celu",
        capacity=steps,
        reuse=steps,
        xi_degrees=angles,
        sampling=st.sampled_from(["round_robin", "random"]),
        overlap=overlaps,
    ),
    _method(
        "thin",
        {"warm_passes": steps},
        up_step=st.sampled_from([0.5, 1.5]),
        down_step=st.sampled_from([2.0, 8.0]),
        capacity=steps,
        reuse=st.integers(1, 6),
        xi_degrees=angles,
        overlap=overlaps,
    ),
    _method("once", passes=steps, batch_rows=st.sampled_from([1, 7]), patience=steps),
    _method("pbm", trials=st.sampled_from([1, 16]), beta=st.just(0.2)),
    _method("cvfl", **secure),
    _method("efvfl", **secure),
)
defences = st.sampled_from(
    ["NoDefence"] * 5 + ["MaxNorm", {"name": "Marvell", "power": 2.0}, {"name": "LabelDP", "epsilon": 2.0}]
)
trainings = st.sampled_from(["raw_rows"] * 4 + ["frozen", {"name": "DPBottom", "clip": 1.0, "noise_multiplier": 2.0}])
scorings = st.sampled_from([None] * 5 + [to_table(Cast("float16")), to_table(RowScale(4))])
optimizers: st.SearchStrategy[Table] = st.sampled_from(
    [
        {"name": "sgd", "lr": 0.1},
        {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        {"name": "sgd", "lr": {"name": "inverse_root", "lr": 0.2}},
        {"name": "sgd", "lr": {"name": "over_round", "lr": 0.3}, "weight_decay": 0.01},
        {"name": "adam", "lr": 0.02},
        {"name": "adam", "lr": {"name": "cosine", "lr": 0.05}},
        {"name": "adam", "lr": {"name": "step_milestones", "lr": 0.05, "milestones": [[2, 0.5], [5, 0.1]]}},
        {"name": "adagrad", "lr": 0.1},
    ]
)
dtypes = st.sampled_from(["float32"] * 4 + ["float64", "int64", "int32", "uint8", "bool"])
SLOW = {"bandwidth_mbit": 100.0, "latency_ms": 5.0, "compute_ms": 1.0}
links = st.sampled_from([None, SLOW, {**SLOW, "parties": {"p0": {"bandwidth_mbit": 1.0, "compute_ms": 2.0}}}])


@st.composite
def run_lengths(draw: st.DrawFn, rows: int, task: str, link: Table | None, recipe: Table) -> Table:
    """`[job]`: how long, how often, and until when; of what the recipe refuses, little."""
    size = draw(st.one_of(st.none(), st.integers(1, rows)))
    metric, noised, ahead = TASKS[task][2][0], recipe["method"] == "pbm", recipe.get("overlap") == "ahead"
    one_way = recipe["method"] == "once"  # every row once, by networks that learn nothing
    found = {
        "batch_size": size,
        "batches": draw(st.sampled_from(["derived"] if ahead else ["derived", "derived", "announced"])),
        "epochs": 1.0 if one_way else draw(st.sampled_from([1.0, 2.0, 3.0])) if size is None or size > 4 else 0.5,
        "seed": draw(st.integers(0, 2**40)),
        "eval_every": draw(st.one_of(st.none(), st.integers(1, 6))),
        "metrics": TASKS[task][2],
        "target": draw(
            st.sampled_from([None] * 6 + [{"metric": "loss", "value": 0.6}, {"metric": metric, "value": 0.5}])
        ),
        "stop": draw(st.sampled_from([True, True, False])),
        "byte_budget": draw(st.sampled_from([None] * 7 + [3000])),
        "link_seconds_budget": None if link is None else draw(st.sampled_from([None] * 4 + [0.1])),
        "effort": draw(st.sampled_from(["small", "fast"])),
        "diagnostics": draw(st.booleans()),
        "training": "frozen" if one_way else draw(trainings),
        "budget": draw(st.sampled_from([None, {"epsilon": 50.0}])) if noised else None,
        "memory_limit_mb": draw(st.sampled_from([4096.0] * 3 + [0.0])),
    }
    return {key: value for key, value in found.items() if value is not None}


@st.composite
def random_recipes(draw: st.DrawFn, loss: str) -> Table:
    recipe, defence, scoring = dict(draw(recipes)), draw(defences), draw(scorings)
    private = build_recipe("recipe", recipe).labels is Labels.PRIVATE
    suits = {"Marvell": ["binary_cross_entropy"], "LabelDP": ["binary_cross_entropy", "cross_entropy"]}
    if private and loss in suits.get(defence["name"] if isinstance(defence, dict) else "", TASKS):
        recipe["defence"] = defence
    if private and recipe["method"] == "efvfl":
        recipe |= {"local_steps": 1, "broadcast": "symbols"}
    return recipe if scoring is None or _is_summed(recipe) else {**recipe, "scoring": scoring}


def _is_summed(recipe: Table) -> bool:
    return isinstance(build_recipe("recipe", recipe).aggregation, SecureSum)


@st.composite
def random_jobs(draw: st.DrawFn) -> RandomJob:
    loss = draw(st.sampled_from(sorted(TASKS)))
    recipe = draw(random_recipes(loss))
    summed = _is_summed(recipe)
    own = draw(st.booleans())
    parties = draw(st.integers(3 if summed else 1, 4)) + own
    fusion = "sum" if summed else draw(st.sampled_from(["sum", "mean", "concat"]))
    width = draw(st.integers(1, 6))
    rows, link = draw(st.integers(8, 40)), draw(links)
    bottoms = [kind for kind in BOTTOMS if recipe["method"] != "pbm" or kind not in NEEDS_ALL_ROWS]
    whole = loss in ("squared_error", "own")
    return RandomJob(
        recipe,
        draw(run_lengths(rows, loss, link, recipe)),
        draw(optimizers),
        link,
        columns=tuple(draw(st.integers(1, 5)) for _ in range(parties)),
        widths=tuple(draw(st.integers(1, 6)) if fusion == "concat" else width for _ in range(parties)),
        bottoms=(models := tuple(draw(st.sampled_from(["plain", "plain", *bottoms])) for _ in range(parties))),
        dtypes=tuple("float16" if one == "doubles" else draw(dtypes) for one in models),
        optimizers=tuple(draw(st.one_of(st.none(), st.none(), optimizers)) for _ in range(parties)),
        own=own,
        top=draw(st.sampled_from(["linear", *TOPS])),
        loss=loss,
        label_dtype=draw(
            st.sampled_from(["float32", "float64"] if whole else ["int64", "int32", "uint8", "float32"])
        ),
        fusion=fusion,
        rows=rows,
        tests=draw(st.sampled_from([0, 9])),
        weighted=not whole and draw(st.booleans()),
    )


@st.composite
def written_jobs(draw: st.DrawFn) -> RandomJob:
    """Those that job files can say and parties may run, without a link that would be simulated."""
    drawn = draw(random_jobs().filter(lambda one: one.loss != "own"))
    shared = drawn.built_recipe.labels is Labels.SHARED
    # Keys that are signed come with certificates, and use up a budget of bytes sooner.
    simulated = ["link_seconds_budget", *(["byte_budget"] if _is_summed(drawn.recipe) else [])]
    simulated += [] if drawn.tests else ["target"]  # of training rows, which only a simulator scores
    return replace(
        drawn,
        link=None,
        job={key: part for key, part in drawn.job.items() if key not in simulated},
        top=drawn.top if drawn.top in NAMED_TOPS or not shared else "linear",
    )
