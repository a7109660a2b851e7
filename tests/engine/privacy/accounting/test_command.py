"""`thinwire privacy`, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from thinwire.base.errors import BadInput
from thinwire.cli.privacy import privacy

app = typer.Typer()
app.command()(privacy)

COSTS = "--trials 4 --beta .05 --width 16 --parties 4 --epochs 10"
PLAN = "--epsilon 8 --width 16 --parties 4 --epochs 10"


def shown(line: str) -> str:
    ended = CliRunner().invoke(app, line.split())
    assert ended.exit_code == 0, ended.exception
    return ended.stdout


def facts(line: str) -> dict[str, Any]:
    def no_infinity(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    read = json.loads(shown(f"{line} --json"), parse_constant=no_infinity)
    assert isinstance(read, dict)
    return read


def epsilons(line: str, part: str) -> list[float | str]:
    found = [row[f"{part}_epsilon"] for row in facts(line)["observers"]]
    return [one if isinstance(one, str) else round(one, 1) for one in found]


def test_three_observers_and_nothing_proven_end_to_end() -> None:
    assert epsilons(COSTS, "releases") == [14.5, 17.4, 35.4]
    assert epsilons(COSTS, "end_to_end") == ["infinity"] * 3
    table = shown(COSTS)
    for words in (
        "14.5",
        "17.4",
        "35.4",
        "infinite",
        "the label party alone",
        "Not protected:",
        "Labels",
        "raw rows",
    ):
        assert words in table


def test_frozen_or_privately_trained_it_has_a_bound() -> None:
    assert epsilons(f"{COSTS} --frozen", "end_to_end") == [14.5, 17.4, 35.4]
    private = epsilons(f"{COSTS} --noise-multiplier 4", "end_to_end")
    assert all(float(one) > other for one, other in zip(private, (14.5, 17.4, 35.4), strict=True))
    assert "infinite" not in shown(f"{COSTS} --noise-multiplier 4")
    assert epsilons(f"{COSTS} --label-holds-features", "releases") == [17.4, 17.4, 35.4]
    assert epsilons(COSTS.replace("--parties 4", "--parties 2"), "releases") == [35.4] * 3


def test_a_plan_with_its_verdict() -> None:
    planned = facts(PLAN)
    assert planned["least_noise"]["noise_std"] == pytest.approx(16.1, rel=0.01)
    assert planned["fewest_bits"]["bits_per_value"] == 3
    assert planned["usefulness"]["verdict"] == "useless"
    assert planned["least_noise"]["observers"][0]["end_to_end_epsilon"] == "infinity"
    table = shown(PLAN)
    for words in (
        "least noise",
        "fewest bits",
        "Useless",
        "narrower embedding",
        "without --frozen or --noise-multiplier",
        "Labels",
    ):
        assert words in table
    assert "infinite" not in shown(f"{PLAN} --frozen")
    assert facts(f"{PLAN} --frozen --observer all_others")["least_noise"]["observers"][2]["end_to_end_epsilon"] <= 8


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--width 16 --parties 4 --epochs 10", "give --trials and --beta"),
        (f"{COSTS} --epsilon 8", "give --trials and --beta"),
        ("--trials 4 --width 16 --parties 4 --epochs 10", "give --trials and --beta"),
        (f"{COSTS} --frozen --noise-multiplier 2", "use only one of them"),
        (COSTS.replace(".05", ".5"), "beta must be above 0 and at most 0.25"),
        (COSTS.replace("--epochs 10", "--epochs -1"), "epochs must be from 0"),
        (COSTS.replace("--parties 4", "--parties 0"), "parties must be from 1"),
        (f"{COSTS} --delta 1", "delta must be between 0 and 1"),
        (f"{COSTS} --noise-multiplier 0", "noise_multiplier must be above 0"),
        (f"{PLAN} --observer me", "observer must be one of label_party, feature_party, all_others"),
        (f"{PLAN} --noise-multiplier 1", "it must be well above 4.03"),
        (PLAN.replace("8", "0"), "budget: epsilon must be above 0"),
    ],
)
def test_wrong_input_is_one_message(line: str, says: str) -> None:
    """`main` prints a BadInput as one line and ends with exit code 2."""
    ended = CliRunner().invoke(app, line.split())
    assert isinstance(ended.exception, BadInput)
    assert says in str(ended.exception)
    assert ended.stdout == ""


def test_what_is_missing_is_named() -> None:
    ended = CliRunner().invoke(app, ["--trials", "4"])
    assert isinstance(ended.exception, BadInput)
    assert "--width, --parties and --epochs" in str(ended.exception)


def test_it_does_not_import_torch() -> None:
    code = (
        "import sys, typer\n"
        "from thinwire.cli.privacy import privacy\n"
        "app = typer.Typer()\n"
        "app.command()(privacy)\n"
        f"app({COSTS.split()!r}, standalone_mode=False)\n"
        f"app({PLAN.split()!r}, standalone_mode=False)\n"
        "print(sorted({'torch', 'scipy', 'sklearn'} & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.rstrip().endswith("[]")
