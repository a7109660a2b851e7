"""How long it takes until something can be done."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

from benchmarks.results import Row, measure_in_turns

__all__ = ["rows"]

_REPEATS = 9
_HELP = "from thinwire.cli import main; import sys; sys.argv[1:] = ['--help']; main()"


def rows() -> list[Row]:
    return [
        _row("import", "`import thinwire`; its names load on first use", "import thinwire"),
        _row("--help", "`thinwire --help`", _HELP),
    ]


def _row(name: str, help: str, code: str) -> Row:
    pair = measure_in_turns(lambda: _python_ms(code), lambda: _python_ms("pass"), _REPEATS)
    return pair.row(name, help, "python -c pass", "ms")


def _python_ms(code: str) -> float:
    start = perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    return 1e3 * (perf_counter() - start)
