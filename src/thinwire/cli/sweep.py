"""`thinwire sweep`: one job with many settings and seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from thinwire.cli.compare import point_cells, seed_numbers
from thinwire.cli.shown import AsJson, JobPath, Settings
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from thinwire.sweeps import Grid, Swept, Tried

__all__ = ["sweep"]

INTERRUPTED = 130


def sweep(
    job: JobPath,
    *,
    axes: Annotated[
        list[str],
        typer.Option("--grid", metavar="KEY=V,V", help="Values to try, such as recipe.reuse=2,4,6; may be repeated."),
    ] = [],  # noqa: B006
    seeds: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--seeds", help="Which, with commas between; the job's unless given."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Runs at the same time.")] = 2,
    executor: Annotated[str, typer.Option("--executor", help="processes, or ray: a Ray cluster.")] = "processes",
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="DIR", help="A folder for all runs; runs/<job>-sweep unless given."),
    ] = None,
    settings: Settings = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Train a job with every combination of settings and seeds; the same command again goes on where it stopped."""
    from rich.console import Console

    from thinwire.job.job_loader import load_job, read_job_file, resolve_job
    from thinwire.job.messages import at
    from thinwire.sweeps import Grid
    from thinwire.sweeps.grid import read_axis
    from thinwire.sweeps.keeping import TABLE, keep_sweep

    values = dict(read_axis(axis) for axis in axes)
    if len(values) < len(axes):
        raise BadInput(
            "--grid: a key is there twice; give all of its values at once, as in --grid recipe.reuse=2,4,6"
        )
    grid = Grid(job, values, [] if seeds is None else seed_numbers(seeds), settings)
    trials = grid.trials()
    for trial in trials:  # before anything starts: are the settings such as can be?
        with at(trial.said):
            resolve_job(job, trial.overrides)
    load_job(job, trials[0].overrides)
    with at(str(job)):
        file = read_job_file(job, settings)
    folder = out or Path("runs") / f"{job.stem}-sweep"
    try:
        found = _run(grid, folder, workers, executor, Console(stderr=True))
    except KeyboardInterrupt:
        typer.echo("thinwire: stopped; the same command goes on, and keeps what is finished", err=True)
        raise typer.Exit(INTERRUPTED) from None
    metric = next(iter(file.job.metrics), "loss")
    target = None if file.job.target is None else file.job.target.model_dump()
    kept = keep_sweep(folder, job, found.points(), metric, target)
    points = kept["points"]
    if as_json:
        typer.echo(json.dumps(kept))
    else:
        _print(Console(), points, metric, target)
        typer.echo(f"  runs: {folder}, their figures: {folder / TABLE}")
        typer.echo(f"  report: {kept['report']}")
    failed = [error for point in points for error in point["errors"]]
    if failed:
        typer.echo("thinwire: " + "\n".join(failed), err=True)
        raise typer.Exit(1)


def _run(grid: Grid, folder: Path, workers: int, executor: str, console: Console) -> Swept:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from thinwire.sweeps import sweep as sweep_jobs

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as live:
        task = live.add_task("runs", total=len(grid.trials()))

        def done(one: Tried) -> None:
            live.advance(task)
            live.console.print(_said(one), markup=False, highlight=False, soft_wrap=True)

        return sweep_jobs(grid, folder, workers, executor, done)


def _said(one: Tried) -> str:
    if one.summary is None:
        return f"{one.trial.said}: {one.error or 'stopped'}"
    best = one.summary["best"]
    value = "none" if best["value"] is None else f"{best['value']:.4g}"
    return f"{one.trial.said}: best {best['metric']} {value}{' (finished before)' if one.kept else ''}"


def _print(console: Console, points: list[dict[str, Any]], metric: str, target: dict[str, Any] | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from thinwire.job.toml_text import inline
    from thinwire.sweeps.ranking import ranking_said

    keys = list(points[0]["settings"])
    table = Table(title=f"{ranking_said(metric, target)}; means and deviations over seeds", box=SIMPLE_HEAD)
    for key in keys:
        table.add_column(key.replace(".", ".\n"), no_wrap=True)
    for heading in ("reached", "rounds", "up", "down", "link\ntime", f"best\n{metric}"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        names = [value if isinstance(value, str) else inline(value) for value in point["settings"].values()]
        table.add_row(*names, *(point_cells(point, target is not None) if point["runs"] else ["failed"]))
    console.print(table)
