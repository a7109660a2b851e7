"""`thinwire diagnose`: why a score is below that of centralised training, axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes
from thinwire.cli.options import parse_seeds
from thinwire.cli.output import build_table, print_plain, print_result, stop_with
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from thinwire.lab.ablation import AblationResult, Diagnosis
    from thinwire.lab.ablation.ablation_runs import AblationRun


def diagnose(
    job: Path, seeds: str = "0", epochs: float | None = None, settings: list[str] = [], *, as_json: bool = False
) -> None:
    """Measure what the recipe costs in accuracy compared with centralised training, and which part costs what."""
    from thinwire.job.job_loader import load_job
    from thinwire.lab.ablation import Diagnosis, plan_runs

    chosen = list(dict.fromkeys(parse_seeds(seeds)))
    if epochs is not None and not epochs > 0:
        raise BadInput(f"--epochs must be above 0, got {epochs:g}")
    overrides = [*settings, *([] if epochs is None else [f"job.epochs={epochs}"])]
    with ProgressLine("reading the tables", 0) as progress:
        follower = progress.follower
        jobs = {seed: load_job(job, [*overrides, f"job.seed={seed}"], None, follower) for seed in chosen}
    for later in chosen[1:]:
        jobs[later].baselines = False  # they are the same for every seed
    runs = [run for seed in chosen for run in plan_runs(jobs[seed], seed)]
    order = list(dict.fromkeys(run.name for run in runs))
    runs.sort(key=lambda run: order.index(run.name))  # what matters most first: whoever stops it has that
    outcomes, stopped = _run_all(runs)
    variants = [run.variant for run in runs if run.variant is not None]
    found = Diagnosis.of(jobs[chosen[0]], variants, outcomes)
    if as_json or outcomes:
        print_result({**found.to_json(), "interrupted": stopped}, as_json, lambda: _print(found))
    if stopped:
        raise stop_with(f"stopped after {len(outcomes)} of {len(runs)} runs")


def _run_all(runs: Sequence[AblationRun]) -> tuple[list[AblationResult], bool]:
    """The outcomes, and whether Ctrl-C ended it."""
    from thinwire.lab.ablation import run_ablation

    outcomes: list[AblationResult] = []
    with ProgressLine("runs", len(runs)) as progress:
        try:
            for run in runs:
                outcomes.append(run_ablation(run, progress.follow_rounds(run.job.divide_rows().rounds)))
                progress.advance(f"{len(outcomes)}/{len(runs)} {_format_outcome(run, outcomes[-1])}")
        except KeyboardInterrupt:
            return outcomes, True
    return outcomes, False


def _format_outcome(run: AblationRun, made: AblationResult) -> str:
    metric = next(iter(run.job.metrics), "loss")
    value = made.error if made.value is None else f"{metric} {made.value:.4f}"
    return f"{_format_name(run.name)}, seed {run.seed}: {value}"


def _format_name(name: str) -> str:
    from thinwire.lab.ablation.ablation_runs import CENTRALISED, RECIPE, SVFL

    return {CENTRALISED: "centralised", SVFL: "svfl", RECIPE: "your recipe"}.get(name, f"{name} as svfl")


def _print(found: Diagnosis) -> None:
    over = "one seed" if found.seeds == 1 else f"means and standard deviations over {found.seeds} seeds"
    headings = (found.metric, "against your recipe", "sent")
    table = build_table(f"{found.metric} at the end; {over}", ["run"], headings)
    for line in found.lines:
        value = "diverged" if line.value is None else f"{line.value:.4f}"
        value += f" ± {line.deviation:.4f}" if found.seeds > 1 and line.value is not None else ""
        value += f", {line.failed} diverged" if line.failed and line.value is not None else ""
        change = "" if line.against_recipe is None else f"{line.against_recipe.mean:+.4f}"
        change += "" if line.against_recipe is None or line.against_recipe.is_clear else " ?"
        table.add_row(_format_name(line.name), value, change, "" if line.bytes is None else format_bytes(line.bytes))
    print_plain(table, *found.describe())
