"""`thinwire audit`: what each party of a run could learn beyond what it was meant to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thinwire.cli.options import AsJson
from thinwire.cli.output import build_table, print_plain, print_result

if TYPE_CHECKING:
    from thinwire.lab.attacks import AuditReport


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder, as named by `thinwire train`.")],
    rows: Annotated[int, typer.Option("--rows", help="Maximum number of training rows to attack.")] = 2000,
    replay: Annotated[
        bool, typer.Option("--replay", help="Repeat the training and attack the messages of all rounds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Attack a finished run: labels from derivatives, features from embeddings. Nothing is sent or changed."""
    from thinwire.lab.attacks import audit_run

    report = audit_run(run, rows, replay)
    print_result({"run_dir": str(run), **report.to_dict()}, as_json, lambda: _print(report))
    if report.release is not None and not report.release.holds:
        raise typer.Exit(1)


def _print(report: AuditReport) -> None:
    title = f"{report.method}, {report.defence}: {report.rows} training rows attacked"
    table = build_table(title, ["attack"], ("score", "no run", "no\ndefence", "as run,\nonce", "as run,\nalways"))
    for one in report.findings:
        undefended = "-" if one.undefended_score is None else f"{one.undefended_score:.3f}"
        scores = (f"{one.chance:.3f}", undefended, f"{one.once_score:.3f}", f"{one.score:.3f}")
        table.add_row(one.attack, one.measure, *scores)
    model = report.model
    print_plain(
        table,
        *(f"{one.attack}: {one.meaning}" for one in report.findings),
        f"\nThe model itself: {model.metric} {model.value:.3f} on {model.rows} rows.",
        *_format_notes(report),
    )


def _format_notes(report: AuditReport) -> Iterator[str]:
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
