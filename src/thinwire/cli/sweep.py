"""`thinwire sweep`: one job with many settings and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.compare import exit_with_failures, format_point, list_headings
from thinwire.cli.options import parse_seeds
from thinwire.cli.output import build_table, print_plain, print_result, stop_with
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from thinwire.lab.sweep import Grid, SweepResult, TrialResult


def sweep(
    job: Path,
    *,
    axes: list[str] = [],
    seeds: str | None = None,
    workers: int = 2,
    executor: str = "processes",
    prune: bool = False,
    out: Path | None = None,
    settings: list[str] = [],
    as_json: bool = False,
) -> None:
    """Train a job with every combination of settings and seeds; run the same command again to resume."""
    from thinwire.job.job_file import read_job_file
    from thinwire.job.job_loader import load_job, resolve_job
    from thinwire.job.messages import within
    from thinwire.lab.sweep import Grid
    from thinwire.lab.sweep.page import keep_sweep
    from thinwire.lab.sweep.trials import read_axis

    values = dict(read_axis(axis) for axis in axes)
    if len(values) < len(axes):
        raise BadInput(
            "--grid: a key appears twice; list all of its values in one --grid, as in --grid recipe.reuse=2,4,6"
        )
    grid = Grid(job, values, [] if seeds is None else parse_seeds(seeds), settings)
    trials = grid.trials()
    for trial in trials:  # before anything starts: are the settings such as can be?
        with within(trial.label):
            resolve_job(job, trial.overrides)
    with ProgressLine("reading the tables", 0) as progress:
        load_job(job, trials[0].overrides, on_progress=progress.follower)
    with within(str(job)):
        file = read_job_file(job, settings)
    if prune and file.job.target is not None:
        raise BadInput(
            "--prune compares scores, and this job's runs are ranked by bytes to its target; leave one out"
        )
    folder = out or Path("runs") / f"{job.stem}-sweep"
    try:
        found = _run(grid, folder, workers, executor, prune)
    except KeyboardInterrupt:
        raise stop_with("stopped; run the same command again to resume, finished runs are kept") from None
    metric = next(iter(file.job.metrics), "loss")
    target = None if file.job.target is None else file.job.target.model_dump()
    kept = keep_sweep(folder, job, found.points(), metric, target)
    print_result(kept, as_json, lambda: _print(kept, folder, metric, target))
    exit_with_failures([error for point in kept["points"] for error in point["errors"]])


def _run(grid: Grid, folder: Path, workers: int, executor: str, prune: bool) -> SweepResult:
    from thinwire.lab.sweep import sweep as sweep_jobs

    with ProgressLine("runs", len(grid.trials())) as progress:
        return sweep_jobs(grid, folder, workers, executor, lambda one: progress.advance(_format_trial(one)), prune)


def _format_trial(one: TrialResult) -> str:
    if one.summary is None:
        return f"{one.trial.label}: {one.error or 'stopped'}"
    before = " (finished before)" if one.kept else ""
    if one.pruning is not None:
        at, score = one.pruning["epoch"], f"{one.pruning['metric']} {one.pruning['value']:.4g}"
        return f"{one.trial.label}: pruned at epoch {at:.3g}, {score}{before}"
    delivered = one.summary["delivered"]
    value = "none" if delivered["value"] is None else f"{delivered['value']:.4g}"
    return f"{one.trial.label}: delivered {delivered['metric']} {value}{before}"


def _print(kept: dict[str, Any], folder: Path, metric: str, target: dict[str, Any] | None) -> None:
    from thinwire.lab.sweep.page import TABLE, describe_ranking, format_setting

    keys = [key.replace(".", ".\n") for key in kept["points"][0]["settings"]]
    title = f"{describe_ranking(metric, target)}; means and standard deviations over seeds"
    table = build_table(title, keys, list_headings(metric, target is not None))
    for point in kept["points"]:
        rounds, *others = format_point(point, target is not None)
        settings = map(format_setting, point["settings"].values())
        table.add_row(*settings, _format_rounds(point, rounds), *others)
    print_plain(table)
    typer.echo(f"  runs: {folder}, their figures: {folder / TABLE}")
    typer.echo(f"  report: {kept['report']}")


def _format_rounds(point: dict[str, Any], rounds: str) -> str:
    """With what was pruned in lines below: narrow, since a terminal has 80 columns."""
    lines = [] if point["pruned"] and not point["runs"] else [rounds]
    for one in point["pruned"]:
        lines += ["pruned", *([] if one["seed"] is None else [f"seed {one['seed']}"]), f"epoch {one['epoch']:.3g}"]
    return "\n".join(lines)
