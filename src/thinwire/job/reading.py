"""The text of a job: one file, or a party's own file and the one it includes; no data is read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from thinwire.errors import BadInput, BadJob
from thinwire.job.including import merged, require_harmless
from thinwire.job.messages import at, said
from thinwire.job.overrides import override
from thinwire.job.schema import JobFile, Section
from thinwire.types import PartyName

__all__ = ["JobText", "read_job_file", "read_text", "text_of"]

_FIELD = re.compile(r"[\w-]+(?:(?:\.|: )[\w-]+)*")
AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True)
class JobText:
    """A job file's document, and in which file each field stands."""

    path: Path
    document: Mapping[str, Any]  # merged, settings applied
    written: Mapping[str, Any]  # as it stands in the file itself
    core: Mapping[str, Any]  # as it stands in the included file
    core_name: str

    @contextmanager
    def named(self) -> Iterator[None]:
        """A refusal of a field that stands in the included file names that file."""
        try:
            yield
        except BadInput as error:
            found = _FIELD.match(str(error))
            keys = re.split(r"\.|: ", found[0]) if found else []
            if _depth(self.core, keys) > _depth(self.written, keys):
                raise error.at(self.core_name) from error
            raise

    @contextmanager
    def located(self) -> Iterator[None]:
        """Every refusal names the file that was asked for."""
        with at(str(self.path)), self.named():
            yield

    def validated(self, kind: type[AnySection], under: Sequence[str | int] = ()) -> AnySection:
        """The document, or the part of it `under` a place, as a section."""
        part: Any = self.document
        for key in under:
            part = part[key]
        try:
            return kind.model_validate(part)
        except ValidationError as error:
            raise BadJob(said(error, self.document, under)) from None


def read_text(path: Path, overrides: Sequence[str] = (), me: PartyName | None = None) -> JobText:
    """The file with what it includes, and `key=value` settings on top; `me` is the party that reads it."""
    return text_of(path, _parsed(path), overrides, me)


def text_of(
    path: Path, written: Mapping[str, Any], overrides: Sequence[str] = (), me: PartyName | None = None
) -> JobText:
    """The same of what stands, or is to stand, in the file `path`."""
    core: dict[str, Any] = {}
    include = written.get("include", "")
    if "include" in written:
        core = _included(path, include)
    text = JobText(path, {}, written, core, str(include))
    with text.named():
        require_harmless(core)
        document = merged(written, core, text.core_name, me)
        override(document, overrides)
    return replace(text, document=document)


def read_job_file(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """A whole job, validated."""
    text = read_text(path, overrides)
    with text.named():
        return text.validated(JobFile)


def _included(path: Path, include: Any) -> dict[str, Any]:
    if not isinstance(include, str) or not include:
        raise BadJob(f'include must be a path, such as "core.toml", got {include!r}')
    core_path = path.parent / include
    if core_path.resolve() == path.resolve():
        raise BadJob("include: a file cannot include itself")
    with at(include):
        core = _parsed(core_path)
        if "include" in core:
            raise BadJob("include: an included file may not include another")
    return core


def _parsed(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise BadJob("a folder, not a job file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadJob("there is no such job file") from None
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
