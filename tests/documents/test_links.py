"""Links lead somewhere, and the commands that pages name exist, with the options they name."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest
from typer.main import get_command

from documents.pages import ROOT, named_commands, pages, prose
from thinwire.cli import app

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMANDS = get_command(app)


def _anchors(page: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        made = there.is_relative_to(ROOT / "docs" / "reference")  # test_site.py looks at these
        if not (there.exists() or made) or (anchor and not made and anchor not in _anchors(there)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    commands = getattr(_COMMANDS, "commands", {})
    wrong = []
    for said in named_commands(page):
        name, *words = said.split()[1:] or [""]
        if name.startswith("-") or not re.fullmatch(r"[a-z][a-z-]*", name):
            continue
        if name not in commands:
            wrong.append(said)
            continue
        known = {option for parameter in commands[name].params for option in parameter.opts} | {"--help", "--debug"}
        given = {word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word)}
        wrong += [f"{said}: {option}" for option in sorted(given - known)]
    assert not wrong


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_exist(page: Path) -> None:
    """But for the page that says what they were called before."""
    if page.name == "migration.md":
        return
    spans = re.findall(r"`([^`\s]+)`", prose(page))
    files = {span for span in spans if re.fullmatch(r"[\w/.-]*/[\w.-]+\.py", span)}
    modules = {span for span in spans if re.fullmatch(r"thinwire(\.\w+)+", span)}
    folders = (ROOT, ROOT / "src" / "thinwire")
    wrong = [file for file in files if not any((folder / file).exists() for folder in folders)]
    assert not wrong + [module for module in modules if not _resolves(module)]


def _resolves(name: str) -> bool:
    """A module, or something in one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
