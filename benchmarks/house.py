"""The size and the order of the source tree, an older checkout's beside it.

    python benchmarks/house.py [--beside CHECKOUT] [--walk] [--offenders] [--json]

With --walk, the hops of the walks that benchmarks/walk.py traces, counted alike in both checkouts: calls into another
file, pairs of files, and of the set-up those pairs that make a run of a command.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
WORDS = tomllib.loads(Path(__file__).with_name("participles.toml").read_text(encoding="utf-8"))
_COMMAND_TO_RUN = {"cli", "job", "training"}  # where a command becomes a run; before the floors, cli and job
SHORT_FILE = 60  # lines

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class House:
    """The source tree of a checkout."""

    checkout: Path

    @cached_property
    def files(self) -> dict[str, str]:
        source = self.checkout / "src" / "thinwire"
        return {
            str(file.relative_to(source)): file.read_text(encoding="utf-8") for file in sorted(source.rglob("*.py"))
        }

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {file: ast.parse(text) for file, text in self.files.items()}

    @property
    def file_lengths(self) -> dict[str, int]:
        return {file: text.count("\n") for file, text in self.files.items()}

    @property
    def function_lengths(self) -> dict[str, int]:
        found = {}
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, Function):
                    found[f"{file}:{node.lineno} {node.name}"] = (node.end_lineno or 0) - node.lineno + 1
        return found

    def import_order(self) -> list[str]:
        """The names in the order that tests/test_architecture.py enforces."""
        tree = ast.parse((self.checkout / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER":
                levels = ast.literal_eval(node.value)
                return [name for level in levels for name in ([level] if isinstance(level, str) else level)]
        raise ValueError(f"{self.checkout}: tests/test_architecture.py has no ORDER")

    def repeated_classes(self) -> list[str]:
        names = Counter(
            node.name
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return sorted(name for name, count in names.items() if count > 1)

    def participles(self) -> list[str]:
        """Public functions and methods that are named by one, with file and line."""
        return [
            f"{file}:{function.lineno} {function.name}"
            for file, tree in self.trees.items()
            for function in _public_functions(tree)
            if is_participle_name(function.name)
        ]


open_house = cache(House)  # a checkout is parsed once


def _public_functions(node: ast.Module | ast.ClassDef) -> Iterator[Function]:
    for inner in node.body:
        if isinstance(inner, ast.ClassDef):
            yield from _public_functions(inner)
        elif isinstance(inner, Function) and not inner.name.startswith("_"):
            yield inner


def is_participle_name(name: str) -> bool:
    words = name.split("_")
    if name in WORDS["names"] or (len(words) > 1 and words[0] in WORDS["verbs"]):
        return False
    return _is_participle(words[0]) or _is_participle(words[-1])


def _is_participle(word: str) -> bool:
    regular = word.endswith("ed") and len(word) > 3 and word not in WORDS["not_participles"]
    return regular or word in WORDS["irregular"]


def measure(house: House) -> dict[str, int | float]:
    files, functions = house.file_lengths, house.function_lengths
    return {
        "names in the import order": len(house.import_order()),
        "files": len(files),
        "lines": sum(files.values()),
        "median file": median(files.values()),
        "longest file": max(files.values()),
        "median function": median(functions.values()),
        "longest function": max(functions.values()),
        "public class names used twice or more": len(house.repeated_classes()),
        "public functions named by a participle": len(house.participles()),
        f"files under {SHORT_FILE} lines": sum(length < SHORT_FILE for length in files.values()),
    }


def trace_walks(checkout: Path) -> dict[str, list[tuple[str, str, str]]]:
    """In a process of its own, so that either checkout's package is imported."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("walk.py"))]
    shown = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found: dict[str, list[tuple[str, str, str]]] = json.loads(shown.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", metavar="CHECKOUT", type=Path, help="an older checkout to compare with")
    parser.add_argument("--walk", action="store_true", help="trace the walks too; takes a minute")
    parser.add_argument("--offenders", action="store_true", help="list the classes, functions and hops that count")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    asked = parser.parse_args(arguments)
    houses = [open_house(path.resolve()) for path in (asked.beside, ROOT) if path is not None]
    figures: list[dict[str, Any]] = [measure(house) for house in houses]
    walks = [trace_walks(house.checkout) if asked.walk else {} for house in houses]
    for found, walk in zip(figures, walks, strict=True):
        for name, hops in walk.items():
            found[f"{name}: calls into another file"] = len(hops)
            found[f"{name}: pairs of files"] = len({hop[:2] for hop in map(tuple, hops)})
        if walk:
            pairs = {hop[:2] for hop in map(tuple, walk["train, set-up"])}
            found["train, set-up: pairs that end in cli, job or training"] = sum(
                entered.split("/")[0] in _COMMAND_TO_RUN for _, entered in pairs
            )
    if asked.json:
        print(json.dumps(dict(zip(("before", "now")[-len(houses) :], figures, strict=True))))
        return
    table = Table("", *("before", "now")[-len(houses) :])
    for name in figures[-1]:
        table.add_row(name, *(f"{found[name]:,g}" for found in figures))
    Console().print(table)
    if asked.offenders:
        lines = [
            f"{name}: {a or '-'} -> {b} {function}" for name, found in walks[-1].items() for a, b, function in found
        ]
        print("\n".join([*houses[-1].repeated_classes(), *houses[-1].participles(), *lines]))


if __name__ == "__main__":
    main()
