"""Commands that have left the package: each says in a sentence where it went, and exits with 2."""

from __future__ import annotations

import typer

from thinwire.base.errors import BadInput

ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


def bench(context: typer.Context) -> None:
    """Moved: run `python benchmarks/suite.py` in a checkout of thinwire."""
    raise BadInput(_tell_where(context, "suite.py"))


def load_test(context: typer.Context) -> None:
    """Moved: run `python benchmarks/load_test.py URL` in a checkout of thinwire."""
    raise BadInput(_tell_where(context, "load_test.py URL"))


def _tell_where(context: typer.Context, script: str) -> str:
    return f"`thinwire {context.info_name}` has moved: run `python benchmarks/{script}` in a checkout of thinwire"
