"""`thinwire clean`: what a run's retention rules say."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes
from thinwire.cli.options import AsJson
from thinwire.cli.output import print_result

if TYPE_CHECKING:
    from thinwire.storage.retention import CleanupResult


def clean(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    *,
    checkpoints_days: Annotated[
        float | None,
        typer.Option(
            "--checkpoints-days", min=0, help="Days to keep checkpoints, 0 for none (default: the job's own rule)."
        ),
    ] = None,
    messages_days: Annotated[
        float | None,
        typer.Option("--messages-days", min=0, help="Days to keep logged messages (default: the job's own rule)."),
    ] = None,
    logs_days: Annotated[
        float | None,
        typer.Option("--logs-days", min=0, help="Days to keep the lines of log.jsonl (default: the job's own rule)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what the retention rules of a run's job no longer keep. Models, events and ledgers stay."""
    from thinwire.job.job_snapshot import read_retention
    from thinwire.storage.retention import clean as clean_run

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
    print_result({"runs": [asdict(one) for one in done]}, as_json, map(_format_removal, done))


def apply_retention(run: Path) -> None:
    """Of a run that has just finished: what is not to be kept at all."""
    from thinwire.job.job_snapshot import read_retention
    from thinwire.storage.retention import Retention
    from thinwire.storage.retention import clean as clean_run

    rules = read_retention(run)
    if rules != Retention():
        done = clean_run(run, rules, datetime.now(UTC))
        if done.removed:
            typer.echo(_format_removal(done), err=True)


def _format_removal(one: CleanupResult) -> str:
    if not one.removed:
        return f"{one.folder}: {one.note or 'nothing is older than the rules allow'}"
    listed = ", ".join(f"{gone.path} ({format_bytes(gone.bytes)})" for gone in one.removed)
    return f"{one.folder}: removed {listed}"
