"""`thinwire audit`: what each party of a run could learn beyond what it was meant to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thinwire.cli.shown import AsJson

if TYPE_CHECKING:
    from rich.console import Console

    from thinwire.audit import AuditReport

__all__ = ["audit"]


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, as `thinwire train` named it.")],
    rows: Annotated[int, typer.Option("--rows", help="Training rows to attack, at most.")] = 2000,
    replay: Annotated[
        bool, typer.Option("--replay", help="Train it once more, and attack what parties hear in all its rounds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Attack a finished run: labels from derivatives, features from embeddings. Nothing is sent or changed."""
    from rich.console import Console

    from thinwire.audit import audit_run

    report = audit_run(run, rows, replay)
    if as_json:
        typer.echo(json.dumps({"run_dir": str(run), **report.to_dict()}))
    else:
        _print(Console(), report)
    if report.release is not None and not report.release.holds:
        raise typer.Exit(1)


def _print(console: Console, report: AuditReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=f"{report.method}, {report.defence}: {report.rows} training rows attacked", box=SIMPLE_HEAD)
    table.add_column("attack", no_wrap=True)
    for heading in ("score", "no run", "no\ndefence", "as run,\nonce", "as run,\nalways"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in report.findings:
        undefended = "-" if one.undefended_score is None else f"{one.undefended_score:.3f}"
        scores = (f"{one.chance:.3f}", undefended, f"{one.once_score:.3f}", f"{one.score:.3f}")
        table.add_row(one.attack, one.measure, *scores)
    console.print(table)
    for one in report.findings:
        console.print(f"{one.attack}: {one.meaning}", highlight=False, soft_wrap=True)
    model = report.model
    console.print(f"\nThe model itself: {model.metric} {model.value:.3f} on {model.rows} rows.", highlight=False)
    for line in _notes(report):
        console.print(line, highlight=False, soft_wrap=True)


def _notes(report: AuditReport) -> Iterator[str]:
    if report.release is not None:
        said = f"epsilon {report.release.claimed:.3g} is claimed, {report.release.measured:.3g} at least was measured"
        verdict = "" if report.release.holds else ". REFUTED: the noise is not what it claims to be"
        yield f"One noisy sum about a row, seen by the label party: {said}{verdict}; see thinwire privacy for a run."
    for note in report.notes:
        yield f"note: {note}"
    yield "no run: what the attacker had without it. no defence: nothing compressed, summed or noisy."
    yield "once: from one message about each row. always: from one an epoch, at the models as they are now."
    yield "AUC: 0.5 is guessing, 1 is knowing. R2: 0 is no better than the columns' averages, 1 is all of them."
    yield "No attack here proves that nothing leaks; only what is accounted for (thinwire privacy) has a proof."
