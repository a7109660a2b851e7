"""`thinwire diagnose`: why a score is below that of centralised training, axis by axis."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from thinwire.cli.compare import seed_numbers
from thinwire.cli.shown import AsJson, JobPath, Settings, bytes_shown
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from thinwire.diagnose import Diagnosis, Outcome
    from thinwire.diagnose.running import Planned

__all__ = ["diagnose"]

INTERRUPTED = 130


def diagnose(
    job: JobPath,
    seeds: Annotated[str, typer.Option("--seeds", help="Which, with commas between; three tell chance apart.")] = "0",
    epochs: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--epochs", help="Instead of the job's: fewer are faster, and answer for fewer epochs."),
    ] = None,
    settings: Settings = [],  # noqa: B006
    *,
    as_json: AsJson = False,
) -> None:
    """Say what the recipe costs against centralised training, and which of its axes costs it."""
    from rich.console import Console

    from thinwire.diagnose import Diagnosis, planned
    from thinwire.job.job_loader import load_job

    chosen = list(dict.fromkeys(seed_numbers(seeds)))
    if epochs is not None and not epochs > 0:
        raise BadInput(f"--epochs must be above 0, got {epochs:g}")
    overrides = [*settings, *([] if epochs is None else [f"job.epochs={epochs}"])]
    jobs = {seed: load_job(job, [*overrides, f"job.seed={seed}"]) for seed in chosen}
    runs = [run for seed in chosen for run in planned(jobs[seed], seed)]
    order = list(dict.fromkeys(run.name for run in runs))
    runs.sort(key=lambda run: order.index(run.name))  # what matters most first: whoever stops it has that
    outcomes, stopped = _made(runs, Console(stderr=True))
    variants = [run.variant for run in runs if run.variant is not None]
    found = Diagnosis.of(jobs[chosen[0]], variants, outcomes)
    if as_json:
        typer.echo(json.dumps({**found.to_json(), "interrupted": stopped}))
    elif outcomes:
        _print(Console(), found)
    if stopped:
        typer.echo(f"thinwire: stopped after {len(outcomes)} of {len(runs)} runs", err=True)
        raise typer.Exit(INTERRUPTED)


def _made(runs: Sequence[Planned], console: Console) -> tuple[list[Outcome], bool]:
    """The outcomes, and whether Ctrl-C ended it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from thinwire.diagnose import outcome

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    outcomes: list[Outcome] = []
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as live:
            whole = live.add_task("runs", total=len(runs))
            for run in runs:
                rounds = live.add_task("rounds", total=run.job.batching().rounds)
                outcomes.append(outcome(run, partial(_moved, live, rounds)))
                live.remove_task(rounds)
                live.advance(whole)
                said = f"{len(outcomes)}/{len(runs)} {_ended(run, outcomes[-1])}"
                live.console.print(said, markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        return outcomes, True
    return outcomes, False


def _moved(live: Progress, task: TaskID, done: int) -> None:
    live.update(task, completed=done)


def _ended(run: Planned, made: Outcome) -> str:
    metric = next(iter(run.job.metrics), "loss")
    value = made.error if made.value is None else f"{metric} {made.value:.4f}"
    return f"{_named(run.name)}, seed {run.seed}: {value}"


def _named(name: str) -> str:
    from thinwire.diagnose.running import CENTRALISED, RECIPE, SVFL

    return {CENTRALISED: "centralised", SVFL: "svfl", RECIPE: "your recipe"}.get(name, f"{name} as svfl")


def _print(console: Console, found: Diagnosis) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    over = "one seed" if found.seeds == 1 else f"means and deviations over {found.seeds} seeds"
    table = Table(title=f"{found.metric} at the end; {over}", box=SIMPLE_HEAD)
    table.add_column("run", no_wrap=True)
    for heading in (found.metric, "against your recipe", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in found.lines:
        value = "diverged" if line.value is None else f"{line.value:.4f}"
        value += f" ± {line.deviation:.4f}" if found.seeds > 1 and line.value is not None else ""
        value += f", {line.failed} diverged" if line.failed and line.value is not None else ""
        change = "" if line.against_recipe is None else f"{line.against_recipe.mean:+.4f}"
        change += "" if line.against_recipe is None or line.against_recipe.is_clear else " ?"
        table.add_row(_named(line.name), value, change, "" if line.bytes is None else bytes_shown(line.bytes))
    console.print(table)
    for sentence in found.said():
        console.print(sentence, markup=False, highlight=False)
