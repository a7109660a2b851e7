"""What is wrong with a job file, in one message that names the field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from thinwire.base.errors import BadInput, BadJob
from thinwire.base.format import did_you_mean
from thinwire.job.schema import JobFile

_MOST = 4  # problems in one message


@contextmanager
def at(field: str) -> Iterator[None]:
    """Whatever is refused inside is about the field, or in the table, with this dotted path."""
    try:
        yield
    except BadInput as error:
        raise error.at(field) from error


@contextmanager
def within(place: str) -> Iterator[None]:
    """Whatever is refused inside is at this place: a file, an option, an experiment."""
    try:
        yield
    except BadInput as error:
        raise error.within(place) from error


def explain_problems(error: ValidationError, document: Mapping[str, Any], under: Sequence[str | int] = ()) -> BadJob:
    """The first few problems that pydantic found in the document, or in what stands there `under` a place."""
    problems = error.errors(include_url=False, include_context=False)
    first, *others = [_explain(one, (*under, *one["loc"]), document) for one in problems]
    more = [f"and {len(problems) - _MOST} more"] if len(problems) > _MOST else []
    first.args = ("; ".join([*first.args, *map(str, others[: _MOST - 1]), *more]),)
    return first


def _explain(error: Any, place: Sequence[str | int], document: Mapping[str, Any]) -> BadJob:
    path = _path(place, document)
    if error["type"] == "missing":
        return BadJob.of(path, "is missing")
    if error["type"] == "extra_forbidden":
        known = _keys_at(place[:-1])
        hint = did_you_mean(str(place[-1]), known) or f"; the keys here are {', '.join(known)}"
        return BadJob(f"unknown key{hint}").at(path)
    if error["type"] == "value_error":  # one of our own, and whole
        return BadJob.of(path, error["msg"].removeprefix("Value error, "))
    message = error["msg"].replace("Input should be", "must be").replace("a valid ", "a ")
    message = message.replace("a integer", "an integer").replace("a dictionary", "a table")
    message = message.replace("List should have", "must have").replace("String should have", "must have")
    if "connection" in place:  # it may hold a password
        return BadJob.of(path, message)
    return BadJob.of(path, f"{message}, got {error['input']!r}")


def _path(place: Sequence[str | int], document: Mapping[str, Any]) -> str:
    """Dotted, as --set takes it; a party by its name where it has one."""
    parts = [str(part) for part in place]
    if len(place) > 1 and place[0] == "party" and isinstance(place[1], int):
        party = document["party"][place[1]]
        if isinstance(party, Mapping) and isinstance(party.get("name"), str):
            parts[1] = party["name"]
    return ".".join(parts)


def _keys_at(place: Sequence[str | int]) -> list[str]:
    model: type[BaseModel] = JobFile
    for part in place:
        field = model.model_fields.get(str(part))
        if field is not None:
            model = _model_in(field.annotation) or model
    return [*model.model_fields] if place else [*model.model_fields, "include"]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
