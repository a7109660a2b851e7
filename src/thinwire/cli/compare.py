"""`thinwire compare`: the same job under several recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from thinwire.cli.comparing import Run, outcome, recipe_table
from thinwire.cli.shown import AsJson, JobPath, Settings, bytes_shown, seconds_shown
from thinwire.cli.train import new_folder
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

__all__ = ["compare", "point_cells", "seed_numbers"]


def compare(
    job: JobPath,
    methods: Annotated[str, typer.Option("--methods", help="Which, with commas between.")] = "svfl,celu,efvfl,thin",
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--target", metavar="METRIC=VALUE", help="Instead of the job's target."),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Which, with commas between.")] = "0",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Runs at the same time.")] = 2,
    settings: Settings = [],  # noqa: B006
    *,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="DIR", help="For runs and report; runs/compare-<job>-<time> unless given."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train the same job under several methods and seeds, and compare what it took."""
    from rich.console import Console

    from thinwire.job.job_loader import load_job, read_job_file
    from thinwire.job.messages import at
    from thinwire.job.toml_text import inline

    chosen = seed_numbers(seeds)
    shared = [*settings, *_target(target)]
    with at(str(job)):
        file = read_job_file(job, shared)
    recipes = {method: recipe_table(method, file.recipe) for method in _names(methods)}
    overrides = {method: (*shared, f"recipe={inline(table)}") for method, table in recipes.items()}
    for method, given in overrides.items():
        with at(method):
            load_job(job, given)
    folder = _free(out or new_folder(f"compare-{job.stem}"))
    runs = [
        Run(str(job), (*overrides[method], f"job.seed={seed}"), method, seed, str(folder / f"{method}-{seed}"))
        for method in recipes
        for seed in chosen
    ]
    found = _run(runs, workers, Console(stderr=True))
    report = _reported(found, folder)
    rows = [_row(method, table, found[method]) for method, table in recipes.items()]
    aim = None if file.job.target is None else file.job.target.model_dump()
    metric = next(iter(file.job.metrics), "loss")
    if as_json:
        said = {"target": aim, "metric": metric, "seeds": chosen, "report": report, "methods": rows}
        typer.echo(json.dumps(said))
    else:
        _print(Console(), rows, aim, metric)
        if report is not None:
            typer.echo(f"report: {report}")
    failed = [f"{row['method']}: {error}" for row in rows for error in row["errors"]]
    if failed:
        typer.echo("thinwire: " + "\n".join(failed), err=True)
        raise typer.Exit(1)


def _free(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--out: {folder} is there already and not empty; give another one")
    return folder


def _reported(found: dict[str, list[dict[str, Any]]], folder: Path) -> str | None:
    """Of the runs that came to their end; their evaluations and ledgers stay in their folders."""
    from thinwire.at_rest import layout
    from thinwire.report.keeping import write_report
    from thinwire.report.reading import read_openly

    ended = [one["run_dir"] for outcomes in found.values() for one in outcomes if "error" not in one]
    if not ended:
        return None
    return str(write_report([read_openly(Path(run)) for run in ended], folder / layout.REPORT))


def _names(text: str) -> list[str]:
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput("--methods: name one method at least, as in --methods svfl,thin")
    return list(dict.fromkeys(names))


def seed_numbers(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds: whole numbers with commas between, as in --seeds 0,1,2; got {text!r}") from None


def _target(text: str | None) -> list[str]:
    if text is None:
        return []
    metric, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        equals = ""
    if not equals:
        raise BadInput(f"--target: write METRIC=VALUE, as in --target accuracy=0.92; got {text!r}")
    return [f"job.target.metric={json.dumps(metric.strip())}", f"job.target.value={number}"]


def _run(runs: Sequence[Run], workers: int, console: Console) -> dict[str, list[dict[str, Any]]]:
    """Outcomes by method, in the order of the seeds."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from thinwire.sweeps import each

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    outcomes: dict[Run, dict[str, Any]] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as live:
        task = live.add_task("runs", total=len(runs))
        for run, found_here in each(outcome, runs, workers):
            outcomes[run] = found_here
            live.advance(task)
            ended = found_here.get("error") or f"best {found_here['best']:.4g}"
            said = f"{run.method}, seed {run.seed}: {ended}"
            live.console.print(said, markup=False, highlight=False, soft_wrap=True)
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(outcomes[run])
    return found


def _row(method: str, recipe: dict[str, Any], outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    from thinwire.sweeps import averaged

    done = [outcome for outcome in outcomes if "error" not in outcome]
    mean, deviation = averaged(done)
    return {
        "method": method,
        "recipe": recipe,
        "runs": done,
        "errors": [outcome["error"] for outcome in outcomes if "error" in outcome],
        "reached": sum(bool(outcome["reached"]) for outcome in done),
        "mean": mean,
        "std": deviation,
    }


def _print(console: Console, rows: list[dict[str, Any]], aim: dict[str, Any] | None, metric: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = "to the end" if aim is None else f"to {aim['metric']} {aim['value']:g}, or to the end"
    table = Table(title=f"{title}; means and deviations over seeds", box=SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for heading in ("reached", "rounds", "up", "down", "link\ntime", f"best\n{metric}"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if not row["runs"]:
            table.add_row(row["method"], "failed")
            continue
        table.add_row(row["method"], *point_cells(row, aim is not None))
    console.print(table)


def point_cells(row: dict[str, Any], has_target: bool) -> list[str]:
    """Reached, rounds, up, down, link time, best: of runs that differ in the seed alone."""
    return [
        f"{row['reached']}/{len(row['runs'])}" if has_target else "-",
        _cell(row, "rounds", lambda value: f"{value:.0f}"),
        _cell(row, "bytes_up", bytes_shown),
        _cell(row, "bytes_down", bytes_shown),
        _cell(row, "link_seconds", seconds_shown),
        _cell(row, "best", lambda value: f"{value:.4f}"),
    ]


def _cell(row: dict[str, Any], name: str, said: Callable[[float], str]) -> str:
    mean, deviation = row["mean"][name], row["std"][name]
    if mean is None:
        return "-"
    return said(mean) if len(row["runs"]) == 1 else f"{said(mean)}\n± {said(deviation)}"
