"""A finished run's folder: its trained models, their hashes, and those that the other parties served first."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from thinwire.base.errors import BadInput, BadState
from thinwire.base.types import PartyName
from thinwire.net.handshake import OfferedModel
from thinwire.storage import layout
from thinwire.storage.checkpoints import Checkpoints
from thinwire.storage.encrypted_files import PLAIN, Files
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.json_file import canonical_json
from thinwire.storage.private_state import PrivateState
from thinwire.training.party.feature_role import derive_run_secret
from thinwire.training.simulator import own_secret


def list_models(folder: Path) -> list[str]:
    """Whose models the run's folder holds; "top" is the top model."""
    found = sorted(file.stem for file in layout.model_files(folder))
    if not found:
        raise BadInput(
            f"{folder} holds no models: {folder / 'models'} is missing or empty. Train to the end first, or give the "
            "run's folder"
        )
    return found


def load_model(folder: Path, name: str, module: nn.Module) -> None:
    """Refuses a file that is missing, damaged, of another model, or not finite."""
    file = layout.model_file(folder, name)
    try:
        tensors = load(_content(file, open_folder(folder)))
        module.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise BadInput(f"{file} does not hold this job's model: {error}") from None
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadInput(f"{file}: {key} holds NaN or infinity; the training went wrong")


def hash_models(folder: Path, names: Iterable[str]) -> str:
    """SHA-256 over the models' files, each behind its name and length."""
    digest, files = hashlib.sha256(), open_folder(folder)
    for name in sorted(names):
        content = _content(layout.model_file(folder, name), files)
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _content(file: Path, files: Files) -> bytes:
    try:
        return files.read(file)
    except FileNotFoundError:
        raise BadInput(f"{file} is missing: the run has not ended, or its folder is not whole") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class RunFolder:
    """Reads it; nothing is written but `charges`."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise BadInput(f"{self.path} is no folder of a run; give the one that `thinwire train` or `party` named")
        list_models(self.path)

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
        return open_folder(self.path)

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
    def is_simulation(self) -> bool:
        return self.nonce is None

    @cached_property
    def run(self) -> str:
        """Which models belong together: a run over the network has a nonce, a simulated one all models."""
        return self.nonce or hash_models(self.path, list_models(self.path))

    def hash_party_models(self, me: PartyName, is_label_party: bool) -> str:
        """Of this party's own models."""
        there = list_models(self.path)
        mine = [name for name in there if name == me or (is_label_party and name == "top")]
        if not mine or (is_label_party and "top" not in mine):
            raise BadInput(f"{self.path} holds no model of {me!r}; it holds {', '.join(there)}")
        return hash_models(self.path, mine)

    def secret(self, me: PartyName) -> bytes:
        """Behind this party's noise and masks."""
        held = self._private.noise_secret
        return own_secret(held, me) if self.is_simulation else derive_run_secret(held, self.nonce or "")

    def charges(self, me: PartyName) -> Path:
        """Where predictions are charged."""
        return self.path / (f"charges-{me}.jsonl" if self.is_simulation else layout.CHARGES)

    def tensors(self, me: PartyName, run: int) -> Mapping[str, Tensor]:
        """What this party's newest checkpoint holds."""
        owner = {"party": "all, simulated"} if self.is_simulation else {"party": me, "run": f"{run:016x}"}
        checkpoints = Checkpoints(self.path / layout.CHECKPOINTS, self._private.mac_key, owner, files=self.files)
        loaded = checkpoints.load(self._private.generation, lambda _: None)
        if loaded is None or me not in loaded.tensors:
            raise BadState(f"{self.path} holds no checkpoint of {me!r}, so what its rows have lost is not known")
        return loaded.tensors[me]

    def label_party_adds(self, label_party: PartyName) -> bool:
        """Did the label party hold features of its own? Whoever does knows one part of every sum."""
        if self.is_simulation:
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


class PinnedModels:
    """What each party offered first for a run; its model may not change after that, its default may.

    `files` are those of the run's folder: a default is a mean of embeddings.
    """

    def __init__(self, file: Path | None, files: Files = PLAIN) -> None:
        self._file = file
        self._files = files
        self._lock = Lock()
        self._held: dict[str, dict[PartyName, OfferedModel]] = {}
        if file is not None and file.exists():
            self._held = _read(file, files)

    def find_hash(self, run: str, party: PartyName) -> str | None:
        found = self._held.get(run, {}).get(party)
        return None if found is None else found.hash

    def find_default_offer(self, run: str, party: PartyName) -> OfferedModel | None:
        """What a party that is away offered before, where it stated a default embedding."""
        found = self._held.get(run, {}).get(party)
        return found if found is not None and found.default is not None else None

    def pin(self, party: PartyName, offered: OfferedModel) -> None:
        kept = offered.model_copy(update={"key": None, "next_number": 0})
        with self._lock:
            run = self._held.setdefault(offered.run, {})
            if run.get(party) == kept:
                return
            run[party] = kept
            if self._file is not None:
                told = {
                    name: {who: one.model_dump() for who, one in held.items()} for name, held in self._held.items()
                }
                self._files.replace(self._file, canonical_json(told), mode=0o600)


def _read(file: Path, files: Files) -> dict[str, dict[PartyName, OfferedModel]]:
    try:
        told = json.loads(files.read(file))
        return {
            str(run): {str(party): OfferedModel.model_validate(one) for party, one in held.items()}
            for run, held in told.items()
        }
    except (OSError, ValueError, AttributeError, ValidationError) as error:
        raise BadState(
            f"{file} is damaged ({error}); remove it, and parties are taken at their word once more"
        ) from None
