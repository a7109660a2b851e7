"""A run directory: the resolved job, events, ledger, models, checkpoints."""

from thinwire.runs.directory import RunDirectory

__all__ = ["RunDirectory"]
