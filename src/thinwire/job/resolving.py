"""A job file as it was meant: defaults said, paths absolute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thinwire.job.calls import filled, filled_recipe
from thinwire.job.schema import JobFile, RosterFile
from thinwire.models import OPTIMIZERS

__all__ = ["resolved_document"]

_SOURCES = ("features", "test_features", "labels", "test_labels", "ids", "test_ids")
_FILES = ("certificate", "key", "authority", "revoked", "alignment", "test_alignment")


def resolved_document(file: JobFile | RosterFile, folder: Path) -> dict[str, Any]:
    """As plain data that runs from anywhere; recipe and optimiser have been read before."""
    document = file.model_dump(exclude_none=True)
    document["recipe"] = filled_recipe(document["recipe"])
    document["optimizer"] = filled(document["optimizer"], "name", OPTIMIZERS)
    if "scratch" in document["job"]:
        document["job"]["scratch"] = str(folder / document["job"]["scratch"])
    if "encryption" in document:
        document["encryption"]["key"] = str(folder / document["encryption"]["key"])
    if "network" in document:
        document["network"]["certs"] = str(folder / document["network"]["certs"])
    for party in [*document["party"], document["label_party"]]:
        for field in _SOURCES:
            if field in party:
                party[field]["file"] = str(folder / party[field]["file"])
        for field in _FILES:
            if field in party:
                party[field] = str(folder / party[field])
    return document
