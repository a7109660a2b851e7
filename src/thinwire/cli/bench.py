"""`thinwire bench`: one table of ratios, each measured in this run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from thinwire.cli.shown import AsJson, bytes_shown
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from thinwire.bench import Row, Saved

__all__ = ["bench"]


def bench(
    only: Annotated[
        list[str],
        typer.Option("--only", metavar="NAME", help="Of startup, entropy, engine, memory, network, methods, psi."),
    ] = [],  # noqa: B006
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", metavar="DIR", help="Keep bench.json and bench.html there; compare with what it holds."
        ),
    ] = None,
    openmined_python: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--openmined-python", metavar="PATH", help="A Python that has openmined-psi, for the row psi."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure thinwire against plain torch, raw TCP, the entropy, svfl and others: ratios, about three minutes."""
    from rich.console import Console

    from thinwire.bench import read_saved

    names = _names(only)
    if openmined_python is not None and not openmined_python.exists():
        raise BadInput(f"--openmined-python {openmined_python}: there is no such file")
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out}: a file; give a folder")
    last = _nothing_saved() if out is None else read_saved(out)
    found, failed = _run(names, openmined_python, Console(stderr=True))
    now = last.updated(found)
    if out is not None:
        _keep(out, now, last)
    if as_json:
        fresh = {name: one for name, one in now.described()["benches"].items() if name in found}
        before = {name: {row.name: last.ratio(name, row.name) for row in rows} for name, rows in found.items()}
        described = {**now.described(), "benches": fresh, "last": before, "failed": failed}
        typer.echo(json.dumps({**described, "out": None if out is None else str(out)}))
    else:
        _print(Console(), found, last, out)
    if failed:
        typer.echo("thinwire: " + "\n".join(failed), err=True)
        raise typer.Exit(1)


def _names(only: list[str]) -> list[str]:
    from thinwire.bench import BENCHES
    from thinwire.job.messages import did_you_mean

    asked = [name.strip().lower() for text in only for name in text.split(",")]
    for name in asked:
        if name not in BENCHES:
            raise BadInput(f"--only: {name!r} is not one of {', '.join(BENCHES)}{did_you_mean(name, BENCHES)}")
    return [name for name in BENCHES if not asked or name in asked]


def _nothing_saved() -> Saved:
    from thinwire.bench import Saved

    return Saved()


def _run(names: list[str], openmined_python: Path | None, console: Console) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows by bench, and what went wrong."""
    from time import perf_counter

    from thinwire.bench import BENCHES, measured
    from thinwire.bench.suite import BenchFailed

    found: dict[str, list[Row]] = {}
    failed = []
    for number, name in enumerate(names, start=1):
        place, began = f"{number}/{len(names)} {name}", perf_counter()
        arguments = [str(openmined_python)] if name == "psi" and openmined_python is not None else []
        with console.status(f"{place}: {BENCHES[name].help}"):
            try:
                found[name] = measured(name, arguments)
                ended = f"{perf_counter() - began:.0f} s"
            except BenchFailed as error:
                failed.append(str(error))
                ended = "failed"
        console.print(f"{place}: {ended}", markup=False, highlight=False, soft_wrap=True)
    return found, failed


def _keep(out: Path, now: Saved, last: Saved) -> None:
    from thinwire.bench import write_saved
    from thinwire.bench.page import html_page

    out.mkdir(parents=True, exist_ok=True)
    write_saved(out, now)
    (out / "bench.html").write_text(html_page(now, last), encoding="utf-8")


def _print(console: Console, found: dict[str, list[Row]], last: Saved, out: Path | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="thinwire over what it is held against; less is better", box=SIMPLE_HEAD)
    table.add_column("what, and against what", ratio=1)
    for heading in ("ours", "other", "ratio", *(["last"] if last.rows else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for bench, rows in found.items():
        for row in rows:
            before = [_ratio(last.ratio(bench, row.name))] if last.rows else []
            figures = _figure(row.ours, row.unit), _figure(row.other, row.unit), _ratio(row.ratio)
            table.add_row(f"[bold]{escape(f'{bench}: {row.name}')}[/]\n{escape(row.words)}", *figures, *before)
    console.print(table)
    if out is not None:
        console.print(f"kept: {out}/bench.json, {out}/bench.html", highlight=False, soft_wrap=True)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return bytes_shown(value) if unit == "bytes" else f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _ratio(value: float | None) -> str:
    """Three digits; near 1, three of what is beyond it."""
    if value is None:
        return "-"
    return f"{value:.4f}x" if abs(value - 1) < 0.05 else f"{value:.3g}x"
