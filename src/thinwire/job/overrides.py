"""`--set key=value`: the key is a dotted path, the value TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from typing import Any

from thinwire.errors import BadInput
from thinwire.job.messages import did_you_mean

__all__ = ["override"]

_WORD = re.compile(r"[A-Za-z_.~/][\w./:@~+-]*")


def override(document: dict[str, Any], settings: Iterable[str]) -> None:
    """Changes the document in place. `party.bank.model.width=8` finds the party by name, or by its number from 0."""
    for setting in settings:
        path, equals, value = setting.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise BadInput(f"--set {setting}: write key=value, as in --set recipe.compressor.fraction=0.05")
        _set(document, keys, _value(setting, value.strip()), setting)


def _set(document: dict[str, Any], keys: list[str], value: Any, setting: str) -> None:
    table: Any = document
    for depth, key in enumerate(keys[:-1]):
        table = _party(table, key, setting) if isinstance(table, list) else table.setdefault(key, {})
        if not isinstance(table, (dict, list)):
            raise BadInput(f"--set {setting}: {'.'.join(keys[: depth + 1])} is {table!r}, not a table")
    if isinstance(table, list):
        raise BadInput(f"--set {setting}: say which key of the party: party.NAME.KEY=value")
    table[keys[-1]] = value


def _party(parties: list[Any], key: str, setting: str) -> Any:
    named = [party for party in parties if isinstance(party, dict) and party.get("name") == key]
    if named:
        return named[0]
    if key.isdecimal() and int(key) < len(parties):
        return parties[int(key)]
    names = [str(party.get("name")) for party in parties if isinstance(party, dict)]
    raise BadInput(
        f"--set {setting}: no party is called {key!r}; there are {', '.join(names)}{did_you_mean(key, names)}"
    )


def _value(setting: str, text: str) -> Any:
    """TOML; a single word needs no quotes, since shells eat them."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if _WORD.fullmatch(text):
            return text
        raise BadInput(f"--set {setting}: the value is not TOML ({error}); write text as '\"text\"'") from None
    if len(parsed) != 1:
        raise BadInput(f"--set {setting}: one value, on one line")
    return parsed["value"]
