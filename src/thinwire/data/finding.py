"""Where a data set's files are; and where to get them, when they are not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thinwire.data.downloading import Download, fetch
from thinwire.errors import BadInput

__all__ = ["VARIABLE", "Source", "data_folder", "find", "find_or_fetch", "missing"]

VARIABLE = "THINWIRE_DATA"


@dataclass(frozen=True)
class Source:
    """Who publishes a data set, and why it is not downloaded where it is not."""

    title: str
    page: str  # the publisher's
    files: tuple[str, ...]  # as published, each where it is looked for first
    terms: str = ""  # "" where anyone may download it


def data_folder(folder: Path | None, source: Source) -> Path:
    """The folder that was named, else the one that THINWIRE_DATA names; without one, what has to be in it is said."""
    if folder is None and os.environ.get(VARIABLE):
        folder = Path(os.environ[VARIABLE])
    if folder is None:
        raise BadInput(
            f"no data folder: say --data DIR, folder=..., or set {VARIABLE} to one that holds {source.title}: "
            f"{', '.join(source.files)}, from {source.page}; {_why_not_downloaded(source)}"
        )
    return Path(folder)


def find(folder: Path, places: Sequence[str]) -> Path | None:
    """The first of these files or folders that is there."""
    return next((folder / place for place in places if (folder / place).exists()), None)


def find_or_fetch(source: Source, folder: Path, places: Sequence[str], download: Download | None) -> Path:
    """The first of these places that is there; else the first one, downloaded if a download is given."""
    found = find(folder, places)
    if found is not None:
        return found
    if download is None:
        raise missing(source, folder, places)
    try:
        fetch(download, folder / places[0])
    except BadInput as error:
        raise missing(source, folder, places, f"downloading it was tried and failed: {error}") from None
    return folder / places[0]


def missing(source: Source, folder: Path, places: Sequence[str], why: str = "") -> BadInput:
    """One message: the file, where to put it, whose it is, and why it was not downloaded."""
    wanted = folder / places[0]
    others = f" (or {', '.join(places[1:])})" if places[1:] else ""
    return BadInput(
        f"{source.title}: there is no {wanted.name} in {wanted.parent}{others}. Get it from {source.page} and put it "
        f"there; {why or _why_not_downloaded(source)}"
    )


def _why_not_downloaded(source: Source) -> str:
    if source.terms:
        return f"thinwire does not download it: {source.terms}"
    return "it is downloaded only when asked for (download=True)"
