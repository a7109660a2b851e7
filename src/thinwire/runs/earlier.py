"""An earlier run's folder, read and never changed: its models, and its optimisers' memory."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from thinwire.at_rest import files_of, layout
from thinwire.errors import BadInput, BadState
from thinwire.runs.checkpoints import Checkpoints
from thinwire.runs.facts import RunFacts, read_facts
from thinwire.runs.private_state import PrivateState
from thinwire.types import PartyName

__all__ = ["Earlier"]


class Earlier:
    """A run that has ended; of one party, or of all."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / layout.MODELS).is_dir():
            what = (
                "has not ended: go on with it first" if (self.folder / layout.JOB).exists() else "is no run's folder"
            )
            raise BadInput(f"{self.folder} {what}; it holds no models to begin from")
        self.facts: RunFacts | None = read_facts(self.folder)
        self._files = files_of(self.folder)

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
        way_out = "begin without the optimisers' memory"
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
