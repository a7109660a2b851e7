"""`thinwire clean`: what a run's retention rules say."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from thinwire.cli.shown import AsJson, bytes_shown
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from thinwire.runs.retention import Cleaned

__all__ = ["clean", "clean_at_the_end"]


def clean(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    *,
    checkpoints_days: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--checkpoints-days", min=0, help="Instead of the job's: days to keep checkpoints; 0: none."),
    ] = None,
    messages_days: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--messages-days", min=0, help="Instead of the job's: days to keep logged messages."),
    ] = None,
    logs_days: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--logs-days", min=0, help="Instead of the job's: days to keep lines of log.jsonl."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what the [retention] rules of a run's job no longer keep. Models, events and ledgers stay."""
    from thinwire.job.job_snapshot import read_retention
    from thinwire.runs.retention import clean as clean_run

    done = []
    for run in runs:
        rules = read_retention(run)
        rules = replace(
            rules,
            checkpoints_days=rules.checkpoints_days if checkpoints_days is None else checkpoints_days,
            messages_days=rules.messages_days if messages_days is None else messages_days,
            logs_days=rules.logs_days if logs_days is None else logs_days,
        )
        if rules == type(rules)():
            raise BadInput(
                f"{run}: its job has no [retention] section; write one, or give --checkpoints-days, --messages-days "
                "or --logs-days"
            )
        done.append(clean_run(run, rules, datetime.now(UTC)))
    if as_json:
        typer.echo(json.dumps({"runs": [asdict(one) for one in done]}))
        return
    for one in done:
        typer.echo(_said(one))


def clean_at_the_end(run: Path) -> None:
    """Of a run that has just finished: what is not to be kept at all."""
    from thinwire.job.job_snapshot import read_retention
    from thinwire.runs.retention import Retention
    from thinwire.runs.retention import clean as clean_run

    rules = read_retention(run)
    if rules != Retention():
        done = clean_run(run, rules, datetime.now(UTC))
        if done.removed:
            typer.echo(_said(done), err=True)


def _said(one: Cleaned) -> str:
    if not one.removed:
        return f"{one.folder}: {one.note or 'nothing is older than the rules allow'}"
    listed = ", ".join(f"{gone.path} ({bytes_shown(gone.bytes)})" for gone in one.removed)
    return f"{one.folder}: removed {listed}"
