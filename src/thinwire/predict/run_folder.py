"""A finished run's folder: a whole run of the simulator, or one party's part of a run over the network."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from thinwire.at_rest import Files, files_of, layout
from thinwire.errors import BadInput, BadState
from thinwire.job.simulator import own_secret
from thinwire.network.feature_role import run_secret
from thinwire.predict.model_files import hash_of, model_names
from thinwire.runs import Checkpoints, PrivateState
from thinwire.types import PartyName

__all__ = ["RunFolder"]


@dataclass(frozen=True)
class RunFolder:
    """Reads it; nothing is written but `charges`."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise BadInput(f"{self.path} is no folder of a run; give the one that `thinwire train` or `party` named")
        model_names(self.path)

    @property
    def job(self) -> Path:
        """The job as it was meant."""
        file = self.path / layout.JOB
        if not file.is_file():
            raise BadInput(f"{self.path} holds no job.toml: it was trained from Python; use thinwire.load_run there")
        return file

    @cached_property
    def files(self) -> Files:
        """As they are, or encrypted."""
        return files_of(self.path)

    @cached_property
    def _private(self) -> PrivateState:
        if not (self.path / layout.PRIVATE).exists():
            raise BadInput(f"{self.path / 'private.json'} is missing: the run's folder is not whole")
        return PrivateState.open(self.path, self.files)

    @property
    def nonce(self) -> str | None:
        """Of a run over the network; the same at all its parties."""
        return self._private.run_nonce if (self.path / layout.PRIVATE).exists() else None

    @property
    def is_simulated(self) -> bool:
        return self.nonce is None

    @cached_property
    def run(self) -> str:
        """Which models belong together: a run over the network has a nonce, a simulated one all models."""
        return self.nonce or hash_of(self.path, model_names(self.path))

    def hash_of(self, me: PartyName, is_label_party: bool) -> str:
        """Of this party's own models."""
        there = model_names(self.path)
        mine = [name for name in there if name == me or (is_label_party and name == "top")]
        if not mine or (is_label_party and "top" not in mine):
            raise BadInput(f"{self.path} holds no model of {me!r}; it holds {', '.join(there)}")
        return hash_of(self.path, mine)

    def secret(self, me: PartyName) -> bytes:
        """Behind this party's noise and masks."""
        held = self._private.noise_secret
        return own_secret(held, me) if self.is_simulated else run_secret(held, self.nonce or "")

    def charges(self, me: PartyName) -> Path:
        """Where predictions are charged."""
        return self.path / (f"charges-{me}.jsonl" if self.is_simulated else layout.CHARGES)

    def tensors(self, me: PartyName, run: int) -> Mapping[str, Tensor]:
        """What this party's newest checkpoint holds."""
        owner = {"party": "all, simulated"} if self.is_simulated else {"party": me, "run": f"{run:016x}"}
        checkpoints = Checkpoints(self.path / layout.CHECKPOINTS, self._private.mac_key, owner, files=self.files)
        loaded = checkpoints.load(self._private.generation, lambda _: None)
        if loaded is None or me not in loaded.tensors:
            raise BadState(f"{self.path} holds no checkpoint of {me!r}, so what its rows have lost is not known")
        return loaded.tensors[me]

    def label_party_adds(self, label_party: PartyName) -> bool:
        """Did the label party hold features of its own? Whoever does knows one part of every sum."""
        if self.is_simulated:
            return layout.model_file(self.path, label_party).exists()
        try:
            return bool(json.loads((self.path / layout.PEERS).read_text())[label_party]["width"])
        except (OSError, ValueError, KeyError, TypeError):
            return True  # not known: the worse case

    def require_whole(self) -> None:
        """Refuses one party's part where all parties are needed."""
        parties = tomllib.loads(self.job.read_text()).get("party", [])
        absent = [str(party.get("name")) for party in parties if isinstance(party, dict) and "features" not in party]
        if absent:
            raise BadInput(
                f"{self.path} holds one party's part of a run over the network, without {', '.join(absent)}; every "
                "party runs its half: thinwire predict ... --name PARTY"
            )
