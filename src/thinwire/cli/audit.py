"""`thinwire audit`: what each party of a run could learn beyond what it was meant to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from thinwire.cli.output import build_table, print_plain, print_result
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from thinwire.lab.attacks import AuditReport


def audit(run: Path, rows: int = 2000, replay: bool = False, code: list[str] = [], as_json: bool = False) -> None:
    """Attack a finished run: infer labels from gradients, and features from embeddings. Nothing is sent or changed.

    Exit code 0: no noise or masks on embeddings, or their claim holds; 1: refuted; 3: inconclusive (use --replay).
    """
    from thinwire.job.own_code import CodeSources
    from thinwire.lab.attacks import audit_run

    with ProgressLine("audit", 0) as progress:
        report = audit_run(run, rows, replay, CodeSources.parse(code), progress.follower)
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
        said = f"epsilon {release.claimed:.3g} is claimed, at least {release.measured:.3g} was measured"
        limit = f" (with this many samples, {release.reach:.3g} is the most that can be shown)"
        yield f"One noisy sum of a row, as the label party sees it: {said}{limit}; see thinwire privacy for a run."
    if (messages := report.messages) is not None:
        yield f"The messages of {messages.rounds} rounds, {messages.values} values per party: " + (
            "; ".join(messages.wrong) or "noise and masks pass all tests"
        )
    if report.verdict is not None:
        yield f"Verdict on noise and masks: {_VERDICTS[report.verdict]}"
    for note in report.notes:
        yield f"note: {note}"
    yield "no run: what the attacker knows without the run. no defence: nothing is compressed, summed or noised."
    yield "once: from one message about each row. always: from one an epoch, at the models as they are now."
    yield "AUC: 0.5 is chance level, 1 is perfect. R2: 0 is no better than predicting the column means, 1 is perfect."
    yield (
        "A failed attack does not prove that nothing leaks; only what is accounted for (thinwire privacy) is proven."
    )


_VERDICTS = {
    "holds": "HOLDS. No test refutes the claim, and common faults would have been detected, except as noted.",
    "refuted": "REFUTED. The noise or masks are not what the recipe claims.",
    "inconclusive": "INCONCLUSIVE. There are too few samples to refute the claim, or the run's messages are too few "
    "or were not examined (--replay).",
}
