"""`thinwire reproduce`: a paper's experiment, run again, and its claims checked."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.format import format_bytes, format_seconds
from thinwire.cli.options import parse_seeds
from thinwire.cli.output import build_table, print_plain, print_result, stop_with
from thinwire.report.progress import RunProgress, format_metrics, open_console

if TYPE_CHECKING:
    from rich.console import Console

    from thinwire.lab.papers.experiment import Size
    from thinwire.lab.papers.real_link import RealRun
    from thinwire.lab.papers.runs import ExperimentPlan, ExperimentRun, RunObserver


def reproduce(
    name: str | None = None,
    *,
    every: bool = False,
    quick: bool = False,
    seeds: str | None = None,
    curves: list[str] | None = None,
    data: Path | None = None,
    out: Path | None = None,
    jobs: int = 1,
    real_link: Path | None = None,
    as_json: bool = False,
) -> None:
    """Run a paper's experiment and check its claims; without a name, list all. Run the command again to resume."""
    from thinwire.lab.papers.experiment import match_experiments
    from thinwire.lab.papers.runs import ExperimentPlan

    if every and (name is not None or real_link is not None or curves):
        raise BadInput("--all runs every experiment in the simulator; leave out the name, --curve and --real-link")
    if name is None and not every:
        _list_experiments(as_json, data)
        return
    size: Size = "quick" if quick else "full"
    folder = out or Path("runs") / f"{Path(name or 'all').stem}-{size}"
    chosen = None if seeds is None else tuple(dict.fromkeys(parse_seeds(seeds)))
    rows = None if data is None else str(data)
    plan = ExperimentPlan(name or "", size, chosen, rows, folder, tuple(curves) if curves else None)
    console = open_console(stderr=True)
    if name is None:
        _reproduce_all(plan, jobs, console, as_json)
        return
    names, summaries = match_experiments(name, size), []
    for one in names:
        place = folder if len(names) == 1 else folder / one
        summaries.append(_reproduce_one(replace(plan, name=one, out=place), jobs, real_link, console))
        if not as_json:
            _print(summaries[-1])
    if as_json:
        print_result(summaries[0] if len(names) == 1 else {"experiments": summaries}, as_json, ())


def _reproduce_one(plan: ExperimentPlan, jobs: int, real_link: Path | None, console: Console) -> dict[str, Any]:
    from thinwire.lab.papers.experiment import read_experiment_text
    from thinwire.lab.papers.report import ReportTexts, write_results
    from thinwire.lab.papers.runs import load_plan_data

    texts = ReportTexts(load_plan_data(plan).about, read_experiment_text(plan.name))
    outcomes = _run(plan, jobs, console)
    real = [] if real_link is None else _run_really(plan, real_link, outcomes, console)
    return write_results(plan.experiment(), outcomes, texts, plan.out, real)


def _reproduce_all(plan: ExperimentPlan, jobs: int, console: Console, as_json: bool) -> None:
    """One after the other; what cannot run is listed, and what fails does not end the others."""
    from thinwire.lab.papers.overview import list_entries, write_overview

    entries = list_entries(plan.size, plan.data)
    runnable = [entry for entry in entries if entry.obstacle is None]
    summary = write_overview(entries, plan.size, plan.out)
    for number, entry in enumerate(runnable, 1):
        console.print(f"{entry.name} ({number} of {len(runnable)})", highlight=False, soft_wrap=True)
        try:
            one = replace(plan, name=entry.name, out=plan.out / entry.name)
            entry.summary = _reproduce_one(one, jobs, None, console)
        except ThinwireError as error:
            entry.error = " ".join(str(error).split())
        console.print(f"{entry.name}: {entry.verdict}", highlight=False, soft_wrap=True)
        summary = write_overview(entries, plan.size, plan.out)
    print_result(summary, as_json, lambda: _print_overview(summary, plan.out))
    failed = [entry.name for entry in entries if entry.error is not None]
    if failed:
        raise BadInput(f"{', '.join(failed)} failed; {plan.out}/index.html shows why, and the same command retries")


def _print_overview(summary: dict[str, Any], out: Path) -> None:
    headings = ("experiment", "data", "verdict", "why")
    table = build_table(f"All experiments, {summary['size']} size", headings, wrapped=["why"])
    for row in summary["experiments"]:
        table.add_row(row["name"], row["data"], row["verdict"], row["why"] if row["state"] != "done" else "")
    print_plain(table, f"all verdicts on one page: {out}/index.html")


