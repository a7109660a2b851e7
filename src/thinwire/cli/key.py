"""`thinwire key`: a new key for encrypted run folders."""

from __future__ import annotations

import json
from pathlib import Path

from thinwire.cli.output import print_result


def key(file: Path, as_json: bool = False) -> None:
    """Create a key that encrypts run folders; set encryption.key in the job file to its path."""
    from thinwire.storage.encryption_key import new_key

    new_key(file)
    lines = [
        f"created the key {file}. Add it to your job file:",
        f"  [encryption]\n  key = {json.dumps(str(file))}",
        "Keep a backup of the key separate from the runs: without it nobody can read them, not even you.",
    ]
    print_result({"key": str(file)}, as_json, lines)
