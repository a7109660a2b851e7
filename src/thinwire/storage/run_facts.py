"""`run.json`, which says what wrote a run's folder and who took part; and an earlier run, to begin from it.

An earlier run's folder is read and never changed: its models, and its optimizers' state.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from thinwire import __version__
from thinwire.base.errors import BadInput, BadState
from thinwire.base.types import PartyName
from thinwire.storage import layout
from thinwire.storage.atomic_file import make_folder, map_write_errors, replace_file
from thinwire.storage.checkpoints import Checkpoints
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.json_file import dump_indented_json
from thinwire.storage.private_state import PrivateState

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
    data = dump_indented_json({"format": FORMAT, "thinwire": __version__, **asdict(facts)})
    with map_write_errors(folder / layout.RUN, len(data)):
        make_folder(folder)
        replace_file(folder / layout.RUN, data)


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
        f"{folder / layout.RUN} is damaged; restore it from a backup, or start a new run in another folder"
    )


class EarlierRun:
    """A run that has ended; of one party, or of all."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / layout.MODELS).is_dir():
            what = (
                "has not finished: resume it first" if (self.folder / layout.JOB).exists() else "is not a run folder"
            )
            raise BadInput(f"{self.folder} {what}; it holds no models to start from")
        self.facts: RunFacts | None = read_facts(self.folder)
        self._files = open_folder(self.folder)

    @cached_property
    def models(self) -> dict[str, dict[str, Tensor]]:
        """By their files' names: bottom models by party, the top model under "top"."""
        found = {}
        for path in layout.model_files(self.folder):
            try:
                found[path.stem] = load(self._files.read(path))
            except (SafetensorError, OSError) as error:
                raise BadInput(f"{path} holds no model: {error}") from None
        return found

    def parties(self) -> tuple[PartyName, ...]:
        """Those with bottom models; as far as this folder knows."""
        if self.facts is not None:
            return tuple(self.facts.widths)
        try:
            job = tomllib.loads((self.folder / layout.JOB).read_text())
            return tuple(party["name"] for party in job["party"])
        except (OSError, ValueError, KeyError, TypeError):
            return tuple(name for name in self.models if name != "top")

    def digest(self) -> str:
        """Of the models, for the record."""
        digest = hashlib.sha256()
        for path in layout.model_files(self.folder):
            digest.update(path.name.encode() + self._files.read(path))
        return digest.hexdigest()

    @cached_property
    def optimizers(self) -> dict[str, dict[str, Tensor]]:
        """Their memory, by the models' names; from the last checkpoint."""
        way_out = "start without the optimizer state"
        if not (self.folder / layout.PRIVATE).exists():
            raise BadInput(f"{self.folder} holds no checkpoint; {way_out}")
        private = PrivateState.open(self.folder, self._files)
        checkpoints = Checkpoints(
            self.folder / layout.CHECKPOINTS, private.mac_key, None, private.incarnation, self._files
        )
        loaded = checkpoints.load(private.generation, lambda _: None)
        if loaded is None:
            raise BadState(f"{self.folder} holds no checkpoint; {way_out}")
        found: dict[str, dict[str, Tensor]] = {}
        for party, tensors in loaded.tensors.items():
            found |= _memories(party, tensors)
        return found


# Where a checkpoint keeps each model's optimiser: at a feature party, and at the label party.
_PLACES = (("learner.", None), ("side.top.", "top"), ("side.bottom.", None))


def _memories(party: PartyName, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for prefix, model in _PLACES:
        start = f"{prefix}optimizer."
        memory = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(start)}
        if memory:
            found[model or party] = memory
    return found