def _run(plan: ExperimentPlan, jobs: int, console: Console) -> list[ExperimentRun]:
    from thinwire.lab.papers.runs import RunObserver, run_all

    experiment = plan.experiment()
    total = len(experiment.curves) * len(experiment.seeds)
    found: list[ExperimentRun] = []
    with ExitStack() as line:  # of the run under way

        def follow(curve: str, seed: int, rounds: int) -> RunObserver:
            """One live line a run, where there is a terminal."""
            if not console.is_terminal:
                return RunObserver()
            progress = RunProgress(f"{curve}, seed {seed} ({len(found) + 1}/{total})", rounds, console)
            return RunObserver(progress.move, line.enter_context(progress))

        try:
            for outcome in run_all(plan, jobs, follow):
                line.close()
                found.append(outcome)
                said = f"{len(found)}/{total} {outcome.curve}, seed {outcome.seed}: {_format_outcome(outcome)}"
                console.print(said, highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            line.close()
            raise stop_with("stopped; run the same command again to resume") from None
    return found


def _run_really(plan: ExperimentPlan, tools: Path, outcomes: list[ExperimentRun], console: Console) -> list[RealRun]:
    from thinwire.lab.papers.real_link import run_on_real_link

    found = []
    for run in run_on_real_link(plan, tools, outcomes):
        found.append(run)
        same = "the same scores" if run.same_scores else "scores DIFFER from the simulation"
        line = f"{run.curve}, seed {run.seed}, real processes: {run.history[-1].seconds:.1f} s, {same}"
        console.print(line, highlight=False, soft_wrap=True)
    return found


def _format_outcome(outcome: ExperimentRun) -> str:
    if outcome.diverged:
        return f"diverged: {outcome.diverged}"
    last = outcome.history[-1]
    return f"{format_metrics(last)}, {format_bytes(last['bytes']['total'])}, {last['seconds']:.0f} s"


def _list_experiments(as_json: bool, data: Path | None) -> None:
    from thinwire.lab.papers.experiment import find_experiments, read_experiment
    from thinwire.lab.papers.jobs import is_here

    every = {name: read_experiment(name)[1].experiment for name in find_experiments()}
    folder = None if data is None else str(data)
    here = {one: is_here(one, folder) for one in {about.data for about in every.values()}}
    rows = [
        {
            "name": name,
            "paper": about.paper,
            "figure": about.figure,
            "data": about.data,
            "here": here[about.data],
            "sizes": "full" if about.full_size_only else "quick, full",
            "title": about.title,
        }
        for name, about in every.items()
    ]
    print_result({"experiments": rows}, as_json, lambda: _print_experiments(rows))


def _print_experiments(rows: list[dict[str, Any]]) -> None:
    table = build_table(None, ("name", "paper", "data", "here", "sizes"), wrapped=["paper"])
    for row in rows:
        paper = f"{row['paper'].split(' (')[0]}, {row['figure']}"
        table.add_row(row["name"], paper, row["data"], "yes" if row["here"] else "no", row["sizes"])
    print_plain(table)


def _format_real_run(one: dict[str, Any]) -> str:
    whole, clock = format_seconds(one["seconds"]), format_seconds(one["link_seconds"])
    there, there_clock = format_seconds(one["target_seconds"]), format_seconds(one["target_link_seconds"])
    return f"{one['curve']}, real link: {whole} (clock {clock}); to the target {there} (clock {there_clock})"


def _print(summary: dict[str, Any]) -> None:
    from rich.text import Text

    headings = ("the paper says", "its figure", "limit", "found", "")
    table = build_table(f"{summary['paper']}, {summary['figure']}", headings, wrapped=headings)
    claims = summary["expectations"]
    for one in claims:
        found = one["found"]
        said = "-" if found is None else found if isinstance(found, str) else f"{found:.4g}"
        word = Text(one["verdict"], style="green" if one["met"] else "red")
        table.add_row(one["claim"], one["paper"] or "", one["limit"], said, word)
    print_plain(
        table,
        *([f"{summary['size']} size: {summary['says']}"] if summary["says"] else []),
        *map(_format_real_run, summary["real_link"]),
        *(f"{one['verdict']}: {one['checked']}: {one['why']}" for one in claims),
        f"{summary['met']} of {len(claims)} met; report: {summary['out']}/report.html",
    )
