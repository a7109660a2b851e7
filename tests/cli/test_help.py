"""What `--help` shows and what the shell completes; neither loads torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from processes import THINWIRE
from thinwire.cli import app
from thinwire.cli.explain import read_explanations
from thinwire.cli.options import describe_parameters, read_options

COMMANDS: dict[str, Any] = getattr(get_command(app), "commands", {})
PANELS = ["Start", "Run across organisations", "Inspect results", "Research", "Housekeeping"]
JOB = '[[party]]\nname = "bank"\n[[party]]\nname = "shop"\n[label_party]\nname = "clinic"\n'


def complete(line: str, folder: Path | None = None) -> list[str]:
    """What bash offers at the end of the line."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_THINWIRE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    shown = subprocess.run(
        [THINWIRE], capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=folder
    )
    return shown.stdout.split()


def test_every_command_is_in_one_of_five_panels() -> None:
    shown = [command for command in COMMANDS.values() if not command.hidden]
    panels = [command.rich_help_panel for command in shown]
    assert list(dict.fromkeys(panels)) == PANELS
    assert len(shown) == len(set(COMMANDS)) - len([one for one in COMMANDS.values() if one.hidden])


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not command.hidden])
def test_every_option_is_explained_by_a_sentence(name: str) -> None:
    assert COMMANDS[name].help
    for parameter in COMMANDS[name].params:
        if parameter.name != "help":
            said = parameter.help or ""
            assert said[:1].isupper(), f"{name} {parameter.name}: {said!r}"
            assert said.endswith("."), f"{name} {parameter.name}: {said!r}"
            assert len(said.split()) > 2, f"{name} {parameter.name}: {said!r}"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("thinwire di", ["diagnose"]),
        ("thinwire explain bad-", [code for code in read_explanations() if code.startswith("bad-")]),
        ("thinwire reproduce celu-", None),
        ("thinwire compare job.toml --methods e", ["efvfl"]),
        ("thinwire compare job.toml --methods svfl,ce", ["svfl,celu"]),
        ("thinwire train job.toml --log-to mlflow,", ["mlflow,tensorboard", "mlflow,wandb"]),
        ("thinwire train job.toml --device c", ["cpu", "cuda"]),
        ("thinwire init --template ", read_options()["init"]["template"]["one_of"]),
        ("thinwire export run --to o", ["onnx"]),
        ("thinwire party job.toml --name ", ["bank", "shop", "clinic"]),
        ("thinwire certs certs --sign ba", ["bank.csr"]),
    ],
)
def test_values_complete(line: str, offered: list[str] | None, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "bank.csr").touch()
    found = complete(line, tmp_path)
    if offered is None:
        from thinwire.lab.papers.experiment import find_experiments

        offered = [name for name in find_experiments() if name.startswith(line.rsplit(maxsplit=1)[-1])]
        assert offered
    assert sorted(found) == sorted(offered)


def test_what_completes_is_what_there_is() -> None:
    from thinwire.engine.methods import METHODS
    from thinwire.engine.privacy.accounting.budget import Observer
    from thinwire.integrations import WRITERS
    from thinwire.job.row_selection import RowSet
    from thinwire.job.wizard.answers import TEMPLATES
    from thinwire.predict.export import FORMATS

    options = read_options()
    assert list(METHODS) == options["compare"]["methods"]["some_of"]
    assert list(TEMPLATES) == options["init"]["template"]["one_of"]
    assert list(RowSet) == options["every"]["table"]["one_of"]
    assert list(Observer) == options["privacy"]["observer"]["one_of"]
    assert sorted(options["export"]["to"]["one_of"]) == sorted(FORMATS)
    assert sorted(options["every"]["log_to"]["some_of"]) == sorted(WRITERS)


def test_every_text_of_the_table_is_of_a_parameter() -> None:
    parameters = {name: {one.name for one in command.params} for name, command in COMMANDS.items()}
    shared = read_options()["every"]
    for command, texts in read_options().items():
        known = set.union(*parameters.values()) if command == "every" else parameters[command]
        assert texts.keys() <= known, command
    used = {name for command, names in parameters.items() for name in names - read_options().get(command, {}).keys()}
    assert shared.keys() <= used


def test_brackets_in_help_are_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def key(file: Path) -> None:
        """Keep what [retention] says, in [bold] letters."""

    texts = {"key": {"file": {"argument": "FILE", "help": "A file with a [retention] section."}}}
    monkeypatch.setattr("thinwire.cli.options.read_options", lambda: texts)
    made = typer.Typer()
    made.command()(describe_parameters(key))
    made(["--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "Keep what [retention] says, in [bold] letters." in shown
    assert "A file with a [retention] section." in shown
