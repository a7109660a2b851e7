"""`thinwire reproduce`: a paper's experiment, run again, and its claims checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from thinwire.cli.progress import RunProgress
from thinwire.cli.shown import AsJson
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from thinwire.reproduce import Plan
    from thinwire.reproduce.experiment import Size
    from thinwire.reproduce.real_link import RealRun
    from thinwire.reproduce.runs import Outcome, Watch

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[NAME]", help="Which experiment, the beginning of several, or a file of yours."),
    ] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="The small size: minutes on two cores.")] = False,
    seeds: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--seeds", help="Which, with commas between; else those of the file."),
    ] = None,
    data: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--data", metavar="DIR", help="Where the data sets are; else THINWIRE_DATA."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="DIR", help="Where runs and report go; else runs/NAME-SIZE."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at the same time.")] = 1,
    real_link: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--real-link", metavar="DIR", help="Also between real processes; tools that shape a link."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiment and check its claims; without a name, list them. Run again, it goes on from there."""
    from rich.console import Console

    from thinwire.reproduce import Plan, written
    from thinwire.reproduce.files import experiment_names, experiment_text
    from thinwire.reproduce.report import Words
    from thinwire.reproduce.running import data_of

    if name is None:
        _list(as_json, data)
        return
    size: Size = "quick" if quick else "full"
    names = experiment_names(name, size)
    folder = out or Path("runs") / f"{Path(name).stem}-{size}"
    summaries = []
    for one in names:
        place = folder if len(names) == 1 else folder / one
        plan = Plan(one, size, _seeds(seeds), None if data is None else str(data), place)
        about = data_of(plan).about
        console = Console(stderr=True)
        outcomes = _run(plan, jobs, console)
        real = [] if real_link is None else _run_really(plan, real_link, outcomes, console)
        summary = written(plan.experiment(), outcomes, Words(about, experiment_text(one)), place, real)
        summaries.append(summary)
        if not as_json:
            _print(Console(), summary)
    if as_json:
        typer.echo(json.dumps(summaries[0] if len(names) == 1 else {"experiments": summaries}))


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(dict.fromkeys(int(seed) for seed in text.split(",")))
    except ValueError:
        raise BadInput(f"--seeds: whole numbers with commas between, as in --seeds 0,1,2; got {text!r}") from None


def _run(plan: Plan, jobs: int, console: Console) -> list[Outcome]:
    from thinwire.reproduce import run_all
    from thinwire.reproduce.runs import Watch

    experiment = plan.experiment()
    total = len(experiment.curves) * len(experiment.seeds)
    found: list[Outcome] = []
    live: list[RunProgress] = []

    def started(curve: str, seed: int, rounds: int) -> Watch:
        """One live line a run, where there is a terminal."""
        if not console.is_terminal:
            return Watch()
        progress = RunProgress(console, f"{curve}, seed {seed} ({len(found) + 1}/{total})", rounds)
        live.append(progress.__enter__())
        return Watch(progress.round, progress)

    def ended() -> None:
        """Its line is gone before another one begins."""
        if live:
            live.pop().__exit__(None, None, None)

    try:
        for outcome in run_all(plan, jobs, started):
            ended()
            found.append(outcome)
            line = f"{len(found)}/{total} {outcome.curve}, seed {outcome.seed}: {_ended(outcome)}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        ended()
        typer.echo("thinwire: stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    finally:
        ended()
    return found


def _run_really(plan: Plan, tools: Path, outcomes: list[Outcome], console: Console) -> list[RealRun]:
    from thinwire.reproduce.real_link import real_runs

    found = []
    for run in real_runs(plan, tools, outcomes):
        found.append(run)
        same = "the same scores" if run.same_scores else "OTHER SCORES than simulated"
        line = f"{run.curve}, seed {run.seed}, real processes: {run.history[-1].seconds:.1f} s, {same}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return found


def _ended(outcome: Outcome) -> str:
    from thinwire.cli.shown import bytes_shown, metrics_shown

    if outcome.diverged:
        return f"diverged: {outcome.diverged}"
    last = outcome.history[-1]
    return f"{metrics_shown(last)}, {bytes_shown(last['bytes']['total'])}, {last['seconds']:.0f} s"


def _list(as_json: bool, data: Path | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from thinwire.reproduce import experiment_files, read_experiment
    from thinwire.reproduce.loading import is_here

    every = {name: read_experiment(name)[1].experiment for name in experiment_files()}
    folder = None if data is None else str(data)
    here = {one: is_here(one, folder) for one in {about.data for about in every.values()}}
    rows = []
    for name, about in every.items():
        sizes = "full" if about.full_size_only else "quick, full"
        rows.append(
            {
                "name": name,
                "paper": about.paper,
                "figure": about.figure,
                "data": about.data,
                "here": here[about.data],
                "sizes": sizes,
                "title": about.title,
            }
        )
    if as_json:
        typer.echo(json.dumps({"experiments": rows}))
        return
    table = Table(box=SIMPLE_HEAD)
    for heading in ("name", "paper", "data", "here", "sizes"):
        table.add_column(heading, no_wrap=heading != "paper")
    for row in rows:
        paper = f"{str(row['paper']).split(' (')[0]}, {row['figure']}"
        table.add_row(str(row["name"]), paper, str(row["data"]), "yes" if row["here"] else "no", str(row["sizes"]))
    Console().print(table)


def _real_said(one: dict[str, Any]) -> str:
    from thinwire.cli.shown import seconds_shown

    whole, clock = seconds_shown(one["seconds"]), seconds_shown(one["link_seconds"])
    there, there_clock = seconds_shown(one["target_seconds"]), seconds_shown(one["target_link_seconds"])
    return f"{one['curve']}, real link: {whole} (clock {clock}); to the target {there} (clock {there_clock})"


def _print(console: Console, summary: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=f"{summary['paper']}, {summary['figure']}", box=SIMPLE_HEAD)
    for heading in ("the paper says", "its figure", "limit", "found", ""):
        table.add_column(heading)
    for one in summary["expectations"]:
        found = one["found"]
        said = "-" if found is None else found if isinstance(found, str) else f"{found:.4g}"
        word = "[green]met[/]" if one["met"] else "[red]not met[/]"
        table.add_row(one["claim"], one["paper"] or "", one["limit"], said, word)
    console.print(table)
    if summary["says"]:
        console.print(f"{summary['size']} size: {summary['says']}", highlight=False, soft_wrap=True)
    for one in summary["real_link"]:
        console.print(_real_said(one), highlight=False, soft_wrap=True)
    for one in summary["expectations"]:
        console.print(f"{'met' if one['met'] else 'not met'}: {one['checked']}: {one['why']}", highlight=False)
    console.print(f"{summary['met']} of {len(summary['expectations'])} met; report: {summary['out']}/report.html")
