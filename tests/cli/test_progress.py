"""What a run says of itself while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from thinwire.cli.output import build_table, print_plain
from thinwire.report.progress import ProgressLine, RunProgress

HALVED = [
    {"round": 10, "from": 11, "to": 5, "loss": 3.5, "lowest_loss": 1.25},
    {"round": 30, "from": 5, "to": 2, "loss": 9.0, "lowest_loss": 3.5},
]


def event(round: int, halved: list[dict[str, Any]], refined: Sequence[int] = ()) -> dict[str, Any]:
    return {
        "round": round,
        "epoch": round / 20,
        "train": {"loss": 1.0},
        "test": {},
        "bytes": {"up": 1, "down": 1, "total": 2},
        "link_seconds": None,
        "diagnostics": {
            "a": {"backed_off": []},
            "shop": {"backed_off": halved, "refined_after": refined},
            "distortion": [0.0],
        },
    }


def test_backing_off_is_said_once_each_time() -> None:
    out = StringIO()
    with RunProgress("thin", 40, Console(file=out, width=200)) as progress:
        for round, seen in ((10, 0), (20, 1), (30, 1), (40, 2)):
            progress(event(round, HALVED[:seen]))
    said = [line for line in out.getvalue().splitlines() if "cached steps" in line]
    assert said == [
        "thin: the training loss rose from 1.25 to 3.5, so from round 10 on 5 cached steps per round, not 11",
        "thin: the training loss rose from 3.5 to 9, so from round 30 on 2 cached steps per round, not 5",
    ]


def test_finer_messages_are_said_once_each_time() -> None:
    out = StringIO()
    with RunProgress("thin", 40, Console(file=out, width=200)) as progress:
        for round, seen in ((120, 0), (180, 1), (240, 1), (300, 2)):
            progress(event(round, [], [120, 240][:seen]))
    said = [line for line in out.getvalue().splitlines() if "finer" in line]
    stands = "thin: the training loss has plateaued, so messages are finer from round"
    assert said == [f"{stands} 120 on", f"{stands} 240 on"]


def test_names_and_sections_in_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = build_table("[retention] in [bold]", ["party[/]"], wrapped=["party[/]"])
    table.add_row("[bold]bank :key:, which is a long name")
    print_plain(table, "its job has no [retention] section")
    shown = capsys.readouterr().out
    for text in ("[retention] in [bold]", "party[/]", "[bold]bank :key:", "its job has no [retention] section"):
        assert text in shown


@pytest.mark.parametrize("columns", [60, 76, 80, 200])
def test_a_table_fits_the_terminal_and_nothing_in_it_is_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = build_table("a sweep", ["recipe.\ncompressor.", "optimizer."], [f"figure{one}" for one in range(6)])
    table.add_row("0.25", "0.02", *["12.6 kB\n± 1.75"] * 6)
    print_plain(table)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    assert shown.count("1.75") == 6


def test_a_line_that_moves_takes_no_name_for_markup() -> None:
    out = StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with ProgressLine("[bold]bank[/nothing]", 4, console=console) as progress:
        progress.move(2, "below [retention]")
        progress.note("[retention] stays")
    for text in ("[bold]bank[/nothing]", "below [retention]", "[retention] stays"):
        assert text in out.getvalue()


def test_rate_and_time_left_follow_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 5.0, 10.0))
    monkeypatch.setattr("thinwire.report.progress.perf_counter", lambda: next(clock))
    out = StringIO()
    progress = RunProgress("thin", 40, Console(file=out, width=200))
    for round in (0, 10, 20):
        progress(event(round, []))
    ends = [line.rpartition("down 1 B")[2] for line in out.getvalue().splitlines()]
    assert ends == ["", ", 2/s, left 15 s", ", 2/s, left 10 s"]


def test_the_pace_begins_anew_with_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 10.0, 100.0, 102.0))
    monkeypatch.setattr("thinwire.report.progress.perf_counter", lambda: next(clock))
    monkeypatch.setattr("rich.live.Live.start", lambda _: None)
    monkeypatch.setattr("rich.live.Live.stop", lambda _: None)
    seen = []
    with ProgressLine("tables", 0, console=Console(file=StringIO(), force_terminal=True)) as progress:
        monkeypatch.setattr(progress._bar, "update", lambda _, **fields: seen.append(fields["left"]))
        for done, stage in ((0, "bank"), (1, "bank"), (0, "shop"), (1, "shop")):
            progress.count(done, 2, stage)
    assert seen == ["", "0.1/s, left 10 s", "", "0.5/s, left 2 s"]
