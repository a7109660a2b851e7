"""A run while it runs: a live line on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from thinwire.cli.shown import bytes_shown, metrics_shown, seconds_shown

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import Progress

__all__ = ["RunProgress"]


class RunProgress:
    """A context around one run; call it with each evaluation."""

    def __init__(self, console: Console, name: str, rounds: int) -> None:
        self._console = console
        self._name = name
        self._rounds = rounds
        self._first: tuple[float, int] | None = None  # when, and at which round, we first heard of it
        self._live: Live | None = None
        self._backed_off = 0  # how often that was said
        self.begun = False

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            from rich.live import Live

            self._bar = self._new_bar()
            self._said = "starting"
            self._live = Live(console=self._console, transient=True, get_renderable=self._lines)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        self.begun = True
        left = self._seconds_left(event["round"])
        place = f"round {event['round']}/{self._rounds}"
        said = f"{metrics_shown(event)}, {_traffic_shown(event)}"
        self._say_backed_off(event)
        if self._live is None:
            ending = "" if left is None else f", left {seconds_shown(left)}"
            line = f"{self._name}: {place}, {said}{ending}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._said = said
            ending = "" if left is None else f"left {seconds_shown(left)}"
            self._bar.update(self._bar.task_ids[0], completed=event["round"], place=place, left=ending)
            self._live.refresh()

    def _say_backed_off(self, event: dict[str, Any]) -> None:
        found = [one for mine in event["diagnostics"].values() if isinstance(mine, dict) for one in _halved(mine)]
        for one in found[self._backed_off :]:
            text = (
                f"{self._name}: the training loss rose from {one['lowest_loss']:.3g} to {one['loss']:.3g}, so from "
                f"round {one['round']} on {one['to']} cached steps a round, not {one['from']}"
            )
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._backed_off = max(self._backed_off, len(found))

    def round(self, done: int) -> None:
        """Between evaluations only the bar moves."""
        if self._live is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, place=f"round {done}/{self._rounds}")

    def _new_bar(self) -> Progress:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        columns = [TextColumn(f"{{task.{field}}}") for field in ("description", "fields[place]", "fields[left]")]
        bar = Progress(SpinnerColumn(), columns[0], BarColumn(bar_width=24), *columns[1:])
        bar.add_task(self._name, total=self._rounds, place="", left="")
        return bar

    def _lines(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        return Group(self._bar, Text(f"  {self._said}", overflow="ellipsis", no_wrap=True))

    def _seconds_left(self, round: int) -> float | None:
        now = perf_counter()
        if self._first is None:
            self._first = now, round
            return None
        began, first = self._first
        return (now - began) / (round - first) * (self._rounds - round) if round > first else None


def _halved(diagnostics: dict[str, Any]) -> list[dict[str, Any]]:
    halved: list[dict[str, Any]] = diagnostics.get("backed_off", [])
    return halved


def _traffic_shown(event: dict[str, Any]) -> str:
    said = f"up {bytes_shown(event['bytes']['up'])}, down {bytes_shown(event['bytes']['down'])}"
    return said if event["link_seconds"] is None else f"{said}, link {seconds_shown(event['link_seconds'])}"
