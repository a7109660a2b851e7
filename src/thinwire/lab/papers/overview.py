"""Every experiment in one go: which of them can run here, and one page with all verdicts, rewritten after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.lab.papers.experiment import ExperimentSection, Size, find_experiments, read_experiment
from thinwire.lab.papers.jobs import find_missing_data
from thinwire.report.rendering import render_page
from thinwire.storage.json_file import dump_indented_json
from thinwire.storage.run_directory import RunDirectory


@dataclass
class OverviewEntry:
    """One experiment of the page: its summary once it has run, or why it has not."""

    name: str
    about: ExperimentSection
    obstacle: str | None = None  # why it cannot run here, in one line
    summary: Mapping[str, Any] | None = None
    error: str | None = None  # what ended it

    @property
    def state(self) -> str:
        """In one word, for tables and for summary.json."""
        if self.obstacle is not None:
            return "not run"
        if self.error is not None:
            return "failed"
        return "done" if self.summary is not None else "waiting"

    @property
    def verdict(self) -> str:
        """How many claims are met, or else the state."""
        if self.summary is None:
            return self.state
        return f"{self.summary['met']} of {len(self.summary['expectations'])} met"

    @property
    def explanation(self) -> str:
        """The claims that are not met, or why there is no result."""
        if self.summary is None:
            return self.obstacle or self.error or ""
        missed = [one for one in self.summary["expectations"] if not one["met"]]
        return "; ".join(f"{one['verdict']}: {one['claim']} ({one['why']})" for one in missed)


def list_entries(size: Size, data: str | None) -> list[OverviewEntry]:
    """All experiments, those that cannot run with the reason; a data set is looked for once."""
    about = {name: read_experiment(name)[1].experiment for name in find_experiments()}
    missing = {one: find_missing_data(one, data) for one in sorted({each.data for each in about.values()})}
    return [OverviewEntry(name, each, missing[each.data] or _refuse_size(each, size)) for name, each in about.items()]


def _refuse_size(about: ExperimentSection, size: Size) -> str | None:
    return "runs at full size only" if about.full_size_only and size == "quick" else None


def write_overview(entries: Sequence[OverviewEntry], size: Size, out: Path) -> dict[str, Any]:
    """index.html, which links each experiment's report, and summary.json; gives what the second holds."""
    rows = [
        {
            "name": entry.name,
            "paper": entry.about.paper,
            "figure": entry.about.figure,
            "data": entry.about.data,
            "state": entry.state,
            "verdict": entry.verdict,
            "why": entry.explanation,
        }
        for entry in entries
    ]
    summary = {"size": size, "experiments": rows}
    folder = RunDirectory(out)
    folder.write("summary.json", dump_indented_json(summary))
    counts = {state: sum(row["state"] == state for row in rows) for state in ("done", "waiting", "failed", "not run")}
    page = render_page("overview.html", "All experiments", {"rows": rows, "size": size, "counts": counts})
    folder.write("index.html", page.encode())
    return summary
