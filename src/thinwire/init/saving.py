"""A job file on disk that is whole, or none."""

from __future__ import annotations

import os
from pathlib import Path

from thinwire.errors import BadInput

__all__ = ["require_free", "saved"]


def require_free(path: Path, force: bool) -> None:
    """Nothing is overwritten unasked."""
    if path.exists() and not force:
        raise BadInput(f"{path} is there already; give another name, or --force to write it anew")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no folder")


def saved(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
