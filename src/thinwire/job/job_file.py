"""A job file: read with what it includes, changed by `--set key=value`, checked against the schema; no data is read.

What all parties share may stand in one file, a party's own matters in another that includes it. The two become one
document. A party's own file takes precedence on its own section, on [network], [retention] and [encryption]; what the
parties share may stand in both files, but only with one meaning. The included file may come from another party: it
names no code, approves nothing, and sets no party's data, keys, folders or terms of serving.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from thinwire.base.errors import BadInput, BadJob
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName
from thinwire.data.readers.sources import is_remote
from thinwire.engine.models import OPTIMIZERS
from thinwire.job.messages import explain_problems, within
from thinwire.job.own_code import find_modules
from thinwire.job.registry import fill_defaults, fill_recipe_defaults
from thinwire.job.schema import JobFile, JobFileSection, RosterFile

AnySection = TypeVar("AnySection", bound=JobFileSection)


@dataclass(frozen=True)
class JobText:
    """A job file's document, and in which file each field stands."""

    path: Path
    document: Mapping[str, Any]  # merged, settings applied
    written: Mapping[str, Any]  # as it stands in the file itself
    core: Mapping[str, Any]  # as it stands in the included file
    core_name: str

    @contextmanager
    def name_core(self) -> Iterator[None]:
        """A refusal of a field that stands in the included file names that file."""
        try:
            yield
        except BadInput as error:
            if _depth(self.core, error.field) > _depth(self.written, error.field):
                raise error.within(self.core_name) from error
            raise

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Every refusal names the file that was asked for."""
        with within(str(self.path)), self.name_core():
            yield

    def validate(self, kind: type[AnySection], under: Sequence[str | int] = ()) -> AnySection:
        """The document, or the part of it `under` a place, as a section."""
        part: Any = self.document
        for key in under:
            part = part[key]
        try:
            return kind.model_validate(part)
        except ValidationError as error:
            raise explain_problems(error, self.document, under) from None


def read_text(path: Path, overrides: Sequence[str] = (), me: PartyName | None = None) -> JobText:
    """The file with what it includes, and `key=value` settings on top; `me` is the party that reads it."""
    return build_text(path, _parsed(path), overrides, me)


def build_text(
    path: Path, written: Mapping[str, Any], overrides: Sequence[str] = (), me: PartyName | None = None
) -> JobText:
    """The same of what stands, or is to stand, in the file `path`."""
    core: dict[str, Any] = {}
    include = written.get("include", "")
    if "include" in written:
        core = _included(path, include)
    text = JobText(path, {}, written, core, str(include))
    with within(text.core_name):
        require_harmless(core)
    with text.name_core():
        document = merge_documents(written, core, text.core_name, me)
        override(document, overrides)
    return replace(text, document=document)


def read_job_file(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """A whole job, validated."""
    text = read_text(path, overrides)
    with text.name_core():
        return text.validate(JobFile)


def _included(path: Path, include: Any) -> dict[str, Any]:
    if not isinstance(include, str) or not include:
        raise BadJob(f'include must be a path, such as "core.toml", got {include!r}')
    core_path = path.parent / include
    if core_path.resolve() == path.resolve():
        raise BadJob("a file cannot include itself").at("include")
    with within(include):
        core = _parsed(core_path)
        if "include" in core:
            raise BadJob("an included file may not include another").at("include")
    return core


def _parsed(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise BadJob("a folder, not a job file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadJob("the job file does not exist") from None
    except OSError as error:
        raise BadJob(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadJob("not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise BadJob(f"not TOML: {error}") from None


def _depth(document: Mapping[str, Any], keys: Sequence[str]) -> int:
    """How far down the path the document goes."""
    part: Any = document
    for depth, key in enumerate(keys):
        if isinstance(part, list):
            part = next((one for one in part if isinstance(one, Mapping) and one.get("name") == key), None)
        else:
            part = part.get(key) if isinstance(part, Mapping) else None
        if part is None:
            return depth
    return len(keys)


Document = dict[str, Any]
_OWN = ("network", "retention", "encryption")  # sections
_SOURCES = ("features", "test_features", "labels", "test_labels", "ids", "test_ids")
_FILES = ("certificate", "key", "authority", "revoked", "alignment", "test_alignment")
_NOT_SHARED = ("serve", "encryption", "job.scratch", "network.certs")
_NOT_SHARED_BY_A_PARTY = (*_SOURCES, *_FILES, "serve")


def merge_documents(
    document: Mapping[str, Any], core: Mapping[str, Any], core_name: str, me: PartyName | None
) -> Document:
    """Both as one. `me` says whose section the including file may change; None, for the simulator: any."""
    own = {key: part for key, part in document.items() if key != "include"}
    return deepcopy(dict(_Merging(core_name, me).merge("", own, core)))  # settings change it


def require_harmless(core: Mapping[str, Any]) -> None:
    """No code, approval, data, keys, folders or terms of serving in a file that others may have written."""
    for path in _NOT_SHARED:
        if _depth(core, path.split(".")) > path.count("."):
            raise BadInput("each party writes this in its own file, not in one that it includes").at(path)
    sections = core.get("party") if _are_sections(core.get("party")) else []
    named = [(f"party.{section.get('name')}", section) for section in sections or []]
    named += [("label_party", core.get("label_party"))]
    for path, section in named:
        if not isinstance(section, Mapping):
            continue
        if "approved" in section:
            raise BadInput("a party approves in its own file, not in one that it includes").at(f"{path}.approved")
        for place in find_modules(path, section):
            raise BadInput(
                "an included file must not name code, or one party could run it at another; name it in the party's "
                "own file"
            ).at(place)
        for key in _NOT_SHARED_BY_A_PARTY:
            if key in section:
                raise BadInput(
                    "an included file must not set a party's data, keys or serving terms, or one party could "
                    "change them at another; set it in the party's own file"
                ).at(f"{path}.{key}")


@dataclass(frozen=True)
class _Merging:
    core_name: str
    me: PartyName | None

    def merge(self, path: str, here: Any, there: Any) -> Any:
        """The union of two tables; what stands in both must be equal, unless it is this file's to change."""
        if path == "party" and _are_sections(here) and _are_sections(there):
            return self._parties(here, there)
        if not isinstance(here, Mapping) or not isinstance(there, Mapping):
            return self._same(path, here, there)
        if path in _OWN or (path == "label_party" and self._is_own(path, here, there)):
            return {**there, **here}
        both = [key for key in here if key in there]
        found = {key: self.merge(f"{path}.{key}" if path else key, here[key], there[key]) for key in both}
        return {**there, **here, **found}

    def _parties(self, here: list[Any], there: list[Any]) -> list[Any]:
        """The included file's order."""
        found = dict(zip(self._names(there), there, strict=True))
        names = self._names(here)
        for name, section in zip(names, here, strict=True):
            if name not in found:
                hint = did_you_mean(name, found)
                raise BadInput(f"{self.core_name} has no party of this name, it has {', '.join(found)}{hint}").at(
                    f"party.{name}"
                )
            mine, path = found[name], f"party.{name}"
            found[name] = (
                {**mine, **section} if self._is_own(path, section, mine) else self.merge(path, section, mine)
            )
        ordered = [name for name in found if name in names]
        if ordered != names:
            raise BadInput(
                f"the order is {', '.join(names)} here and {', '.join(ordered)} in {self.core_name}; "
                "all parties share it"
            ).at("party")
        return list(found.values())

    def _names(self, sections: list[Any]) -> list[str]:
        names = [section.get("name") for section in sections]
        if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise BadInput(
                f"every section needs a unique name, here and in {self.core_name}, got {', '.join(map(repr, names))}"
            ).at("party")
        return names

    def _is_own(self, path: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
        """Is this section the reader's?"""
        if "name" in here and "name" in there:
            self._same(f"{path}.name", here["name"], there["name"])
        return self.me is None or here.get("name", there.get("name")) == self.me

    def _same(self, path: str, here: Any, there: Any) -> Any:
        if here != there:
            raise BadInput.of(
                path,
                f"is {here!r} here and {there!r} in {self.core_name}; this file cannot change it, so remove it here",
            )
        return here


def _are_sections(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(section, Mapping) for section in value)


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
        raise BadInput(f"--set {setting}: the value is not TOML ({error}); quote text as '\"text\"'") from None
    if len(parsed) != 1:
        raise BadInput(f"--set {setting}: give one value, on one line")
    return parsed["value"]


def resolve_document(file: JobFile | RosterFile, folder: Path) -> dict[str, Any]:
    """As plain data that runs from anywhere; recipe and optimiser have been read before."""
    document = file.model_dump(exclude_none=True)
    document["recipe"] = fill_recipe_defaults(document["recipe"])
    document["optimizer"] = fill_defaults(document["optimizer"], "name", OPTIMIZERS)
    if not document["optimizer"]["averaging"]:
        del document["optimizer"]["averaging"]  # runs that can be resumed are older than it
    for section, field in (("job", "scratch"), ("encryption", "key"), ("network", "certs")):
        if field in document.get(section, {}):
            document[section][field] = str(folder / document[section][field])
    for party in [*document["party"], document["label_party"]]:
        for field in _SOURCES:
            if field in party:
                party[field] |= _resolve_place(party[field], folder)
        for field in _FILES:
            if field in party:
                party[field] = str(folder / party[field])
    return document


def _resolve_place(source: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The path of a file or of a database's file from anywhere; addresses and environment variables stay."""
    key = "file" if "file" in source else "connection"
    stays = is_remote(source[key]) or source[key].startswith("$")
    return {} if stays else {key: str(folder / source[key])}


# Plain data as TOML text; the standard library only reads it ------------------------------------------------------


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
