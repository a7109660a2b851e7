"""Records as one self-contained HTML page."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from thinwire.base.format import format_bytes, format_count
from thinwire.report.baseline_figures import baseline_figure, describe_run_baselines, importance_figures
from thinwire.report.figures import (
    cosine_figure,
    curve_figures,
    format_kinds,
    time_figures,
    totals_figure,
    traffic_figures,
)
from thinwire.report.folder import GENERATOR
from thinwire.report.quality_figures import answer_figures, confusion_rows, quality_tables, quality_tiles
from thinwire.report.record import Quality, RunRecord
from thinwire.report.summary import RunGroup, comparison, group_runs, on_what, sentence, tabulate_coefficients, tiles
from thinwire.report.warnings import list_warnings

_OBSERVERS = {
    "label_party": "the label party alone",
    "feature_party": "a curious feature party",
    "all_others": "all others together",
}


@dataclass(frozen=True)
class Gauge:
    """How much of a budget is gone."""

    party: str
    spent: float
    epsilon: float

    @property
    def share(self) -> float:
        return min(1.0, self.spent / self.epsilon) if self.epsilon > 0 else 1.0


def gauges(ledgers: Sequence[Mapping[str, Any]]) -> list[Gauge]:
    """Of the parties that have a budget."""
    found = []
    for ledger in ledgers:
        budget = ledger.get("budget") or {}
        if isinstance(budget.get("spent"), int | float) and isinstance(budget.get("epsilon"), int | float):
            found.append(Gauge(str(ledger.get("party", "")), float(budget["spent"]), float(budget["epsilon"])))
    return found


def is_bounded(ledger: Mapping[str, Any]) -> bool:
    """Is anything known against anybody?"""
    return any(isinstance(row.get("releases_epsilon"), int | float) for row in ledger.get("observers", ()))


def format_observer(name: Any) -> str:
    return _OBSERVERS.get(str(name), str(name))


def format_epsilon(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "infinite"


def list_texts(value: Any) -> tuple[str, ...]:
    """One, several or none, as tuple."""
    return (value,) if isinstance(value, str) else tuple(map(str, value or ()))


# The pages --------------------------------------------------------------------------------------------------------


_MOST_DETAILED = 12  # runs that are told one by one


@cache
def jinja_environment() -> Environment:
    """Everything that is no markup of ours is escaped."""
    found = Environment(
        loader=PackageLoader("thinwire.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    found.filters |= {"bytes": format_bytes, "count": format_count, "markup": Markup}
    found.filters |= {"epsilon": format_epsilon, "observer": format_observer, "texts": list_texts}
    return found


@cache
def page_style() -> str:
    """Of every page: light, dark and in print."""
    return files("thinwire.report.svg").joinpath("page.css").read_text(encoding="utf-8")


@cache
def chart_script() -> str:
    """Of every page: values under the pointer, keys that hide a line."""
    return files("thinwire.report.svg").joinpath("charts.js").read_text(encoding="utf-8")


@cache
def _policy() -> str:
    """A page runs our own script and nothing else, and asks nobody for anything."""
    digest = b64encode(hashlib.sha256(chart_script().encode()).digest()).decode()
    allowed = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'


@cache
def _report_style() -> str:
    return files("thinwire.report").joinpath("templates/report.css").read_text(encoding="utf-8")


def render_page(template: str | Template, title: str, values: Mapping[str, Any]) -> str:
    """A template of ours, by name or as it is, in the frame and the style that all pages share."""
    body = jinja_environment().get_template(template).render(title=title, **values)
    head = (
        f'<meta charset="utf-8">\n{_policy()}\n{GENERATOR}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{page_style()}{_report_style()}</style>"
    )
    script = f"<script>{chart_script()}</script>"
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n{script}\n</body>\n</html>\n'


def report_html(runs: Sequence[RunRecord]) -> str:
    """The page; the same records give the same bytes."""
    groups = group_runs(runs)
    several = len(runs) > 1
    title = f"{len(runs)} runs compared" if several else _title(runs[0])
    values = {
        "several": several,
        "has_seeds": len(groups) < len(runs),
        "groups": groups,
        "on_what": on_what(runs[0]),
        "comparison": comparison(groups) if several else None,
        "curves": curve_figures(groups),
        "totals": totals_figure(groups) if several else None,
        "told": [_told(group, several) for group in groups[:_MOST_DETAILED]],
        "left_out": max(0, len(groups) - _MOST_DETAILED),
    }
    return render_page("report.html", title, values)


def _title(run: RunRecord) -> str:
    return run.name if run.about.method in run.name else f"{run.name}, trained with {run.about.method}"


def _told(group: RunGroup, several: bool) -> dict[str, Any]:
    """One run in detail; of several seeds the first."""
    run = group.first
    return {
        "name": group.name,
        "several": several,
        "seeds": [one.about.seed for one in group.runs],
        "run": run,
        "about": run.about,
        "sentence": sentence(run),
        "warnings": list_warnings(run),
        "tiles": tiles(run),
        "baselines": baseline_figure(run),
        "compared": describe_run_baselines(run),
        "importance": importance_figures(run),
        "importance_note": "" if run.importance is None else run.importance.note,
        "coefficients": [tabulate_coefficients(table) for table in run.coefficients],
        "traffic": traffic_figures(run),
        "kinds": format_kinds(run),
        "time": time_figures(run),
        "cosines": cosine_figure(run),
        "quality": None if run.quality is None else _describe_quality(run.quality),
        "no_quality": _explain_no_quality(run),
    }


def _describe_quality(quality: Quality) -> dict[str, Any]:
    return {
        "round": quality.round,
        "rows": quality.rows,
        "tiles": quality_tiles(quality),
        "figures": answer_figures(quality),
        "tables": quality_tables(quality),
        "confusion": confusion_rows(quality),
        "at_threshold": " at threshold 0.5" if quality.task == "binary" else "",
        "classes": quality.classes or range(len(quality.confusion)),
    }


def _explain_no_quality(run: RunRecord) -> str:
    if run.about.me not in (None, run.about.label_party):
        return f"Only {run.about.label_party}, which has the labels, knows the model quality."
    if not run.about.test_rows:
        return "The job has no test rows, so model quality is not measured."
    if run.state == "running":
        return "Model quality is measured at the end of the run."
    return "The outputs of the last evaluation were not finite, or their quality cannot be measured here."
