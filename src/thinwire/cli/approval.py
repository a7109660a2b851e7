"""Consent at the command line: a party reads who sees what, and agrees, before any of its data is read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from thinwire.base.errors import BadInput

if TYPE_CHECKING:
    from thinwire.job.disclosure import Consent


def require_approval(text: str, me: str, yes: bool, consent: Consent | None = None) -> None:
    """Prints what is asked, and goes on where `yes`, the party's own section or somebody at the terminal agrees."""
    typer.echo(text, err=True)
    if yes or (consent is not None and consent.is_approved()):
        return
    if not sys.stdin.isatty():
        section = (
            ""
            if consent is None
            else f', or write approved = "{consent.digest[:16]}" into its section of the job file'
        )
        raise BadInput(f"nobody has approved this for {me!r}: give --yes{section}")
    if not typer.confirm("Take part?", err=True):
        raise BadInput("not approved; nothing was read or sent")
