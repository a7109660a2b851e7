"""`thinwire compare`: the same job under several methods."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import typer

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.format import format_bytes, format_seconds, name_score
from thinwire.cli.options import parse_seeds, parse_target
from thinwire.cli.output import build_table, print_plain, print_result, say
from thinwire.cli.train import new_folder
from thinwire.report.progress import ProgressLine


def list_headings(metric: str, has_target: bool) -> list[str]:
    """Of the cells that `format_point` gives."""
    reached = ["reached"] if has_target else []
    costs = ["rounds", "bytes\nin all", "training\nalone", "link\ntime"]
    return [*reached, *costs, f"delivered\n{name_score(metric)}", f"test\n{name_score(metric)}"]


@dataclass(frozen=True)
class _MethodRun:
    """One run to make."""

    job: str
    overrides: tuple[str, ...]
    method: str
    seed: int
    out: str  # its folder


_FOR_NETWORKS = "svfl,celu,efvfl,thin"
_FOR_TREES = "svfl,boosting"  # the others reuse derivatives, or send none


def compare(
    job: Path,
    methods: str = _FOR_NETWORKS,
    target: str | None = None,
    seeds: str = "0",
    workers: int = 2,
    settings: list[str] = [],
    *,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Train the same job with several methods and seeds, and compare score, bytes and time."""
    from thinwire.job.job_file import inline, read_job_file
    from thinwire.job.job_loader import load_job
    from thinwire.job.messages import within
    from thinwire.lab.sweep.page import rank_points

    chosen = parse_seeds(seeds)
    shared = [*settings, *parse_target(target)]
    with within(str(job)):
        file = read_job_file(job, shared)
    if methods == _FOR_NETWORKS and file.has_trees:
        methods = _FOR_TREES
    recipes = {method: build_recipe_table(method, file.recipe) for method in _parse_methods(methods)}
    overrides = {method: (*shared, f"recipe={inline(table)}") for method, table in recipes.items()}
    with ProgressLine("reading the tables", 0) as progress:
        for method, given in overrides.items():
            with within(method):
                load_job(job, given, on_progress=progress.follower)
    folder = _require_empty(out or new_folder(f"compare-{job.stem}"))
    runs = [
        _MethodRun(str(job), (*overrides[method], f"job.seed={seed}"), method, seed, str(folder / f"{method}-{seed}"))
        for method in recipes
        for seed in chosen
    ]
    found = _run_all(runs, workers)
    report = _write_report(found, folder)
    aim = None if file.job.target is None else file.job.target.model_dump()
    metric = next(iter(file.job.metrics), "loss")
    points = [_summarise(method, table, found[method]) for method, table in recipes.items()]
    rows = rank_points(points, metric, aim is not None)
    facts = {"target": aim, "metric": metric, "seeds": chosen, "report": report, "methods": rows}
    print_result(facts, as_json, lambda: _print(rows, aim, metric, report))
    exit_with_failures([f"{row['method']}: {error}" for row in rows for error in row["errors"]])


def exit_with_failures(failed: Sequence[str]) -> None:
    """Exit code 1 where runs failed, after what the others gave was printed."""
    if failed:
        say("\n".join(failed))
        raise typer.Exit(1)


