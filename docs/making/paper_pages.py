"""Puts what `thinwire reproduce` wrote onto the pages under docs/results.

python docs/making/paper_pages.py FOLDER...     of an experiment, or of `reproduce --all`

An experiment's summary.json and panels go to docs/results/NAME/SIZE, and its claims, curves and panels to the end of
the page docs/results/NAME.md, in place of those of an earlier run of that size.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
_PART = "<!-- written by docs/making/paper_pages.py: {size} size -->"
_HEADINGS = {"full": "Full size, as run last", "quick": "Quick size, as run last"}
_KEPT = ("What was run", "Claims", "Curves", "Plots")


def find_experiments(folders: Sequence[str]) -> Iterator[Path]:
    """The folders of finished experiments, those below `reproduce --all`'s too."""
    for folder in map(Path, folders):
        found = (
            [folder] if (folder / "page.md").exists() else sorted(page.parent for page in folder.glob("*/page.md"))
        )
        if not found:
            raise SystemExit(
                f"{folder}: no page.md here or one folder down; run `thinwire reproduce` to its end first"
            )
        yield from found


def publish(folder: Path) -> Path:
    """Copies summary and panels, and rewrites the part of the page that shows them."""
    summary = json.loads((folder / "summary.json").read_text())
    name, size = summary["experiment"], summary["size"]
    kept = RESULTS / name / size
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    shutil.copy(folder / "summary.json", kept)
    shutil.copytree(folder / "panels", kept / "panels")
    page = RESULTS / f"{_find_page(name)}.md"
    page.write_text(replace_part(page.read_text(), render_part(summary, (folder / "page.md").read_text())))
    return page


def _find_page(name: str) -> str:
    return "thin" if name.startswith("thin-") else name


def render_part(summary: dict[str, Any], page: str) -> str:
    """The sections of a generated page, one level down, under one heading."""
    name, size = summary["experiment"], summary["size"]
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    shown = [f"### {one.strip()}" for one in sections if one.startswith(_KEPT)]
    heading = _HEADINGS[size] if _find_page(name) == name else f"{name}: {_HEADINGS[size].lower()}"
    text = "\n\n".join([_PART.format(size=f"{name}, {size}"), f"## {heading}", *shown])
    return text.replace("](panels/", f"]({name}/{size}/panels/") + "\n"


def replace_part(page: str, part: str) -> str:
    """The page with this part, in the place of the one that has the same first line; parts stand at the end."""
    first = part.partition("\n")[0]
    start = page.find(first)
    if start < 0:
        return f"{page.rstrip()}\n\n{part}"
    end = page.find("<!-- written by docs/making/paper_pages.py", start + 1)
    rest = "" if end < 0 else f"\n{page[end:]}"
    return f"{page[:start]}{part}{rest}"


if __name__ == "__main__":
    for experiment in find_experiments(sys.argv[1:]):
        print(publish(experiment))
