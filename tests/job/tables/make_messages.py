"""Writes messages.txt anew: `python tests/job/tables/make_messages.py`. Read what has changed before you keep it."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from job.tables.bad_data import CASES, message

GOLDEN = Path(__file__).with_name("messages.txt")


def messages() -> str:
    """Every case and what is said about it."""
    parts = []
    for name, change in CASES.items():
        with TemporaryDirectory() as folder:
            parts.append(f"{name}\n  {message(Path(folder).resolve(), change)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    GOLDEN.write_text(messages())
