"""Notebooks without Jupyter: runs their cells in this process, keeps what they print, and makes pages of them.

python docs/making/notebooks.py            runs all of docs/notebooks and writes their outputs
python docs/making/notebooks.py NAME...    runs some
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "notebook_pages", "read_notebook", "run_notebook"]

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
_RICH = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}

Notebook = dict[str, Any]


def read_notebook(path: Path) -> Notebook:
    found: Notebook = json.loads(path.read_text())
    return found


def run_notebook(notebook: Notebook, folder: Path) -> dict[str, Any]:
    """Runs the code cells in order, in that folder; keeps their outputs, and returns the names that they leave."""
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with chdir(folder):
        for number, cell in enumerate(code, 1):
            cell["execution_count"] = number
            cell["outputs"] = list(_run_cell("".join(cell["source"]), names, number))
    return names


def _run_cell(source: str, names: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """As Jupyter does: what is printed, then the value of a last line that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)  # noqa: S307
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": _split(printed.getvalue())}
    if value is not None and not source.rstrip().endswith(";"):
        yield {"data": _represent(value), "execution_count": number, "metadata": {}, "output_type": "execute_result"}


def _represent(value: Any) -> dict[str, list[str]]:
    rich = {kind: getattr(value, method)() for kind, method in _RICH.items() if hasattr(value, method)}
    return {kind: _split(text) for kind, text in {**rich, "text/plain": repr(value)}.items() if text}


def _split(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def notebook_pages() -> dict[str, str]:
    """A page for each notebook, with the outputs that are kept in it."""
    return {f"notebooks/{path.stem}.md": _page(path) for path in sorted(FOLDER.glob("*.ipynb"))}


def _page(path: Path) -> str:
    parts = [part for cell in read_notebook(path)["cells"] for part in _cell_parts(cell)]
    parts.insert(1, f"*A notebook: [{path.name}]({path.name}). Its outputs are those of a run.*")
    return "\n\n".join(parts) + "\n"


def _cell_parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", source)  # other notebooks are pages too
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield _output(output)


def _output(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    for kind in _RICH:
        if kind in data:
            return f'<div class="notebook-output" markdown="0">\n{"".join(data[kind])}\n</div>'
    return f"```{{ .text .notebook-output }}\n{''.join(data.get('text/plain', output.get('text', []))).rstrip()}\n```"


def main(chosen: list[str]) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not chosen or path.stem in chosen:
            notebook = read_notebook(path)
            with tempfile.TemporaryDirectory() as folder:
                run_notebook(notebook, Path(folder))
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
