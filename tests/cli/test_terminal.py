"""What commands write to a terminal: colours, unless NO_COLOR is set, and how far their work is."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import copytree

import pytest

from job.small import write_job
from processes import run, run_in_terminal

# 30 to 38, 40 to 48 and their bright twins; bold, dim and what moves the cursor are no colours.
_COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:[34][0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
COMMANDS = {
    "help": ("--help",),
    "a command's help": ("train", "--help"),
    "a wrong option": ("train", "--nothing"),
    "a progress bar": ("train", "job.toml", "--out", "run"),
    "verdicts": ("doctor", "job.toml", "--name", "bank"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_colours_are_shown_on_a_terminal_unless_no_color_is_set(words: tuple[str, ...], tmp_path: Path) -> None:
    folders = [tmp_path / "with", tmp_path / "without"]
    for folder in folders:
        folder.mkdir()
        write_job(folder)
    assert _COLOR.search(run_in_terminal(*words, folder=folders[0]))
    shown = run_in_terminal(*words, folder=folders[1], NO_COLOR="1")
    assert shown
    assert _COLOR.findall(shown) == []


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_pipe_gets_no_control_codes(words: tuple[str, ...], tmp_path: Path) -> None:
    write_job(tmp_path)
    shown = run(*words, folder=tmp_path)
    assert shown.stdout or shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr


PACE = r"[\d.e+]+/s, left 0 s"
INIT = ("init", "new.toml", "--party", "shop=shop.csv", "--party", "clinic=clinic.csv", "--label", "clinic:ill")
SLOW = {
    "check": (("check", "job.toml"), rf"dry run \S* 3/3 +{PACE}"),
    "init": ((*INIT, "--id", "row"), rf"shop.csv: columns \S* 3/3 +{PACE}"),
    "export": (("export", "run", "--to", "torchscript", "--out", "models"), rf"models \S* 3/3 +{PACE}"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, with tables that have an id."""
    folder = tmp_path_factory.mktemp("trained")
    write_job(folder)
    for name in ("shop", "clinic"):
        head, *rows = (folder / f"{name}.csv").read_text().splitlines()
        lines = [f"row,{head}", *(f"{number},{row}" for number, row in enumerate(rows))]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    shown = run("train", "job.toml", "--out", "run", folder=folder)
    assert shown.returncode == 0, shown.stderr
    return folder


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """The same for one test alone."""
    return copytree(trained, tmp_path / "finished")


@pytest.mark.parametrize(("words", "last"), SLOW.values(), ids=SLOW.keys())
def test_slow_commands_show_rate_and_time_left_on_a_terminal(
    words: tuple[str, ...], last: str, finished: Path
) -> None:
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", run_in_terminal(*words, folder=finished))
    assert re.search(last, shown), shown


@pytest.mark.parametrize("words", [words for words, _ in SLOW.values()], ids=SLOW.keys())
def test_they_show_none_in_a_pipe(words: tuple[str, ...], finished: Path) -> None:
    shown = run(*words, folder=finished)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "left 0 s" not in shown.stdout
