"""`thinwire clean`: what a run's retention rules say."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes
from thinwire.cli.output import print_result

if TYPE_CHECKING:
    from thinwire.storage.retention import CleanupResult


def clean(
    runs: list[Path],
    *,
    checkpoints_days: float | None = None,
    messages_days: float | None = None,
    logs_days: float | None = None,
    as_json: bool = False,
) -> None:
    """Remove files that the job's retention rules no longer keep. Models, events and ledgers stay."""
    from thinwire.job.job_snapshot import read_retention
    from thinwire.storage.retention import clean as clean_run

    asked = {"checkpoints_days": checkpoints_days, "messages_days": messages_days, "logs_days": logs_days}
    given: dict[str, Any] = {name: days for name, days in asked.items() if days is not None}
    done = []
    for run in runs:
        rules = replace(read_retention(run), **given)
        if rules == type(rules)():
            raise BadInput(
                f"{run}: its job has no [retention] section; add one, or use --checkpoints-days, --messages-days or "
                "--logs-days"
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
        return f"{one.folder}: {one.note or 'nothing is older than the retention rules allow'}"
    listed = ", ".join(f"{gone.path} ({format_bytes(gone.bytes)})" for gone in one.removed)
    return f"{one.folder}: removed {listed}"
