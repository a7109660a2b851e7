"""How commands print and ask: JSON or lines, tables, consent before something leaves, and figures in words."""

from __future__ import annotations

import inspect
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.base.format import name_score
from thinwire.report.progress import open_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from thinwire.job.disclosure import Consent


INTERRUPTED = 130


def print_result(facts: Any, as_json: bool, lines: Iterable[str] | Callable[[], None]) -> None:
    """The facts as one JSON object, or for people: lines, or a function that prints."""
    if as_json:
        typer.echo(json.dumps(facts, default=str))
    elif callable(lines):
        lines()
    else:
        for line in lines:
            typer.echo(line)


def say(sentence: str) -> None:
    """On stderr, where a result on stdout is not disturbed."""
    typer.echo(f"thinwire: {sentence}", err=True)


def stop_with(sentence: str) -> typer.Exit:
    """To be raised where Ctrl-C ended a command."""
    say(sentence)
    return typer.Exit(INTERRUPTED)


def stop_on_signals(ask: Callable[[], None]) -> None:
    """SIGTERM and Ctrl-C ask to stop; a second Ctrl-C ends at once."""
    asked: list[int] = []

    def stop(number: int, _: Any) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        ask()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def build_table(
    title: str | None, names: Sequence[str], figures: Sequence[str] = (), wrapped: Sequence[str] = ()
) -> Table:
    """Columns of names, some of which may be wrapped, then columns of figures, which stand at their right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD)
    for name in names:
        table.add_column(name, no_wrap=name not in wrapped)
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    return table


def print_plain(*items: Any) -> None:
    """Tables as wide as the terminal at most; text without colours. Nothing is cut."""
    from rich.table import Table

    console = open_console()
    for item in items:
        if isinstance(item, str):
            console.print(item, highlight=False, soft_wrap=True)
        else:
            if isinstance(item, Table):
                _fit_table(item, console)
            console.print(item)


def _fit_table(table: Table, console: Console) -> None:
    """Where a table is too wide: less room between columns, then cells on several lines instead of an ellipsis."""
    unlimited = console.options.update(max_width=10_000)

    def is_too_wide() -> bool:
        return console.measure(table, options=unlimited).minimum > console.width

    if is_too_wide():
        table.collapse_padding, table.pad_edge = True, False
    if is_too_wide():
        for column in table.columns:
            column.no_wrap, column.overflow = False, "fold"


def wrap_lines(text: str, indent: int) -> list[str]:
    """Beside `indent` columns of a terminal, as wide as it is; elsewhere whole, to be searched."""
    if not sys.stdout.isatty():
        return [text]
    width = shutil.get_terminal_size().columns - indent
    return wrap(text, max(width, 40), break_long_words=False, break_on_hyphens=False) or [""]


def open_browser(address: str) -> None:
    """Where there is a browser; else its address is all that can be given."""
    import webbrowser

    if not webbrowser.open(address):
        say(f"no browser found; open {address} yourself")


def print_listing(kind: str, things: Iterable[Callable[..., Any]], as_json: bool) -> None:
    """Things with their parameters: a table, or JSON under the plural of `kind`."""
    found: list[dict[str, Any]] = [
        {
            "name": thing.__name__,
            "parameters": {
                name: None if parameter.default is parameter.empty else repr(parameter.default)
                for name, parameter in inspect.signature(thing).parameters.items()
            },
            "summary": (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " "),
        }
        for thing in things
    ]
    print_result({f"{kind}s": found}, as_json, lambda: _print_entries(kind, found))


def _print_entries(kind: str, found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(kind, "what it does")
    for entry in found:
        arguments = ", ".join(
            name if default is None else f"{name}={default}" for name, default in entry["parameters"].items()
        )
        table.add_row(f"{entry['name']}({arguments})", entry["summary"])
    print_plain(table)


def format_preparation(prepared: dict[str, list[dict[str, Any]]], label: str | None) -> list[str]:
    """What becomes of each column of a table, a line each."""
    lines = []
    for party, columns in prepared.items():
        kept = [column for column in columns if column["outputs"]]
        numbers = sum(column["outputs"] for column in columns)
        lines.append(f"{party}: {len(kept)} of {len(columns)} columns become {numbers} features")
        longest = min(30, max(len(column["column"]) for column in columns))
        lines += [f"  {column['column']:{longest}}  {column['type']:8}  {column['says']}" for column in columns]
    return lines if label is None else [*lines, label]


def format_privacy(privacy: list[dict[str, Any]]) -> list[str]:
    """What each feature party's worst-off row has lost, in a line each; one for all where nothing is proven."""
    lines = []
    for ledger in privacy:
        figures = {row["observer"]: row for row in ledger["observers"]}
        if figures["label_party"]["releases_epsilon"] == "infinity":
            continue
        said = [
            f"{format_epsilon(row['releases_epsilon'])} for the releases, "
            f"{format_epsilon(row['end_to_end_epsilon'])} end to end, against {who}"
            for who, row in (("the label party", figures["label_party"]), ("all others", figures["all_others"]))
        ]
        lines.append(f"{ledger['party']}: epsilon {'; '.join(said)} (delta {ledger['delta']:g})")
    if privacy and not lines:
        return ["privacy: embeddings are sent without noise, so there is no guarantee (epsilon is infinite)"]
    return lines


def format_quality(scores: dict[str, float]) -> str:
    """The main figures of model quality, on one line."""
    return ", ".join(f"{name_score(name)} {value:.4g}" for name, value in scores.items())


def format_baselines(summary: dict[str, Any]) -> list[str]:
    """The model beside its baselines, in sentences; what each party's data is worth, where that was measured."""
    from thinwire.report.baseline_figures import describe_baselines, describe_importance
    from thinwire.report.record import BaselineScore, Importance
    from thinwire.training.result import better

    baselines = [BaselineScore.model_validate(one) for one in summary.get("baselines", ())]
    said = []
    if baselines:
        metric = baselines[0].metric
        said = describe_baselines(baselines, summary["test"].get(metric), better(metric))
    if summary.get("importance"):
        said += describe_importance(Importance.model_validate(summary["importance"]))
    return said


def format_epsilon(epsilon: float | str) -> str:
    """Three digits, and never fewer than before the point."""
    if isinstance(epsilon, str):
        return "infinite"
    return f"{epsilon:.3g}" if epsilon < 1000 else f"{epsilon:.0f}"


def require_approval(text: str, me: str, yes: bool, consent: Consent | None = None) -> None:
    """Prints what is asked, and goes on where `yes`, the party's own section or somebody at the terminal agrees."""
    typer.echo(text, err=True)
    if yes or (consent is not None and consent.is_approved()):
        return
    if not sys.stdin.isatty():
        section = (
            "" if consent is None else f', or set approved = "{consent.digest[:16]}" in its section of the job file'
        )
        raise BadInput(f"nobody has approved this for {me!r}; use --yes{section}")
    if not typer.confirm("Take part?", err=True):
        raise BadInput("not approved; nothing was read or sent")
