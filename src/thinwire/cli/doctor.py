"""`thinwire doctor`: what would stop a party's run, before it begins."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from thinwire.base.format import format_bytes
from thinwire.cli.output import print_result, wrap_lines
from thinwire.report.progress import open_console

if TYPE_CHECKING:
    from thinwire.net.doctor.check import Check

_WRONG = 2
_COLORS = {"ok": "green", "warning": "yellow", "problem": "red", "not checked": "bright_black"}
_VERDICT, _NAME = 13, 16  # columns


def doctor(
    job: Path,
    name: str,
    settings: list[str] = [],
    out: Path | None = None,
    wait: float = 0.0,
    code: list[str] = [],
    as_json: bool = False,
) -> None:
    """Check a party before a run: job, certificates, data, memory, disk, and the connection to the label party.

    Exit code 0: no problems found; 2: at least one problem. Only sizes and digests are sent, never data, ids or keys.
    """
    from thinwire.job.own_code import CodeSources
    from thinwire.training.preflight import DoctorRequest, run_checks

    request = DoctorRequest(job, name, out or Path("runs") / job.stem / name, wait, settings, CodeSources.parse(code))
    found = []
    for check in run_checks(request, format_bytes):
        found.append(check)
        if not as_json:
            _print(check)
    counts = Counter(check.verdict.value for check in found)
    facts = {
        "party": name,
        "ok": not counts["problem"],
        "problems": counts["problem"],
        "warnings": counts["warning"],
        "not_checked": counts["not checked"],
        "checks": [{**asdict(check), "verdict": check.verdict.value} for check in found],
    }
    print_result(facts, as_json, [_format_summary(counts)])
    if counts["problem"]:
        raise typer.Exit(_WRONG)


def _print(check: Check) -> None:
    """One line, and what there is to do about it below."""
    from rich.text import Text

    first, *rest = wrap_lines(check.says, _VERDICT + _NAME)
    verdict = check.verdict.value
    shown = Text.assemble((verdict.ljust(_VERDICT), _COLORS[verdict]), f"{check.name.ljust(_NAME)}{first}")
    open_console().print(shown, soft_wrap=True)  # typer.style colours whatever NO_COLOR says
    for line in [*rest, *(f"  {part}" for text in check.more for part in wrap_lines(text, _VERDICT + _NAME + 2))]:
        typer.echo(f"{'':{_VERDICT + _NAME}}{line}")


def _format_summary(counts: Counter[str]) -> str:
    problems, warnings, left = counts["problem"], counts["warning"], counts["not checked"]
    said = [f"{problems} problem{'s' * (problems != 1)}"] if problems else ["no problems"]
    said += [f"{warnings} warning{'s' * (warnings != 1)}"] * bool(warnings)
    said += [f"{left} not checked"] * bool(left)
    return f"{', '.join(said)}, {counts['ok']} ok"
