"""What the pages for people hold: fenced blocks, links, and commands named in the text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

__all__ = ["ROOT", "Block", "blocks", "named_commands", "pages", "prose"]

ROOT = Path(__file__).resolve().parents[2]

_PIECE = re.compile(
    r"^<!--\s*setup\s*\n(?P<setup>.*?)^-->[ ]*$"
    r"|^[ ]*<!--\s*not run:\s*(?P<reason>[^\n]*?)\s*-->[ ]*$"
    r"|^(?P<indent>[ ]*)```(?P<language>\w*)[ ]*\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.DOTALL | re.MULTILINE,
)
_SHELL = {"bash", "console", "sh"}
_COMMANDS = ("thinwire ", "python ", "torchrun ", "make ", "pip ", "ln ", "docker ", "curl ")


@dataclass(frozen=True)
class Block:
    """A fenced block, or commands in a comment that prepare the folder; `reason` says why it is not run."""

    page: str
    line: int
    kind: str  # shell, python, toml, json, text
    text: str
    reason: str | None = None
    hidden: bool = False  # commands in a comment

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README.md and every page of docs/, wherever it lies there."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """In the page's order. `<!-- not run: why -->` holds for the block right below it."""
    text, name = page.read_text(), str(page.relative_to(ROOT))
    found: list[Block] = []
    reason, ends = None, 0
    for piece in _PIECE.finditer(text):
        line = text.count("\n", 0, piece.start()) + 1
        if piece["reason"] is not None:
            reason, ends = piece["reason"], piece.end()
            continue
        beside = reason is not None and not text[ends : piece.start()].strip()
        if reason is not None and not beside:
            raise AssertionError(f"{name}:{line}: `not run` stands above no block")
        if piece["setup"] is not None:
            found.append(Block(name, line, "shell", piece["setup"], hidden=True))
        else:
            inside = dedent(piece["text"])  # a tab's blocks are indented
            found.append(Block(name, line, _kind(piece["language"], inside), inside, reason))
        reason = None
    return found


def _kind(language: str, text: str) -> str:
    if language in _SHELL or (not language and text.startswith(_COMMANDS)):
        return "shell"
    return language or "text"


def prose(page: Path) -> str:
    """The page without its blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _PIECE.sub("", page.read_text()), flags=re.DOTALL)


def named_commands(page: Path) -> list[str]:
    """Every `thinwire ...` of the page: between backticks, and in blocks, run or not."""
    inline = re.findall(r"`(thinwire [^`]+)`", prose(page).replace("\n", " "))
    lines = [line for block in blocks(page) if block.kind == "shell" for line in block.text.splitlines()]
    return inline + [line.partition(" #")[0] for line in lines if line.startswith("thinwire ")]
