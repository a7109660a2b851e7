"""`thinwire audit`: what each party of a run could learn beyond what it was meant to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from thinwire.cli.output import build_table, print_plain, print_result

if TYPE_CHECKING:
    from thinwire.lab.attacks import AuditReport


def audit(run: Path, rows: int = 2000, replay: bool = False, code: list[str] = [], as_json: bool = False) -> None:
    """Attack a finished run: labels from derivatives, features from embeddings. Nothing is sent or changed.

    Exit code 0: no noise or masks on embeddings, or their claim holds; 1: refuted; 3: inconclusive, see --replay.
    """
    from thinwire.job.own_code import CodeSources
    from thinwire.lab.attacks import audit_run

    report = audit_run(run, rows, replay, CodeSources.parse(code))
    print_result({"run_dir": str(run), **report.to_dict()}, as_json, lambda: _print(report))
    if report.verdict in _EXIT_CODES:
        raise typer.Exit(_EXIT_CODES[report.verdict])


_EXIT_CODES = {"refuted": 1, "inconclusive": 3}


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
    if (release := report.release) is not None:
        said = f"epsilon {release.claimed:.3g} is claimed, {release.measured:.3g} at least was measured"
        limit = f", of {release.reach:.3g} that so many samples can show"
        yield f"One noisy sum about a row, seen by the label party: {said}{limit}; see thinwire privacy for a run."
    if (messages := report.messages) is not None:
        yield f"The messages of {messages.rounds} rounds, {messages.values} values a party: " + (
            "; ".join(messages.wrong) or "noise and masks are as they must be, as far as tests can tell"
        )
    if report.verdict is not None:
        yield f"EvaluationVerdict on noise and masks: {_VERDICTS[report.verdict]}"
    for note in report.notes:
        yield f"note: {note}"
    yield "no run: what the attacker had without it. no defence: nothing compressed, summed or noisy."
    yield "once: from one message about each row. always: from one an epoch, at the models as they are now."
    yield "AUC: 0.5 is guessing, 1 is knowing. R2: 0 is no better than the columns' averages, 1 is all of them."
    yield "No attack here proves that nothing leaks; only what is accounted for (thinwire privacy) has a proof."


_VERDICTS = {
    "holds": "HOLDS. Nothing here refutes what they claim, and what is wrong in a common way would have been seen, "
    "but for what a note names.",
    "refuted": "REFUTED. They are not what they claim to be.",
    "inconclusive": "INCONCLUSIVE. These samples could not have refuted the claim, or the run's messages are too few "
    "or were not looked at (--replay).",
}
