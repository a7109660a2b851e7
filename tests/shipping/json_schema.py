"""As much of JSON Schema 2020-12 as our own schema uses; an unknown keyword is an error here, never ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any

__all__ = ["complaints"]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_SILENT = {"title", "description", "default", "$defs", "$schema", "$id", "properties", "items"}


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _number(value: Any, otherwise: float) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise


def _long(value: Any, otherwise: int) -> int:
    return len(value) if isinstance(value, (str, list)) else otherwise


_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda said, value: isinstance(value, _TYPES[said]) and isinstance(value, bool) == (said == "boolean"),
    "enum": lambda said, value: value in said,
    "const": lambda said, value: value == said,
    "required": lambda said, value: not isinstance(value, dict) or set(said) <= set(value),
    "minimum": lambda said, value: _number(value, said) >= said,
    "exclusiveMinimum": lambda said, value: _number(value, said + 1) > said,
    "maximum": lambda said, value: _number(value, said) <= said,
    "exclusiveMaximum": lambda said, value: _number(value, said - 1) < said,
    "minLength": lambda said, value: _long(value, said) >= said,
    "minItems": lambda said, value: _long(value, said) >= said,
    "maxLength": lambda said, value: _long(value, said) <= said,
    "maxItems": lambda said, value: _long(value, said) <= said,
    "format": lambda said, value: said != "date" or _is_date(str(value)),
}


def complaints(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str = "$") -> Iterator[str]:
    """Everything that is wrong with a value, each with its place."""
    for word, said in schema.items():
        if word == "$ref":
            yield from complaints(value, root["$defs"][said.removeprefix("#/$defs/")], root, at)
        elif word == "anyOf":
            tries = [list(complaints(value, one, root, at)) for one in said]
            if all(tries):
                yield min(tries, key=len)[0]
        elif word == "additionalProperties":
            known = schema.get("properties", {}) if isinstance(value, dict) and said is False else value
            yield from (f"{at}: {key} is unknown" for key in _keys(value) if key not in known)
        elif word not in _SILENT and not _HOLDS[word](said, value):
            yield f"{at}: not {word} {said}"
    if isinstance(value, dict):
        for key, part in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(inner, Mapping):
                yield from complaints(part, inner, root, f"{at}.{key}")
    if isinstance(value, list) and "items" in schema:
        for place, part in enumerate(value):
            yield from complaints(part, schema["items"], root, f"{at}[{place}]")


def _is_date(text: str) -> bool:
    return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text)) and date.fromisoformat(text) is not None
