"""What figures were made with."""

from __future__ import annotations

import platform
from importlib.metadata import version

from thinwire import __version__


def environment() -> dict[str, str]:
    """Versions and machine, as plain words; torch is not imported for it."""
    return {
        "thinwire": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
