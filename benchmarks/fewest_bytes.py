"""The fewest bytes to the same score: every method tuned by the same search, on nine data sets with private labels.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/fewest_bytes.py tune [--tasks mnist,credit]
        [--methods svfl,celu] [--trials 20] [--cell-minutes 60] [--out FILE]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/fewest_bytes.py judge [--seeds 1,2,3] [...]
    THINWIRE_DATA=FOLDER python benchmarks/fewest_bytes.py table [...]

Data sets, networks and sizes are in benchmarks/tasks.py.

`tune` gives every method the same number of trials a data set: the same optimisers, learning rates and batch sizes in
the same order, and parameters of its own (benchmarks/trials.py). A cell, a data set and a method, that has used up
its minutes of a core gets no further trial. From the fourth trial on, one that is below the median of those before it
at the same epoch ends after a quarter of its epochs or later; those of svfl, and those of a single epoch, all go to
their ends. Everything is chosen on validation rows. The target of a data set is the best validation score of any svfl
trial less half a point. Of every trial the evaluations are kept that were better than all before: they say at which
round and after how many bytes any target was reached first.

thin has no search: it takes svfl's settings and its own defaults, so that it stands for what a user gets who changes
nothing but the method.

`judge` trains with fresh seeds, once the svfl trials are there: the trial that reached the target with the fewest
bytes, stopped as soon as its validation score is there, and the trial with the best score, to its end; where they are
the same trial, one run is both. The bytes to the target are those of whichever of the two took fewer in the median.
Only here are test rows looked at, by the delivered model. Scores on 500 bootstraps
of the test rows are kept, the same rows for every run, so that differences are paired.

`table` prints both as Markdown, and a rule that is the same for every data set: one exchange first, and thin after it
where that misses the target; its bytes are those of both, and its model the one with the better validation score.
Bytes are all frames both ways, headers included: those of training, and those of
evaluations, which every method makes after as many training rows and at 8 bits per value.

Results go to FILE as they come (--out, build/fewest_bytes.jsonl); the same command resumes.
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.defaults import Record, Records, format_interval
from benchmarks.tasks import TASKS, TaskData, count_label_bytes, count_raw_bytes, load_data
from benchmarks.trials import METHODS, Settings, build_trial, draw_settings
from thinwire.base.errors import Diverged, NotFinite
from thinwire.base.process import share_memory_pool
from thinwire.engine.models.losses import Outputs
from thinwire.engine.models.metrics import metric
from thinwire.engine.protocols.evaluation import compress_for_scoring, compute_outputs, embed_in_chunks

_LESS = 0.005  # half a point below svfl's best
_TUNING_SEED = 0
_BOOTSTRAPS = 500
_CHEAPEST, _BEST = "cheapest", "best"
_ALL_BYTES = 2  # its place in what is kept of reaching the target: round, training bytes, all bytes
_RULE = ("once", "thin")
_LEAST_TRIALS = 3  # before one is compared with the others
_SCALE = 65_535  # scores are kept as 16 bits


# Tune: validation rows alone --------------------------------------------------------------------------------------


class Point(NamedTuple):
    """An evaluation that was better than all before."""

    round: int
    score: float
    training_bytes: int
    bytes: int


def read_score(event: Mapping[str, Any], name: str) -> float:
    """On validation rows, in five digits, as records have it."""
    return round(event["validation"].get(name) or 0.0, 5)


def list_bests(history: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    found: list[Point] = []
    for event in history:
        score, sent = read_score(event, name), event["bytes"]
        if not found or score > found[-1].score:
            found.append(Point(event["round"], score, sent["total"], sent["total"] + sent["evaluation"]))
    return found


def run_trial(job: tw.Job, stop: Callable[[Mapping[str, Any]], bool] = lambda _: False) -> Record:
    """The evaluations that were better than all before, up to where it diverged if it did."""
    began, history = process_time(), []

    def look(event: dict[str, Any]) -> bool:
        history.append(event)
        return stop(event)

    try:
        tw.train(job, callbacks=[look])
        diverged = False
    except (Diverged, NotFinite):  # at a party: its embeddings, before the loss says so
        diverged = True
    curve, last = list_bests(history, job.metrics[0]), history[-1]
    return {
        "best": curve[-1].score,
        "curve": [list(point) for point in curve],
        "rounds": last["round"],
        "epochs": round(last["epoch"], 3),
        "bytes": last["bytes"]["total"] + last["bytes"]["evaluation"],
        "diverged": diverged,
        "cpu": round(process_time() - began, 1),
    }


def is_behind(event: Mapping[str, Any], score: float, trials: Sequence[Record], epochs: float) -> bool:
    """Below the median of the trials before, at the same epoch, once a quarter of several epochs is over?"""
    if len(trials) < _LEAST_TRIALS or event["epoch"] < epochs / 4 or epochs <= 1:
        return False
    return score < median(find_score(trial, event["epoch"]) for trial in trials)


def find_score(trial: Record, epoch: float) -> float:
    """The best one up to an epoch."""
    rounds = epoch * trial["rounds"] / trial["epochs"] if trial["epochs"] else 0.0
    return float(max(score for round, score, *_ in trial["curve"] if round <= rounds))


def find_point(trial: Record, target: float) -> Point | None:
    """Where the target was reached first."""
    return next((Point(*point) for point in trial["curve"] if point[1] >= target), None)


def find_target(records: Records, task: str) -> float | None:
    """Half a point below svfl's best; None without svfl's trials."""
    trials = records.list(f"tune {task} svfl ")
    return round(max(trial["best"] for trial in trials) - _LESS, 5) if trials else None


def choose_cheapest(trials: Sequence[Record], target: float) -> Record | None:
    """The trial that reached the target with the fewest bytes, evaluations included."""
    reached = [(point.bytes, number) for number, one in enumerate(trials) if (point := find_point(one, target))]
    return trials[min(reached)[1]] if reached else None


def choose_best(trials: Sequence[Record]) -> Record:
    """Of equal scores, the one that had it with fewer bytes."""
    return max(trials, key=lambda one: (one["best"], -one["curve"][-1][3]))


def require_same_task(records: Records, name: str) -> None:
    """Records of a task that has changed since cannot be compared with new ones."""
    described = TASKS[name].describe()
    known = records.find(f"task {name}", lambda: described)
    changed = [key for key, value in described.items() if known.get(key) != value]
    if changed:
        sys.exit(
            f"{name}: its {', '.join(changed)} changed since these records; use another --out, or remove its lines"
        )


def write_key(kind: str, task: str, method: str, settings: Settings) -> str:
    return " ".join([kind, task, method, *(f"{key}={value}" for key, value in settings.items())])


def tune(asked: argparse.Namespace, records: Records) -> None:
    for name in (one for one in asked.methods if METHODS[one].settings_of is None):
        for task in asked.tasks:
            require_same_task(records, task)
            tune_cell(task, name, asked, records)


def tune_cell(task: str, name: str, asked: argparse.Namespace, records: Records) -> None:
    """As many trials as were asked for, as long as there are minutes left; what was asked for is recorded too."""
    trials: list[Record] = []
    while len(trials) < asked.trials and sum(one["cpu"] for one in trials) < 60 * asked.cell_minutes:
        settings = draw_settings(TASKS[task], name, len(trials))
        compute = partial(try_settings, task, name, settings, tuple(trials))
        trials.append(records.find(write_key("tune", task, name, settings), compute))
        print(f"{task} {name} {settings}: {_format_trial(trials[-1])}", flush=True)
    limits = {"trials": asked.trials, "cell_minutes": asked.cell_minutes}
    spent = round(sum(one["cpu"] for one in trials) / 60, 1)
    records.find(write_key("cell", task, name, limits), lambda: {**limits, "done": len(trials), "minutes": spent})


def _format_trial(trial: Record) -> str:
    diverged = ", diverged" if trial["diverged"] else ""
    return f"{trial['best']:.4f}, {trial['bytes'] / 1e6:.2f} MB, {trial['cpu']} s{diverged}"


def try_settings(task: str, name: str, settings: Settings, before: Sequence[Record]) -> Record:
    job, best = build_trial(TASKS[task], load_data(task), name, settings, _TUNING_SEED), 0.0

    def stop(event: Mapping[str, Any]) -> bool:
        nonlocal best
        best = max(best, read_score(event, job.metrics[0]))
        return name != "svfl" and is_behind(event, best, before, job.epochs)

    return {"trial": len(before), "settings": settings, **run_trial(job, stop)}


# Judge: fresh seeds, test rows ------------------------------------------------------------------------------------


def score_test_rows(job: tw.Job, data: TaskData) -> NDArray[np.float64]:
    """The delivered model's score on all test rows, then on bootstraps of them; embeddings as they would travel."""
    embeddings = [
        compress_for_scoring(job.recipe, embed_in_chunks(party.bottom, x)).to_tensor()
        for party, x in zip(job.parties, data.test.features, strict=True)
    ]
    label = job.label_party
    if label.bottom is not None and data.test.label_features is not None:
        embeddings.append(embed_in_chunks(label.bottom, data.test.label_features))
    outputs = Outputs.of(label.loss).to_scored(compute_outputs(label.top, label.fusion, embeddings))
    return draw_scores(job.metrics[0], outputs, data.test.labels)


