"""One file from its publisher: whole and with the published checksum, or not at all."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from thinwire.at_rest.atomic_file import stage_file
from thinwire.errors import BadInput

__all__ = ["Download", "fetch"]

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
