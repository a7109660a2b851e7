"""Is there a file at all?"""

from __future__ import annotations

import os
from pathlib import Path

from thinwire.errors import BadFile

__all__ = ["require_file"]


def require_file(file: Path) -> None:
    """Refuses what cannot be opened or is empty, and says why."""
    if file.is_dir():
        raise BadFile(f"{file} is a folder, not a file")
    if not file.exists():
        raise BadFile(f"{file} does not exist; paths in a job file start from the job file's folder")
    if not os.access(file, os.R_OK):
        raise BadFile(f"{file} may not be read by this user")
    if file.stat().st_size == 0:
        raise BadFile(f"{file} is empty")
