"""What an experiment leaves: results.csv, one line an evaluation; summary.json; report.html."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from thinwire.base.environment import environment
from thinwire.lab.papers.expecting import Verdict, judged
from thinwire.lab.papers.experiment import Experiment
from thinwire.lab.papers.real_link import RealRun
from thinwire.lab.papers.report import Words, html_report
from thinwire.lab.papers.runs import Outcome, value_at
from thinwire.lab.papers.statistics import CurveResult, Number, results_of
from thinwire.storage import layout
from thinwire.storage.json_file import indented_json
from thinwire.storage.run_directory import RunDirectory

_COSTS = ("round", "epoch", "bytes.total", "bytes.up", "link_seconds")
_COLUMNS = ("round", "epoch", "train.loss", "test.loss")
_MORE = (
    "bytes.up",
    "bytes.down",
    "bytes.total",
    "paper_bytes",
    "link_seconds",
    "seconds",
    "diagnostics.squared_gradient_norm",
    "diagnostics.relative_gradient_norm",
    "gradient_norm_since_first_step",
)


def written(
    experiment: Experiment, outcomes: Sequence[Outcome], words: Words, out: Path, real: Sequence[RealRun] = ()
) -> dict[str, Any]:
    """Writes the three files; gives the summary."""
    results = results_of(experiment, outcomes)
    verdicts = judged(experiment.expectations, results)
    summary = {
        **_summary(experiment, results, verdicts, words.data),
        "real_link": [_real(run, results) for run in real],
    }
    folder = RunDirectory(out)
    folder.write("results.csv", _csv(experiment, results).encode())
    folder.write("summary.json", indented_json(summary))
    folder.write(layout.REPORT, html_report(experiment, results, verdicts, words, summary["real_link"]).encode())
    return {**summary, "out": str(out)}


def _csv(experiment: Experiment, results: Sequence[CurveResult]) -> str:
    metrics = experiment.curves[0].settings.metrics or []
    places = [*_COLUMNS, *(f"{part}.{name}" for name in metrics for part in ("train", "test")), *_MORE]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["curve", "seed", *places])
    for result in results:
        for run in result.runs:
            for event in run.history:
                values = (value_at(event, place) for place in places)
                table.writerow([result.name, run.seed, *("" if value is None else value for value in values)])
    return text.getvalue()


def _summary(
    experiment: Experiment, results: Sequence[CurveResult], verdicts: Sequence[Verdict], about_data: str
) -> dict[str, Any]:
    target = results[0].target
    return {
        "experiment": experiment.name,
        "paper": experiment.about.paper,
        "figure": experiment.about.figure,
        "claim": experiment.about.claim,
        "size": experiment.size,
        "says": experiment.says,
        "data": about_data,
        "seeds": list(experiment.seeds),
        "width": experiment.about.width,
        "target": None if target is None else {"metric": target[0], "value": target[1]},
        "expectations": [_plain(asdict(verdict)) for verdict in verdicts],
        "met": sum(verdict.met for verdict in verdicts),
        "curves": [_curve(experiment, result) for result in results],
        "environment": environment(),
    }


def _real(run: RealRun, results: Sequence[CurveResult]) -> dict[str, Any]:
    """A run over the real link beside the same run on the link's clock."""
    result = next(result for result in results if result.name == run.curve)
    twin = next(one for one in result.runs if one.seed == run.seed)
    clock = CurveResult(run.curve, (twin,), result.target).cost("link_seconds")
    return {
        "curve": run.curve,
        "seed": run.seed,
        "seconds": run.seconds(),
        "link_seconds": twin.history[-1]["link_seconds"],
        "target_seconds": None if result.target is None else run.seconds_to(*result.target),
        "target_link_seconds": None if clock is None or not isfinite(clock.mean) else clock.mean,
        "same_scores": run.same_scores,
    }


def _curve(experiment: Experiment, result: CurveResult) -> dict[str, Any]:
    metrics = experiment.curves[0].settings.metrics or []
    finals = ["train.loss", *(f"test.{name}" for name in metrics), *_MORE]
    return {
        "name": result.name,
        "seeds": [run.seed for run in result.runs],
        "diverged": {str(run.seed): run.diverged for run in result.runs if run.diverged},
        "final": {place: _number(result.final(place)) for place in finals},
        "best": {f"test.{name}": _number(result.best(f"test.{name}")) for name in metrics},
        "to_target": {place: _number(result.cost(place)) for place in _COSTS},
        "reached": _number(result.reached()),
        "privacy": result.runs[0].summary.get("privacy", []),
    }


def _number(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else _plain({"mean": number.mean, "std": number.deviation})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for infinity."""
    return {
        key: "infinity" if isinstance(value, float) and not isfinite(value) else value
        for key, value in values.items()
    }
