"""Which runs a folder holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from thinwire.at_rest import layout
from thinwire.errors import BadInput
from thinwire.report.reading import is_run

__all__ = ["found_runs", "runs_in"]

_DEPTH = 3
_MOST = 200


def runs_in(given: Path) -> list[Path]:
    """The folder itself where it holds a run, or those that lie in it; refuses a folder without any."""
    if not given.exists():
        raise BadInput(f"{given}: there is no such folder; give the one that `thinwire train` or `party` named")
    found = found_runs(given)
    if not found:
        raise BadInput(
            f"{given} holds no run: neither it nor a folder in it has an {layout.ABOUT}, which "
            "a run writes as it begins"
        )
    return found


def found_runs(given: Path, begun: bool = True) -> list[Path]:
    """By name, at most three folders deep and 200 of them; links are not followed."""
    wanted = is_run if begun else _may_be_run
    if wanted(given):
        return [given]
    return list(islice(_folders(given, wanted), _MOST))


def _may_be_run(folder: Path) -> bool:
    """A party that waits for the others has a log, and nothing else to show."""
    return is_run(folder) or (folder / layout.LOG).is_file()


def _folders(folder: Path, wanted: Callable[[Path], bool], depth: int = _DEPTH) -> Iterator[Path]:
    try:
        inside = sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
    except OSError:  # not ours to read
        return
    for one in inside:
        if wanted(one):
            yield one
        elif depth > 1 and not one.name.startswith("."):
            yield from _folders(one, wanted, depth - 1)
