"""Where the bytes went: by party, direction and kind, beside what plain split learning would have sent."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.charts.bars import Bar, Bars
from thinwire.charts.numbers import bytes_shown, count_shown
from thinwire.report.figures import Figure, of_bars
from thinwire.report.groups import Group
from thinwire.report.record import LedgerEntry, RunRecord

__all__ = ["against_svfl", "kinds_shown", "totals_figure", "traffic_figures"]

_EVALUATION = "EVALUATION"
# Rounds as they are counted, on one line of text.
_BESIDE = "svfl: what plain split learning sends in as many rounds of the same batches, headers included."


def traffic_figures(run: RunRecord) -> list[Figure]:
    """By direction and kind against svfl's; by party."""
    training = [entry for entry in run.ledger if entry.kind != _EVALUATION]
    if not training:
        return []
    ways = [
        Bar("up", _by_kind(training, run, "up")),
        Bar("svfl, up", {"svfl": run.svfl("up")}),
        Bar("down", _by_kind(training, run, "down")),
        Bar("svfl, down", {"svfl": run.svfl("down")}),
    ]
    shown = [bar for bar in ways if bar.total or not bar.name.startswith("svfl")]
    bars = Bars("Bytes by direction and kind", "bytes", shown, bytes_shown, quiet=("svfl",))
    figures = [of_bars("bytes-by-kind", bars, _BESIDE)]
    parties = [party.name for party in run.about.parties]
    each = [(name, _sum(training, sender=name), _sum(training, receiver=name)) for name in parties]
    both = [Bar(name, {"sent": sent, "received": received}) for name, sent, received in each if sent or received]
    figures.append(of_bars("bytes-by-party", Bars("Bytes by party", "bytes", both, bytes_shown)))
    return figures


def totals_figure(groups: Sequence[Group]) -> Figure | None:
    """Several runs beside each other, at their ends."""
    bars = []
    for group in groups:
        up = group.number(lambda run: run.events[-1].value_at("bytes.up") if run.events else None)
        down = group.number(lambda run: run.events[-1].value_at("bytes.down") if run.events else None)
        if up is not None and down is not None:
            bars.append(Bar(group.name, {"up": up.mean, "down": down.mean}))
    return of_bars("bytes-of-runs", Bars("Bytes sent in all", "bytes", bars, bytes_shown)) if bars else None


def against_svfl(run: RunRecord) -> float | None:
    """How many times fewer bytes than svfl's, in as many rounds."""
    sent = sum(entry.bytes for entry in run.ledger if entry.kind != _EVALUATION)
    plain = run.svfl("up") + run.svfl("down")
    return plain / sent if sent and plain and run.about.me in (None, run.about.label_party) else None


def kinds_shown(run: RunRecord) -> list[tuple[str, str, str, str, str]]:
    """Every sort of message: from, to, kind, messages, bytes."""
    return [
        (one.sender, one.receiver, kind_shown(one.kind), count_shown(one.messages), bytes_shown(one.bytes))
        for one in sorted(run.ledger, key=lambda one: -one.bytes)
    ]


def kind_shown(kind: str) -> str:
    return kind.lower().replace("_", " ")


def _by_kind(entries: Sequence[LedgerEntry], run: RunRecord, way: str) -> dict[str, float]:
    found: dict[str, float] = {}
    label = run.about.label_party
    for entry in sorted(entries, key=lambda entry: entry.kind):
        if (entry.receiver == label) if way == "up" else (entry.sender == label):
            kind = kind_shown(entry.kind)
            found[kind] = found.get(kind, 0.0) + entry.bytes
    return found


def _sum(entries: Sequence[LedgerEntry], sender: str | None = None, receiver: str | None = None) -> float:
    return sum(entry.bytes for entry in entries if entry.sender == sender or entry.receiver == receiver)
