"""Plain data as TOML text; the standard library only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from thinwire.base.errors import BadInput

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(document: Mapping[str, Any]) -> str:
    """Tables at the top level become sections, lists of tables `[[sections]]`; deeper ones stay inline."""
    plain = [f"{_key(key)} = {inline(value)}" for key, value in document.items() if not _is_section(value)]
    parts = ["\n".join(plain)] if plain else []
    for key, value in document.items():
        if isinstance(value, Mapping):
            parts.append(_section(f"[{_key(key)}]", value))
        elif _is_section(value):
            parts += [_section(f"[[{_key(key)}]]", table) for table in value]
    return "\n\n".join(parts) + "\n"


def inline(value: Any) -> str:
    """One value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)  # inf and nan are spelled alike
        case date():
            return value.isoformat()
        case str():
            # JSON escapes are TOML escapes, save that TOML wants the delete character escaped too.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            inner = ", ".join(f"{_key(key)} = {inline(part)}" for key, part in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return f"[{', '.join(inline(part) for part in value)}]"
    raise BadInput(f"{value!r} cannot be written as TOML")


def _section(head: str, table: Mapping[str, Any]) -> str:
    return "\n".join([head, *(f"{_key(key)} = {inline(value)}" for key, value in table.items())])


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(part, Mapping) for part in value)
    )


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else inline(key)
