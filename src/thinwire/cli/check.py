"""`thinwire check`: validates everything without running the job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from thinwire.cli.shown import AsJson, JobPath, Settings, bytes_shown, prepared_shown

if TYPE_CHECKING:
    from thinwire.job.dry_run import DryRun

__all__ = ["check"]


def check(job: JobPath, settings: Settings = [], as_json: AsJson = False) -> None:  # noqa: B006
    """Check a job: data, recipe, memory, bytes of the first round, who sees what."""
    from thinwire.job.dry_run import format_dry_run, run_dry
    from thinwire.job.job_loader import load_job

    shown = run_dry(load_job(job, settings))
    if as_json:
        typer.echo(json.dumps({"ok": True, **format_dry_run(shown)}))
    else:
        _print(shown)


def _print(shown: DryRun) -> None:
    first, say = shown.first_round_bytes, typer.echo
    say(f"{shown.method}: {shown.rows} training rows, {shown.test_rows} test rows, {shown.rounds} rounds")
    for line in prepared_shown(shown.prepared, shown.label):
        say(line)
    for name, width in shown.widths.items():
        say(f"  {name}: embedding of width {width}, {shown.parameters[name]} parameters")
    say(f"  top model: {shown.parameters['top']} parameters")
    say(f"first round: {bytes_shown(first['up'])} up, {bytes_shown(first['down'])} down, as really encoded")
    if shown.once_bytes:
        say(f"once, at the start: {bytes_shown(shown.once_bytes)}")
    say(f"all rounds, if each were like the first: {bytes_shown(shown.all_rounds_bytes)}")
    for name, held in shown.surrogate_bytes.items():
        say(f"memory at {name}: surrogates {bytes_shown(held)}, workset {bytes_shown(shown.workset_bytes[name])}")
    for name, seen in shown.who_sees.items():
        say(f"{name} sees {'; '.join(seen)}")
    say(shown.protection)
    for warning in shown.warnings:
        say(f"warning: {warning}")
    say("nothing is wrong with this job")
