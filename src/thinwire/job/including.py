"""Split job files: what all parties share stands in one file, a party's own matters in another that includes it.

The two become one document. A party's own file has the last word on its own section, on [network], [retention] and
[encryption]; what the parties share may stand in both files, but only with one meaning. Code is never named, and
nothing ever approved, by the included file: it may come from another party.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from thinwire.errors import BadInput
from thinwire.job.messages import did_you_mean
from thinwire.types import PartyName

__all__ = ["merged", "require_harmless"]

Document = dict[str, Any]
_OWN = ("network", "retention", "encryption")  # sections


def merged(document: Mapping[str, Any], core: Mapping[str, Any], core_name: str, me: PartyName | None) -> Document:
    """Both as one. `me` says whose section the including file may change; None, for the simulator: any."""
    found = dict(core)
    merging = _Merging(core_name, me)
    for key, here in document.items():
        there = core.get(key)
        if key == "include":
            continue
        if there is None:
            found[key] = here
        elif key == "party" and _are_sections(here) and _are_sections(there):
            found[key] = merging.parties(here, there)
        elif key == "label_party" and isinstance(here, Mapping) and isinstance(there, Mapping):
            found[key] = merging.section(key, here, there)
        elif key in _OWN and isinstance(here, Mapping) and isinstance(there, Mapping):
            found[key] = {**there, **here}
        else:
            found[key] = merging.same(key, here, there)
    return deepcopy(found)  # settings change it


def require_harmless(core: Mapping[str, Any]) -> None:
    """No code and no approval in a file that others may have written."""
    sections = core.get("party") if _are_sections(core.get("party")) else []
    named = [(f"party.{section.get('name')}", section) for section in sections or []]
    named += [("label_party", core.get("label_party"))]
    for path, section in named:
        if not isinstance(section, Mapping):
            continue
        if "approved" in section:
            raise BadInput(f"{path}.approved: a party approves in its own file, not in one that it includes")
        for key in ("model", "top"):
            table = section.get(key)
            if isinstance(table, Mapping) and "module" in table:
                raise BadInput(
                    f"{path}.{key}.module: an included file names no code, or one party could run it at another; "
                    "name it in the party's own file"
                )


class _Merging:
    def __init__(self, core_name: str, me: PartyName | None) -> None:
        self._core_name = core_name
        self._me = me

    def parties(self, here: list[Any], there: list[Any]) -> list[Any]:
        """The included file's order."""
        found = dict(zip(self._names(there), there, strict=True))
        names = self._names(here)
        for name, section in zip(names, here, strict=True):
            if name not in found:
                hint = did_you_mean(name, found)
                raise BadInput(
                    f"party.{name}: {self._core_name} has no party of this name, it has {', '.join(found)}{hint}"
                )
            found[name] = self.section(f"party.{name}", section, found[name])
        ordered = [name for name in found if name in names]
        if ordered != names:
            raise BadInput(
                f"party: the order is {', '.join(names)} here and {', '.join(ordered)} in {self._core_name}; "
                "all parties share it"
            )
        return list(found.values())

    def _names(self, sections: list[Any]) -> list[str]:
        names = [section.get("name") for section in sections]
        if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise BadInput(
                f"party: every section needs a name of its own, here and in {self._core_name}, got "
                f"{', '.join(map(repr, names))}"
            )
        return names

    def section(self, path: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> Document:
        """Key by key."""
        if "name" in here and "name" in there:
            self.same(f"{path}.name", here["name"], there["name"])
        name = here.get("name", there.get("name"))
        if self._me is None or name == self._me:
            return {**there, **here}
        return dict(self.same(path, here, there))

    def same(self, path: str, here: Any, there: Any) -> Any:
        """The union of two tables; what stands in both must be equal."""
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found = {key: self.same(f"{path}.{key}", here[key], there[key]) for key in here if key in there}
            return {**there, **here, **found}
        if here != there:
            raise BadInput(
                f"{path} is {here!r} here and {there!r} in {self._core_name}; it is not this file's to change, "
                "so leave it out here"
            )
        return here


def _are_sections(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(section, Mapping) for section in value)
