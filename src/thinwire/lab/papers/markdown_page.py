"""An experiment beside its paper as a Markdown page: what was run, all claims with verdicts, the plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def render_markdown(summary: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """The page of a summary.json; plots are named relative to the page."""
    parts = [
        f"# {summary['experiment']}: {summary['paper']}, {summary['figure']}",
        f"{summary['title'][:1].upper()}{summary['title'][1:]}. The paper's claim: {summary['claim']}",
        f"## What was run\n\n{_list_facts(summary)}",
        f"## Claims: {summary['met']} of {len(summary['expectations'])} met\n\n{_tabulate_claims(summary)}",
        f"## Curves\n\n{_tabulate_curves(summary)}",
        *([f"## Plots\n\n{_embed_panels(summary)}"] if summary["panels"] else []),
        *(["## Notes\n\n" + "\n".join(f"- {note}" for note in notes)] if notes else []),
    ]
    return "\n\n".join(parts) + "\n"


def _list_facts(summary: Mapping[str, Any]) -> str:
    run, seeds = summary["run"], summary["seeds"]
    asked = run["seeds_of_the_file"]
    rows = "all rows" if run["rows"] is None else f"{run['rows']:,} rows"
    changes = f": {summary['says']}" if summary["says"] else ""
    batch = "full batch" if run["batch_size"] is None else f"batches of {run['batch_size']:,}"
    facts = [
        f"Size: {summary['size']}{changes}",
        f"Rows: {rows}. {summary['data']}",
        f"Epochs: {run['epochs']:g}, {batch}",
        f"Seeds: {', '.join(map(str, seeds))} ({len(seeds)} of the file's {len(asked)})",
        f"Curves: {run['curves']} of the file's {run['curves_of_the_file']}",
    ]
    return "\n".join(f"- {_escape(fact)}" for fact in facts)


def _tabulate_claims(summary: Mapping[str, Any]) -> str:
    rows = [
        [one["claim"], one["paper"] or "", one["limit"], _format(one["found"]), one["verdict"], one["why"]]
        for one in summary["expectations"]
    ]
    return _table(["the paper says", "its figure", "limit", "found", "verdict", "from"], rows)


def _tabulate_curves(summary: Mapping[str, Any]) -> str:
    """The last values of every curve, means and standard deviations over seeds."""
    places = ["train.loss", *(summary["curves"][0]["best"]), "bytes.up", "bytes.down", "paper_bytes"]
    rows = [[one["name"], *(_format_mean(one["final"].get(place)) for place in places)] for one in summary["curves"]]
    return _table(["curve (last evaluation)", *places], rows)


def _embed_panels(summary: Mapping[str, Any]) -> str:
    return "\n\n".join(f"![{panel['title']}]({panel['file']})" for panel in summary["panels"])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([_escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(cell: str) -> str:
    """Markdown's own signs are text here."""
    return cell.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _format_mean(number: Mapping[str, Any] | None) -> str:
    if number is None:
        return "-"
    mean, deviation = number["mean"], number["std"]
    return f"{_format(mean)} ± {_format(deviation)}" if deviation else _format(mean)


def _format(number: float | str | None) -> str:
    if number is None:
        return "-"
    if isinstance(number, str):
        return "never" if number == "infinity" else number
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"
