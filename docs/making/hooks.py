"""What mkdocs does beyond its own: pages from code, links that lead out of docs/, pictures inside the page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_HERE = Path(__file__).resolve().parent
_DOCS = _HERE.parent
_OUTSIDE = {
    "src/thinwire/engine/wire/FORMAT.md": "reference/wire_format.md",
    "src/thinwire/align/FORMAT.md": "reference/align_format.md",
    "examples/digits": "reference/example_digits.md",
    "examples/three_organisations": "reference/example_three_organisations.md",
}
_DRAWN = re.compile(r'<img alt="[^"]*" src="([\w./-]+\.svg)"\s*/?>')

_NOTEBOOK = re.compile(r"\]\(((?:[\w.]+/)*notebooks/\w+)\.ipynb\)")


def on_files(files: Files, config: Any) -> Files:
    """The reference is made of the code that is there, each time; notebooks become pages."""
    sys.path.insert(0, str(_HERE))
    try:
        from notebooks import notebook_pages
        from reference import reference_pages
    finally:
        sys.path.pop(0)
    for path, text in (reference_pages() | notebook_pages()).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What lies outside docs/ has a page of its own here, and so have notebooks."""
    up = "../" * page.file.src_uri.count("/")
    for outside, inside in _OUTSIDE.items():
        markdown = markdown.replace(f"]({up}../{outside})", f"]({up}{inside})")
    return _NOTEBOOK.sub(r"](\1.md)", markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """A drawing stands in the page, so that it can be read out and searched."""
    folder = (_DOCS / page.file.src_uri).parent
    return _DRAWN.sub(lambda found: (folder / found[1]).read_text(), html)
