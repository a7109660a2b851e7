"""One line that follows work under way: on a terminal it moves; what is worth keeping stays as lines above it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from thinwire.base.format import format_bytes, format_seconds, name_place
from thinwire.base.types import Progress

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live


def open_console(stderr: bool = False) -> Console:
    """Shows text as it is: names, paths and `[section]`s of files are no markup, `:key:` no picture."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False)


class ProgressLine:
    """A context around the work; without a terminal there are only the lines that stay."""

    def __init__(self, name: str, total: int, unit: str = "", console: Console | None = None) -> None:
        self.console = console or open_console(stderr=True)
        self.name = name
        self.total = total
        self._unit = unit  # before the count, such as "round "
        self._done = 0
        self._said = ""  # on a line of its own, below
        self._tenth = ("", -1)
        self._first: tuple[float, int] | None = None  # when something was first done, and how much
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._live is None and self.console.is_terminal:
            from rich.live import Live
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            fields = ("description", "fields[place]", "fields[left]")
            columns = [TextColumn(f"{{task.{field}}}", markup=False) for field in fields]
            self._bar = Progress(SpinnerColumn(), columns[0], BarColumn(bar_width=24), *columns[1:])
            self._bar.add_task(self.name, total=self.total or None, place="", left="")
            self._live = Live(console=self.console, transient=True, get_renderable=self._lines)
            self._live.start()
        return self

    @property
    def moves(self) -> bool:
        """On a terminal, while the work goes."""
        return self._live is not None

    @property
    def follower(self) -> Progress | None:
        """For work that counts by itself; None without a terminal, where such lines would only be noise."""
        return self.count if self.moves else None

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def move(self, done: int, said: str | None = None) -> None:
        """So much is done; `said` goes below the line."""
        self._done = done
        self._said = self._said if said is None else said
        if self._live is not None:
            ending = self._describe_pace()
            task = self._bar.task_ids[0]
            self._bar.update(
                task,
                description=self.name,
                completed=done,
                total=self.total or None,
                place=self._place(),
                left=ending,
            )

    def advance(self, note: str | None = None) -> None:
        """One more is done; the note stays."""
        self.move(self._done + 1)
        if note is not None:
            self.note(note)

    def follow_rounds(self, rounds: int) -> Callable[[int], None]:
        """For a run within the work: its rounds go below the line."""
        return lambda done: self.move(self._done, f"round {done}/{rounds}")

    def stage(self, name: str) -> None:
        """What is done now; where there is no terminal it is a line."""
        self.name = name
        self.move(self._done)
        if not self.console.is_terminal:
            self.note(name)

    def count(self, done: int, total: int, stage: str = "rows") -> None:
        """So many of so many, of which nobody knew before; where there is no terminal, a line for each tenth."""
        if done < self._done:  # counts anew, of something else
            self._first = None
        self.name, self.total = stage, total
        self.move(done)
        tenth = 10 * done // total if total else 10
        if (stage, tenth) != self._tenth:
            self._tenth = (stage, tenth)
            if not self.console.is_terminal:
                self.note(f"  {stage}: {done} of {total}")

    def note(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _place(self) -> str:
        return f"{self._unit}{self._done}/{self.total}"

    def _describe_pace(self) -> str:
        """So many a second and what that leaves, once something was done."""
        seconds = self._measure_pace()
        if seconds is None:
            return ""
        rate = f"{1 / seconds:.3g}/s, " if seconds > 0 else ""
        return f"{rate}left {format_seconds(seconds * (self.total - self._done))}"

    def _measure_pace(self) -> float | None:
        """Seconds for one more, by all since the first."""
        now = perf_counter()
        if self._first is None:
            self._first = now, self._done
            return None
        began, first = self._first
        done = self._done - first
        return (now - began) / done if done > 0 else None

    def _lines(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        said = [Text(f"  {self._said}", overflow="ellipsis", no_wrap=True)] if self._said else []
        return Group(self._bar, *said)


class RunProgress(ProgressLine):
    """Of one run: a callback for each evaluation, which also hears of the beginning and the end."""

    def __init__(self, name: str, rounds: int, console: Console | None = None) -> None:
        super().__init__(name, rounds, "round ", console)
        self._said = "starting"
        self._backed_off = self._refined = 0  # how often that was said
        self.begun = False

    def begin(self, begun: object) -> None:
        self.__enter__()

    def end(self, result: object) -> None:
        self.__exit__()

    def __call__(self, event: dict[str, Any]) -> None:
        self.begun = True
        self.move(event["round"], f"epoch {event['epoch']:.3g}, {format_metrics(event)}, {_format_traffic(event)}")
        self._note_pace(event)
        self._show()

    def _show(self) -> None:
        if self._live is None:
            self.note(self._line())
        else:
            self._live.refresh()

    def _line(self) -> str:
        pace = self._describe_pace()
        return f"{self.name}: {self._place()}, {self._said}{f', {pace}' if pace else ''}"

    def _note_pace(self, event: dict[str, Any]) -> None:
        parties = [mine for mine in event["diagnostics"].values() if isinstance(mine, dict)]
        refined = [one for mine in parties for one in mine.get("refined_after", [])]
        for one in refined[self._refined :]:
            self.note(f"{self.name}: the training loss has plateaued, so messages are finer from round {one} on")
        self._refined = max(self._refined, len(refined))
        found = [one for mine in parties for one in mine.get("backed_off", [])]
        for one in found[self._backed_off :]:
            self.note(
                f"{self.name}: the training loss rose from {one['lowest_loss']:.3g} to {one['loss']:.3g}, so from "
                f"round {one['round']} on {one['to']} cached steps per round, not {one['from']}"
            )
        self._backed_off = max(self._backed_off, len(found))


class NotebookProgress(RunProgress):
    """The same line as one output of a notebook's cell, which changes as the run goes."""

    def __init__(self, name: str, rounds: int) -> None:
        from rich.console import Console

        super().__init__(name, rounds, Console(stderr=True, force_jupyter=False))
        self._output: Any = None

    def __enter__(self) -> Self:
        self._show()
        return self

    def _show(self) -> None:
        line = self._line()
        bar = f'<progress value="{self._done}" max="{self.total}"></progress> <code>{escape(line)}</code>'
        shown = {"text/plain": line, "text/html": bar}
        if self._output is None:
            display = import_module("IPython.display")
            self._output = display.display(shown, raw=True, display_id=True)
        else:
            self._output.update(shown, raw=True)


def is_notebook() -> bool:
    """Does this process answer a notebook? Its stderr is no terminal, and yet somebody looks."""
    find_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return find_shell is not None and hasattr(find_shell(), "kernel")


def format_metrics(event: dict[str, Any]) -> str:
    """The training loss, then loss and scores on validation rows; without these on test or training rows."""
    said = [f"training loss {event['train']['loss']:.4g}"] if "loss" in event["train"] else []
    rows = next((rows for rows in ("validation", "test") if event.get(rows)), "train")
    scores = {name: value for name, value in event[rows].items() if (rows, name) != ("train", "loss")}
    said += [f"{name_place(f'{rows}.{name}')} {value:.4g}" for name, value in scores.items()]
    return ", ".join(said)


def _format_traffic(event: dict[str, Any]) -> str:
    said = f"up {format_bytes(event['bytes']['up'])}, down {format_bytes(event['bytes']['down'])}"
    return said if event["link_seconds"] is None else f"{said}, link {format_seconds(event['link_seconds'])}"
