"""What a job file may hold, as JSON schema: for editors, and for checks that have no Python."""

from __future__ import annotations

from typing import Any

from thinwire.job.schema import JobFile, RosterFile

__all__ = ["SCHEMA_VERSION", "job_schema"]

SCHEMA_VERSION = 1  # a new one where a job file that was right would be refused

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """A whole job, or one party's file that includes the rest. Arguments of named things are not in it."""
    whole, part = (kind.model_json_schema(ref_template="#/$defs/{model}") for kind in (JobFile, RosterFile))
    definitions = {**part.pop("$defs"), **whole.pop("$defs")}
    part["properties"]["include"] = {
        "type": "string",
        "minLength": 1,
        "description": "The file that all parties share.",
    }
    part["required"] = ["include"]
    for document in (whole, part):
        document["properties"]["recipe"] = _named("method", _method_names())
        document["properties"]["optimizer"] |= _named("name", _optimizer_names())
    return {
        "$schema": _DRAFT,
        "$id": f"job-{SCHEMA_VERSION}.json",
        "title": "A job file of thinwire",
        "anyOf": [whole, part],
        "$defs": definitions,
    }


def _named(word: str, names: list[str]) -> dict[str, Any]:
    """A table that names a thing, in any case, and holds its arguments."""
    spelled = {"anyOf": [{"enum": names}, {"type": "string"}], "description": f"One of {', '.join(names)}."}
    return {"type": "object", "properties": {word: spelled}, "required": [word]}


def _method_names() -> list[str]:
    from thinwire.methods import METHODS

    return sorted(METHODS)


def _optimizer_names() -> list[str]:
    from thinwire.models import OPTIMIZERS

    return sorted(OPTIMIZERS)
