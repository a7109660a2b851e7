"""`thinwire check`: validates everything without running the job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thinwire.base.format import format_bytes
from thinwire.cli.output import format_preparation, print_result
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from thinwire.training.dry_run import DryRun


def check(job: Path, settings: list[str] = [], code: list[str] = [], as_json: bool = False) -> None:
    """Check a job without running it: data, recipe, memory, bytes of the first round, and who sees what."""
    from thinwire.job.job_loader import load_job
    from thinwire.job.own_code import CodeSources
    from thinwire.training.dry_run import format_dry_run, run_dry

    with ProgressLine("reading the tables", 0) as progress:
        loaded = load_job(job, settings, CodeSources.parse(code), progress.follower)
        shown = run_dry(loaded, progress.follower)
    print_result({"ok": True, **format_dry_run(shown)}, as_json, _format_lines(shown))


def _format_lines(shown: DryRun) -> Iterator[str]:
    first = shown.first_round_bytes
    yield f"{shown.method}: {shown.rows} training rows, {shown.test_rows} test rows, {shown.rounds} rounds"
    yield from format_preparation(shown.prepared, shown.label)
    for name, width in shown.widths.items():
        owners = f", {shown.owners[name]} owners of these rows" if name in shown.owners else ""
        yield f"  {name}: embedding of width {width}, {shown.parameters[name]} parameters{owners}"
    yield f"  top model: {shown.parameters['top']} parameters"
    yield (
        f"first round: {format_bytes(first['up'])} up, {format_bytes(first['down'])} down (measured on the "
        "encoded messages)"
    )
    if shown.once_bytes:
        yield f"sent once, at the start: {format_bytes(shown.once_bytes)}"
    yield f"all rounds, extrapolated from the first: {format_bytes(shown.all_rounds_bytes)}"
    others = ", ".join(f"{name} {format_bytes(size)}" for name, size in shown.other_bytes.items() if size is not None)
    yield f"for comparison, training only: {others}"
    for name, held in shown.surrogate_bytes.items():
        yield f"memory at {name}: surrogates {format_bytes(held)}, workset {format_bytes(shown.workset_bytes[name])}"
    for name, seen in shown.who_sees.items():
        yield f"{name} sees {'; '.join(seen)}"
    yield shown.protection
    for warning in shown.warnings:
        yield f"warning: {warning}"
    yield "no problems found in this job"
