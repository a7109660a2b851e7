"""The `[retention]` rules of a run, as its job says them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from thinwire.errors import BadInput
from thinwire.job.messages import said
from thinwire.job.schema import RetentionSection
from thinwire.runs.retention import Retention

__all__ = ["retention_of"]


def retention_of(run: Path) -> Retention:
    """Of the run in this folder; no rules where its job has none, or where there is no job file."""
    path = run / "job.toml"
    if not path.exists():
        return Retention()
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    try:
        section = RetentionSection.model_validate(document.get("retention", {}))
    except ValidationError as error:
        raise BadInput(f"{path}: {said(error, document, ('retention',))}") from None
    return Retention(**section.model_dump())
