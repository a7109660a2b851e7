"""`run.json`: which version wrote a run's folder, and what a later run that begins from it must know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from thinwire import __version__
from thinwire.at_rest import layout
from thinwire.at_rest.atomic_file import WriteFailed, replace_file
from thinwire.at_rest.json_file import indented_json
from thinwire.errors import BadState
from thinwire.types import PartyName

__all__ = ["FORMAT", "RunFacts", "read_facts", "require_readable", "write_facts"]

# 0: before run.json; all that lay in the folder is read as it is. 1: run.json says this.
FORMAT = 1


@dataclass(frozen=True)
class RunFacts:
    """Who took part, and how wide the embeddings were."""

    feature_parties: tuple[PartyName, ...]
    label_party: PartyName
    widths: Mapping[PartyName, int]  # in the order of fusion, the label party's own last
    fusion: str | None = None  # None: at a feature party, which does not know
    party: PartyName | None = None  # whose folder it is; None: all of them, simulated
    begun_from: Mapping[str, Any] = field(default_factory=dict)  # an earlier run, and what was taken over


def write_facts(folder: Path, facts: RunFacts) -> None:
    data = indented_json({"format": FORMAT, "thinwire": __version__, **asdict(facts)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / layout.RUN, data)
    except OSError as error:
        raise WriteFailed(folder / layout.RUN, len(data), error) from error


def read_facts(folder: Path) -> RunFacts | None:
    """None where the folder is older than run.json, or holds no run."""
    held = _held(folder)
    if held is None:
        return None
    try:
        return RunFacts(
            feature_parties=tuple(held["feature_parties"]),
            label_party=held["label_party"],
            widths=dict(held["widths"]),
            fusion=held["fusion"],
            party=held["party"],
            begun_from=dict(held["begun_from"]),
        )
    except (KeyError, TypeError, ValueError):
        raise _damaged(folder) from None


def require_readable(folder: Path) -> None:
    """Refuses a folder of a later version, with the way to read it."""
    _held(folder)


def _held(folder: Path) -> dict[str, Any] | None:
    try:
        held = json.loads((folder / layout.RUN).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError):
        raise _damaged(folder) from None
    if not isinstance(held, dict) or not isinstance(held.get("format"), int) or held["format"] < 1:
        raise _damaged(folder)
    if held["format"] > FORMAT:
        version = str(held.get("thinwire"))[:40]
        raise BadState(
            f"{folder} was written by thinwire {version!a} (format {held['format']}); this is {__version__}, which "
            f"reads formats up to {FORMAT}. Upgrade: pip install --upgrade thinwire"
        )
    return held


def _damaged(folder: Path) -> BadState:
    return BadState(
        f"{folder / layout.RUN} is damaged; bring it back from a copy, or begin a new run in another folder"
    )
