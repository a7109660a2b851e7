"""Records as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from thinwire.base.format import format_bytes, format_count
from thinwire.report.figures import (
    answer_figures,
    confusion_rows,
    cosine_figure,
    curve_figures,
    format_kinds,
    time_figures,
    totals_figure,
    traffic_figures,
)
from thinwire.report.privacy import list_spending
from thinwire.report.record import RunRecord
from thinwire.report.summary import RunGroup, comparison, group_runs, on_what, sentence, tiles
from thinwire.report.svg.page import html_page

_MOST_DETAILED = 12  # runs that are told one by one


@cache
def jinja_environment() -> Environment:
    """Everything that is no markup of ours is escaped."""
    found = Environment(
        loader=PackageLoader("thinwire.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    found.filters |= {"bytes": format_bytes, "count": format_count, "markup": Markup}
    return found


@cache
def _report_style() -> str:
    return files("thinwire.report").joinpath("templates/report.css").read_text(encoding="utf-8")


def render_page(template: str | Template, title: str, values: Mapping[str, Any]) -> str:
    """A template of ours, by name or as it is, in the frame and the style that all pages share."""
    body = jinja_environment().get_template(template).render(title=title, **values)
    return html_page(title, body, _report_style())


def report_html(runs: Sequence[RunRecord]) -> str:
    """The page; the same records give the same bytes."""
    groups = group_runs(runs)
    several = len(runs) > 1
    title = f"{len(runs)} runs compared" if several else _title(runs[0])
    values = {
        "several": several,
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
    return run.name if run.about.method in run.name else f"{run.name}, trained by {run.about.method}"


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
        "tiles": tiles(run),
        "traffic": traffic_figures(run),
        "kinds": format_kinds(run),
        "time": time_figures(run),
        "cosines": cosine_figure(run),
        "quality": run.quality,
        "answers": [] if run.quality is None else answer_figures(run.quality),
        "confusion": [] if run.quality is None else confusion_rows(run.quality),
        "classes": [] if run.quality is None else run.quality.classes or range(len(run.quality.confusion)),
        "privacy": list_spending(run.privacy),
        "no_answers": _no_answers(run),
    }


def _no_answers(run: RunRecord) -> str:
    if run.about.me not in (None, run.about.label_party):
        return f"How good the answers are is known to {run.about.label_party}, which has the labels."
    if not run.about.test_rows:
        return "The job has no test rows, so that nothing is said of how good its answers are."
    if run.state == "running":
        return "How good the answers are is counted at the run's end."
    return "The last evaluation's answers were not finite, or of no kind that is counted here."