def draw_scores(name: str, outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Of all rows, then of bootstraps: the same rows for every run."""
    rng, score = np.random.default_rng(0), metric(name)
    samples = [torch.from_numpy(rng.integers(0, len(labels), len(labels))) for _ in range(_BOOTSTRAPS)]
    return np.array([score.compute(outputs[rows], labels[rows]) for rows in (torch.arange(len(labels)), *samples)])


def pack_scores(scores: NDArray[np.float64]) -> str:
    return base64.b64encode(np.rint(scores * _SCALE).astype("<u2").tobytes()).decode()


def unpack_scores(text: str) -> NDArray[np.float64]:
    return np.frombuffer(base64.b64decode(text), "<u2") / _SCALE


def judge_trial(kind: str, task: str, name: str, settings: Settings, seed: int, target: float) -> Record:
    """To the end; the cheapest trial, until the validation score is at the target."""
    data = load_data(task)
    job = build_trial(TASKS[task], data, name, settings, seed)
    measure = TASKS[task].metric

    def is_there(event: Mapping[str, Any]) -> bool:
        return kind == _CHEAPEST and read_score(event, measure) >= target

    found = run_trial(job, is_there)
    scores = np.zeros(_BOOTSTRAPS + 1) if found["diverged"] else score_test_rows(job, data)  # no model, no score
    point = find_point(found, target)
    return {
        "settings": settings, "seed": seed, "target": target, "test": round(float(scores[0]), 5),
        "reached": None if point is None else [point.round, point.training_bytes, point.bytes],
        **{key: found[key] for key in ("best", "rounds", "bytes", "diverged", "cpu")},
        **({"scores": pack_scores(scores)} if kind == _BEST else {}),
    }  # fmt: skip


def judge(asked: argparse.Namespace, records: Records) -> None:
    for task in asked.tasks:
        target = find_target(records, task)
        if target is None:
            print(f"{task}: no svfl trial yet; tune it first")
            continue
        require_same_task(records, task)
        for name in asked.methods:
            judge_cell(task, name, target, asked.seeds, records)


def judge_cell(task: str, name: str, target: float, seeds: Sequence[int], records: Records) -> None:
    for kind, trial in list_runs(records, task, name, target):
        for seed in seeds:
            key = write_judged_key(kind, task, name, trial, target, seed)
            found = records.find(key, partial(judge_trial, kind, task, name, trial["settings"], seed, target))
            print(f"{kind} {task} {name} seed {seed}: {found['test']:.4f}, {found['reached']}", flush=True)


def write_judged_key(kind: str, task: str, name: str, trial: Record, target: float, seed: int) -> str:
    return write_key(kind, task, name, {**trial["settings"], "target": target, "seed": seed})


def list_trials(records: Records, task: str, name: str) -> list[Record]:
    """Those that a method's settings are chosen from."""
    return records.list(f"tune {task} {METHODS[name].settings_of or name} ")


def list_runs(records: Records, task: str, name: str, target: float) -> list[tuple[str, Record]]:
    """The best trial, then the cheapest one to the target where that is another one."""
    trials = list_trials(records, task, name)
    if not trials:
        return []
    best, cheapest = choose_best(trials), choose_cheapest(trials, target)
    other = [] if cheapest is None or cheapest is best else [(_CHEAPEST, cheapest)]
    return [(_BEST, best), *other]


# Tables -----------------------------------------------------------------------------------------------------------


def table(asked: argparse.Namespace, records: Records) -> None:
    print("\n".join([*list_tuned_lines(asked, records), "", *list_judged_lines(asked, records)]))


def list_tuned_lines(asked: argparse.Namespace, records: Records) -> list[str]:
    """On validation rows, as tuned."""
    lines = [
        "| data set | method | trials | best validation score | target | MB to it (training alone) | times fewer "
        "than svfl | exchanges | settings |",
        "|" + "---|" * 9,
    ]
    for task in asked.tasks:
        target = find_target(records, task)
        if target is None:
            continue
        base = choose_cheapest(records.list(f"tune {task} svfl "), target)
        for name in asked.methods:
            trials = records.list(f"tune {task} {name} ")
            if trials:
                lines.append(_format_tuned(task, name, trials, target, base))
    return lines


def _format_tuned(task: str, name: str, trials: Sequence[Record], target: float, base: Record | None) -> str:
    chosen, best = choose_cheapest(trials, target), choose_best(trials)
    cells = [task, name, str(len(trials)), _format_score(best["best"]), _format_score(target)]
    point = None if chosen is None else find_point(chosen, target)
    theirs = None if base is None else find_point(base, target)
    if chosen is None or point is None or theirs is None:
        return _join([*cells, "not reached", "", "", ""])
    said = ", ".join(f"{key} {value}" for key, value in chosen["settings"].items())
    sent = f"{point.bytes / 1e6:.3g} ({point.training_bytes / 1e6:.3g})"
    return _join([*cells, sent, f"{theirs.bytes / point.bytes:.3g}", str(point.round), said])


def list_judged_lines(asked: argparse.Namespace, records: Records) -> list[str]:
    """On test rows, with fresh seeds."""
    lines = [
        "| data set | raw rows gzipped, labels' entropy (MB) | method | MB to the target, median (training alone) "
        "| times fewer than svfl | exchanges | test score there | best test score | less svfl's best |",
        "|" + "---|" * 9,
    ]
    for task in asked.tasks:
        target = find_target(records, task)
        if target is None or not records.list(f"best {task} svfl "):
            continue
        sizes = records.find(f"sizes {task}", partial(count_sizes, task))
        beside = f"{sizes['raw'] / 1e6:.3g}, {sizes['labels'] / 1e6:.2g}"
        runs = {name: read_judged(records, task, name, target, asked.seeds) for name in ("svfl", *asked.methods)}
        if all(is_complete(runs.get(name, {}), len(asked.seeds)) for name in _RULE):
            runs["once, then thin"] = follow_rule(*(runs[name] for name in _RULE))
        for name in [*asked.methods, *(name for name in runs if name not in METHODS)]:
            if runs[name][_BEST]:
                lines.append(_join([task, beside, name, *_format_judged(runs[name], runs["svfl"])]))
    return lines


def is_complete(runs: Mapping[str, list[Record]], seeds: int) -> bool:
    """Judged with all seeds?"""
    return len(runs.get(_BEST, ())) == seeds and len(runs[_CHEAPEST]) in (0, seeds)


def follow_rule(once: Mapping[str, list[Record]], thin: Mapping[str, list[Record]]) -> dict[str, list[Record]]:
    """Seed by seed: the first one's run, and the second's after it where the first missed the target."""
    pairs = list(zip(once[_CHEAPEST], thin[_CHEAPEST], strict=True))
    best = zip(once[_BEST], thin[_BEST], strict=True)
    return {
        _CHEAPEST: [first if first["reached"] else add_costs(first, second) for first, second in pairs],
        _BEST: [max(both, key=lambda run: run["best"]) for both in best],
    }


def add_costs(first: Record, second: Record) -> Record:
    """The second run after the whole of the first."""
    spent = (first["rounds"], first["bytes"], first["bytes"])
    reached = second["reached"] and [more + before for more, before in zip(second["reached"], spent, strict=True)]
    return {**second, "reached": reached}


def count_sizes(task: str) -> Record:
    data = load_data(task)
    return {
        "raw": count_raw_bytes(data),
        "labels": count_label_bytes(data.train.labels),
        "rows": len(data.train.labels),
    }


def read_judged(
    records: Records, task: str, name: str, target: float, seeds: Sequence[int]
) -> dict[str, list[Record]]:
    """The runs of the trials that are chosen now, seed by seed. The cheapest ones are those of the two chosen trials
    that reached the target with fewer bytes in the median: one run may have reached it by luck."""
    found: dict[str, list[Record]] = {_CHEAPEST: [], _BEST: []}  # of equal ones those that stopped at the target
    for kind, trial in list_runs(records, task, name, target):
        keys = (write_judged_key(kind, task, name, trial, target, seed) for seed in seeds)
        found[kind] = [run for key in keys for run in records.list(key) if run["key"] == key]
    judged = [runs for runs in found.values() if runs]
    cheapest = min(judged, key=partial(take_median, place=_ALL_BYTES)) if judged else []
    return {_BEST: found[_BEST], _CHEAPEST: cheapest}


def _format_judged(mine: Mapping[str, list[Record]], svfl: Mapping[str, list[Record]]) -> list[str]:
    runs, best = mine[_CHEAPEST], mine[_BEST]
    sent, ratio, rounds = _format_costs(runs, svfl[_CHEAPEST])
    there = _format_score(fmean(run["test"] for run in runs)) if ratio or rounds else ""
    differences = subtract_scores(best, svfl[_BEST])
    less = format_interval(differences) if differences else ""
    return [sent, ratio, rounds, there, _format_score(fmean(run["test"] for run in best)), less]


def _format_costs(runs: Sequence[Record], svfl: Sequence[Record]) -> tuple[str, str, str]:
    """Bytes, their ratio to svfl's and exchanges, of the median seed; seeds that missed the target cost infinity."""
    missed = sum(run["reached"] is None for run in runs)
    note = f"; {missed} of {len(runs)} seeds missed it" if missed else ""
    rounds, training, total = (take_median(runs, place) for place in range(3))
    if total == float("inf"):
        return f"missed by {missed} of {len(runs)} seeds", "", ""
    theirs = take_median(svfl, _ALL_BYTES)
    ratio = "svfl missed it" if theirs == float("inf") else f"{theirs / total:.3g}"
    return f"{total / 1e6:.3g} ({training / 1e6:.3g}){note}", ratio, f"{rounds:.0f}"


def take_median(runs: Sequence[Record], place: int) -> float:
    """Over seeds, of rounds, training bytes or all bytes to the target."""
    return float(median(float("inf") if run["reached"] is None else run["reached"][place] for run in runs))


def subtract_scores(mine: Sequence[Record], svfl: Sequence[Record]) -> list[list[float]]:
    """What each seed's run is above svfl's: of all test rows, then of bootstraps."""
    theirs = {run["seed"]: unpack_scores(run["scores"]) for run in svfl}
    return [(unpack_scores(run["scores"]) - theirs[run["seed"]]).tolist() for run in mine if run["seed"] in theirs]


def _format_score(value: float) -> str:
    return f"{100 * value:.2f}"


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "judge", "table"])
    parser.add_argument("--tasks", type=_read_names(TASKS), default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument(
        "--methods", type=_read_names(METHODS), default=list(METHODS), help=f"of {', '.join(METHODS)}"
    )
    parser.add_argument("--trials", type=int, default=20, help="of a cell")
    parser.add_argument("--cell-minutes", type=float, default=60.0, help="of a core, after which a cell ends")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("build/fewest_bytes.jsonl"))
    return parser.parse_args()


def _read_names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
        return names

    return read


def main() -> int:
    asked = parse_arguments()
    {"tune": tune, "judge": judge, "table": table}[asked.what](asked, Records(asked.out))
    return 0


if __name__ == "__main__":
    share_memory_pool()
    sys.exit(main())