def _require_empty(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--out: {folder} already exists and is not empty; give another one")
    return folder


def _write_report(found: dict[str, list[dict[str, Any]]], folder: Path) -> str | None:
    """Of the runs that came to their end; their evaluations and ledgers stay in their folders."""
    from thinwire.report.folder import read_openly, write_report
    from thinwire.storage import layout

    ended = [one["run_dir"] for outcomes in found.values() for one in outcomes if "error" not in one]
    if not ended:
        return None
    return str(write_report([read_openly(Path(run)) for run in ended], folder / layout.REPORT))


def _parse_methods(text: str) -> list[str]:
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput("--methods: name at least one method, as in --methods svfl,thin")
    return list(dict.fromkeys(names))


def _run_all(runs: Sequence[_MethodRun], workers: int) -> dict[str, list[dict[str, Any]]]:
    """Outcomes by method, in the order of the seeds."""
    from thinwire.lab.runner import run_each

    outcomes: dict[_MethodRun, dict[str, Any]] = {}
    with ProgressLine("runs", len(runs)) as progress:
        for run, outcome in run_each(_run_method, runs, workers):
            outcomes[run] = outcome
            ended = outcome.get("error") or f"delivered {outcome['delivered']:.4g}"
            progress.advance(f"{run.method}, seed {run.seed}: {ended}")
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(outcomes[run])
    return found


def _summarise(method: str, recipe: dict[str, Any], outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    from thinwire.lab.sweep.page import pool_runs

    done = [outcome for outcome in outcomes if "error" not in outcome]
    errors = [outcome["error"] for outcome in outcomes if "error" in outcome]
    return {"method": method, "recipe": recipe, **pool_runs(done, errors)}


def _print(rows: list[dict[str, Any]], aim: dict[str, Any] | None, metric: str, report: str | None) -> None:
    from thinwire.lab.sweep.page import describe_ranking

    title = describe_ranking(metric, aim)
    headings = list_headings(metric, aim is not None)
    table = build_table(f"{title}; means and standard deviations over seeds", ["method"], headings)
    for row in rows:
        table.add_row(row["method"], *format_point(row, aim is not None))
    print_plain(table)
    if report is not None:
        typer.echo(f"report: {report}")


def format_point(row: dict[str, Any], has_target: bool) -> list[str]:
    """Cells below `list_headings`: of runs that differ in the seed alone."""
    if not row["runs"]:
        return ["pruned" if row.get("pruned") else "failed"]
    return [
        *([f"{row['reached']}/{len(row['runs'])}"] if has_target else []),
        _format_cell(row, "rounds", lambda value: f"{value:.0f}"),
        _format_cell(row, "bytes_all", format_bytes),
        _format_cell(row, "bytes_training", format_bytes),
        _format_cell(row, "link_seconds", format_seconds),
        _format_cell(row, "delivered", lambda value: f"{value:.4f}"),
        _format_cell(row, "test", lambda value: f"{value:.4f}"),
    ]


def _format_cell(row: dict[str, Any], name: str, format: Callable[[float], str]) -> str:
    mean, deviation = row["mean"][name], row["std"][name]
    if mean is None:
        return "-"
    return format(mean) if len(row["runs"]) == 1 else f"{format(mean)}\n± {format(deviation)}"


def build_recipe_table(method: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The job's own recipe where it is of that method; else defaults, and what fits of its arguments.

    An argument that would make it svfl once more is not taken over, which is said on stderr.
    """
    from thinwire.base.format import did_you_mean
    from thinwire.engine.methods import METHODS
    from thinwire.job.job_file import inline
    from thinwire.job.registry import list_parameters

    if method not in METHODS:
        raise BadInput(f"--methods: {method!r} is not one of {', '.join(METHODS)}{did_you_mean(method, METHODS)}")
    if str(own.get("method")).lower() == method:
        return {**own, "method": method}
    usual = tomllib.loads(files("thinwire.cli").joinpath("methods.toml").read_text(encoding="utf-8"))
    alike = list_parameters(METHODS[method]).keys() & usual["alike"]
    table = {"method": method, **usual["method"][method], **{key: own[key] for key in own if key in alike}}
    for key, value in usual["same_as_svfl"].get(method, {}).items():
        if _name_value(table[key]) == _name_value(value):
            table[key] = usual["method"][method][key]
            given, kept = inline(value), inline(table[key])
            say(
                f"{method}: the job's {key} = {given} would make it identical to svfl, so it runs with its "
                f"default {kept}"
            )
    return table


def _name_value(value: Any) -> Any:
    """A compressor by its name, with or without arguments."""
    named = value.get("name") if isinstance(value, Mapping) else value
    return named.lower() if isinstance(named, str) else named


def _run_method(run: _MethodRun) -> dict[str, Any]:
    """The run's numbers, to its target where it has one; or the error that ended it, as text."""
    from thinwire.job.job_loader import JobSource
    from thinwire.job.job_snapshot import save_job
    from thinwire.lab.runner import train_to_end
    from thinwire.training.result import meets

    try:
        overrides = (*run.overrides, "job.stop=false")  # for the delivered model; the history tells of the target
        source = JobSource(run.job, overrides)
        job = source.load()
        save_job(Path(run.out), source.resolve(), job)
        result = train_to_end(job, out=Path(run.out))
    except ThinwireError as error:
        return {"error": str(error)}
    met = [] if job.target is None else [one for one in result.evaluations if meets(one, job.target)]
    last = result.evaluations[-1]
    there = met[0] if met else last
    return {
        "seed": run.seed,
        "run_dir": run.out,
        "reached": None if job.target is None else bool(met),
        "rounds": there.round,
        "bytes_all": there.bytes.all if met else result.summary()["bytes"]["all"],
        "bytes_training": there.bytes.total,
        "bytes_up": there.bytes.up,
        "bytes_down": there.bytes.down,
        "link_seconds": there.link_seconds,
        "best": result.best()["value"],
        "delivered": result.find_delivered().scores.get(result.metric),
        "test": last.test.get(result.metric),
    }
