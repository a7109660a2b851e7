"""The commands as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

THINWIRE = Path(sys.executable).with_name("thinwire")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [THINWIRE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env=ENVIRONMENT,
    )
