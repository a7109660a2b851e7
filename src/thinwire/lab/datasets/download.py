"""Where a data set's files are; and how to get them, whole and with the published checksum, or not at all."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from thinwire.base.errors import BadInput
from thinwire.storage.atomic_file import stage_file

_PIECE = 1 << 20
_SILENCE_SECONDS = 30


@dataclass(frozen=True)
class Download:
    """Where a file is published, how long it is, and its MD5, which is what these publishers publish."""

    url: str
    size: int
    md5: str


def fetch(download: Download, file: Path) -> None:
    """Writes `file`, or raises and leaves nothing behind."""
    if not download.url.startswith(("https://", "http://")):
        raise BadInput(f"{download.url}: not an http address")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with stage_file(file) as part:
            with part.open("wb") as opened:
                digest = _copied(download, opened.fileno())
            if digest != download.md5:
                raise BadInput(f"{download.url}: what came has MD5 {digest}, the publisher says {download.md5}")
    except urllib.error.HTTPError as error:
        error.close()
        raise BadInput(f"{download.url}: {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise BadInput(f"{download.url}: {getattr(error, 'reason', error)}") from None


def _copied(download: Download, out: int) -> str:
    """The MD5 of what came; never more than announced reaches the disk."""
    digest = hashlib.md5(usedforsecurity=False)
    size = 0
    with urllib.request.urlopen(download.url, timeout=_SILENCE_SECONDS) as answer:  # noqa: S310  http only: see fetch
        while piece := answer.read(_PIECE):
            size += len(piece)
            if size > download.size:
                raise BadInput(f"{download.url}: sends more than the {download.size} bytes of this file")
            os.write(out, piece)
            digest.update(piece)
    if size != download.size:
        raise BadInput(f"{download.url}: ended after {size} of {download.size} bytes")
    return digest.hexdigest()


VARIABLE = "THINWIRE_DATA"


@dataclass(frozen=True)
class DataSource:
    """Who publishes a data set, and why it is not downloaded where it is not."""

    title: str
    page: str  # the publisher's
    files: tuple[str, ...]  # as published, each where it is looked for first
    terms: str = ""  # "" where anyone may download it


def find_data_folder(folder: Path | None, source: DataSource) -> Path:
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


def find_or_fetch(source: DataSource, folder: Path, places: Sequence[str], download: Download | None) -> Path:
    """The first of these places that is there; else the first one, downloaded if a download is given."""
    found = find(folder, places)
    if found is not None:
        return found
    if download is None:
        raise missing_file(source, folder, places)
    try:
        fetch(download, folder / places[0])
    except BadInput as error:
        raise missing_file(source, folder, places, f"downloading it was tried and failed: {error}") from None
    return folder / places[0]


def missing_file(source: DataSource, folder: Path, places: Sequence[str], why: str = "") -> BadInput:
    """One message: the file, where to put it, whose it is, and why it was not downloaded."""
    wanted = folder / places[0]
    others = f" (or {', '.join(places[1:])})" if places[1:] else ""
    return BadInput(
        f"{source.title}: there is no {wanted.name} in {wanted.parent}{others}. Get it from {source.page} and put it "
        f"there; {why or _why_not_downloaded(source)}"
    )


def _why_not_downloaded(source: DataSource) -> str:
    if source.terms:
        return f"thinwire does not download it: {source.terms}"
    return "it is downloaded only when asked for (download=True)"
