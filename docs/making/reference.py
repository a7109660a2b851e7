"""The reference pages, from the code itself: commands, job-file keys, errors; `api.py` makes those of Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from api import python_pages
from typer.main import get_command

from thinwire.cli import app
from thinwire.cli.explain import read_explanations
from thinwire.job.schema import SCHEMA_VERSION, job_schema

__all__ = ["reference_pages"]

_ROOT = Path(__file__).resolve().parents[2]


def reference_pages() -> dict[str, str]:
    """Every page's path below docs/, and its text."""
    return {
        "reference/commands.md": _commands(),
        "reference/job_file.md": _job_file(),
        "reference/errors.md": _errors(),
        **python_pages(),
        "reference/wire_format.md": (_ROOT / "src/thinwire/engine/wire/FORMAT.md").read_text(),
        "reference/align_format.md": (_ROOT / "src/thinwire/align/FORMAT.md").read_text(),
        **{f"reference/example_{name}.md": _example(name) for name in ("digits", "three_organisations")},
    }


def _commands() -> str:
    parts = [
        "# Commands",
        "Exit codes: 0 done; 1 failed while running; 2 wrong input, nothing was started; 130 Ctrl-C.",
    ]
    for name, command in getattr(get_command(app), "commands", {}).items():
        if command.hidden:
            continue
        given = [_metavar(one) for one in command.params if one.param_type_name == "argument"]
        parts += [f"## {name}", _plain(command.help or ""), f"`{' '.join(['thinwire', name, *given, '[options]'])}`"]
        rows = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
        parts.append(_table(("option", "without it", "meaning"), rows))
    return "\n\n".join(parts)


def _parameter(parameter: Any) -> tuple[str, str, str]:
    """Typer's parameters are click's, or its own copy of them: what both have."""
    said = _plain(parameter.help or "")
    if parameter.param_type_name == "argument":
        return f"`{_metavar(parameter)}`", "needed" if parameter.required else "", said
    value = "" if parameter.is_flag else f" {_metavar(parameter)}"
    default = parameter.default
    shown = "" if default is None or default is False or default in ("", [], ()) else f"`{default}`"
    return ", ".join(f"`{name}{value}`" for name in parameter.opts), "needed" if parameter.required else shown, said


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or "VALUE")


def _job_file() -> str:
    schema = job_schema()
    parts = [
        "# Job-file keys",
        f"Schema version {SCHEMA_VERSION}, as [JSON schema](../schema/job-{SCHEMA_VERSION}.json). "
        "[Job files](../jobs.md) explains them.",
        "## The file",
        _keys(schema["anyOf"][0]),
    ]
    for name, section in sorted(schema["$defs"].items()):
        parts += [f"## {name}", _docstring_text(section.get("description", "")), _keys(section)]
    return "\n\n".join(parts)


def _keys(section: Mapping[str, Any]) -> str:
    needed = section.get("required", [])
    rows = [
        (f"`{key}`", _type(value), "needed" if key in needed else _default(value))
        for key, value in section.get("properties", {}).items()
    ]
    return _table(("key", "type", "without it"), rows)


def _type(value: Mapping[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(one) for one in value["anyOf"] if one.get("type") != "null"))
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "enum" in value:
        return ", ".join(f"`{one!r}`".replace("'", '"') for one in value["enum"])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    kind = str(value.get("type", "anything"))
    return {"object": "table", "integer": "whole number"}.get(kind, kind)


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    return "" if default is None or isinstance(default, dict) else f"`{default}`"


def _errors() -> str:
    parts = ["# Errors", "The code in brackets behind a message; `thinwire explain CODE` says the same."]
    for code, one in read_explanations().items():
        parts += [f"## {code}", one["means"], "Usual causes:", _list(one["causes"])]
        parts += ["What to do:", _list(one["ways_out"])]
    return "\n\n".join(parts)


def _docstring_text(said: str) -> str:
    """Lines that are set in stay as they are; the rest is text, in which nothing is a tag or a link."""
    paragraphs = said.split("\n\n")
    return "\n\n".join(_preserved(one) if one.startswith("    ") else _plain(one) for one in paragraphs)


def _plain(said: str) -> str:
    pieces = said.replace("``", "`").split("`")
    pieces[::2] = [_escaped(piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _escaped(said: str) -> str:
    for character, written in (("<", "&lt;"), ("*", "\\*"), ("_", "\\_"), ("[", "\\["), ("|", "\\|")):
        said = said.replace(character, written)
    return said


def _preserved(said: str) -> str:
    return "\n".join(["```text", inspect.cleandoc(said), "```"]) if said.strip() else ""


def _example(name: str) -> str:
    parts = [f"# examples/{name}"]
    for file in sorted((_ROOT / "examples" / name).iterdir()):
        if file.suffix in (".toml", ".py"):
            language = {".toml": "toml", ".py": "python"}[file.suffix]
            parts += [f"## {file.name}", f"```{language}\n{file.read_text().rstrip()}\n```"]
    return "\n\n".join(parts)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *body]) if body else ""


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
