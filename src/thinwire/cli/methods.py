"""`thinwire methods`: what there is, with parameters, one line each."""

from __future__ import annotations

from thinwire.cli.options import AsJson
from thinwire.cli.output import print_listing


def methods(as_json: AsJson = False) -> None:
    """List the methods with their parameters."""
    from thinwire.engine.methods import METHODS

    print_listing("method", METHODS.values(), as_json)
