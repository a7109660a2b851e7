"""`thinwire compressors`: what there is, with parameters, one line each; or measured."""

from __future__ import annotations

from typing import Annotated

import typer

from thinwire.cli.listing import print_listing
from thinwire.cli.shown import AsJson

__all__ = ["compressors"]


def compressors(
    measured: Annotated[
        bool, typer.Option("--measure", help="Compress real embeddings in every way, and say how well it went.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="With --measure: of the network and the compressors.")] = 0,
    as_json: AsJson = False,
) -> None:
    """List the compressors with their parameters."""
    if measured:
        from thinwire.cli.measure import measure

        measure(as_json, seed)
        return
    from thinwire.compress import COMPRESSORS

    print_listing("compressor", COMPRESSORS, as_json)
