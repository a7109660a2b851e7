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

from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from thinwire.base.errors import BadInput, BadParameter, BadState
from thinwire.base.types import PartyName
from thinwire.net.handshake import OfferedModel
from thinwire.storage import layout
from thinwire.storage.atomic_file import map_write_errors
from thinwire.storage.checkpoints import Checkpoints
from thinwire.storage.encrypted_files import Files
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.json_file import canonical_json
from thinwire.storage.private_state import PrivateState


def list_models(folder: Path) -> list[str]:
    """Whose models the run's folder holds; "top" is the top model."""
    found = sorted(file.stem for file in layout.model_files(folder))
    if not found:
        raise BadInput(
            f"{folder} holds no models: {folder / 'models'} is missing or empty. Finish training first, or give the "
            "run folder"
        )
    return found


def find_weights(folder: Path, name: str, weights: str) -> Path:
    """The file of a model's "delivered" weights, or of the "last" ones, which are the same unless kept apart."""
    if weights not in ("delivered", "last"):
        raise BadParameter.of("weights", f"must be 'delivered' or 'last', got {weights!r}")
    last = layout.last_model_file(folder, name)
    return last if weights == "last" and last.exists() else layout.model_file(folder, name)


def load_model(folder: Path, name: str, module: nn.Module, weights: str = "delivered") -> None:
    """Refuses a file that is missing, damaged, of another model, or not finite."""
    file = find_weights(folder, name, weights)
    try:
        tensors = load(_content(file, open_folder(folder)))
        module.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise BadInput(f"{file} does not hold this job's model: {error}") from None
    parameters = dict(module.named_parameters())
    for key, tensor in tensors.items():
        # Infinity may be meant in a buffer, as a bound or in a mask.
        wrong = ~tensor.isfinite() if key in parameters else tensor.isnan()
        if tensor.is_floating_point() and bool(wrong.any()):
            raise BadInput(f"{file}: {key} holds NaN or infinity; training diverged")


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
        raise BadInput(f"{file} is missing: the run has not finished, or its folder is incomplete") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class RunFolder:
    """Reads it; nothing is written but `charges`."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise BadInput(f"{self.path} is not a run folder; give the one that `thinwire train` or `party` named")
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
    def private(self) -> PrivateState:
        if not (self.path / layout.PRIVATE).exists():
            raise BadInput(f"{self.path / 'private.json'} is missing: the run folder is incomplete")
        return PrivateState.open(self.path, self.files)

    @property
    def nonce(self) -> str | None:
        """Of a run over the network; the same at all its parties."""
        return self.private.run_nonce if (self.path / layout.PRIVATE).exists() else None

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

    def charges(self, me: PartyName) -> Path:
        """Where predictions are charged."""
        return self.path / (f"charges-{me}.jsonl" if self.is_simulation else layout.CHARGES)

    def tensors(self, me: PartyName, run: int) -> Mapping[str, Tensor]:
        """What this party's newest checkpoint holds."""
        owner = {"party": "all, simulated"} if self.is_simulation else {"party": me, "run": f"{run:016x}"}
        checkpoints = Checkpoints(self.path / layout.CHECKPOINTS, self.private.mac_key, owner, files=self.files)
        loaded = checkpoints.load(self.private.generation, lambda _: None)
        if loaded is None or me not in loaded.tensors:
            raise BadState(
                f"{self.path} holds no checkpoint of {me!r}, so the privacy its rows have already spent is unknown"
            )
        return loaded.tensors[me]

    def label_party_adds(self, label_party: PartyName) -> bool:
        """Did the label party hold features of its own? Whoever does knows one part of every sum."""
        if self.is_simulation:
            return layout.model_file(self.path, label_party).exists()
        try:
            return bool(json.loads((self.path / layout.PEERS).read_text())[label_party]["width"])
        except (OSError, ValueError, KeyError, TypeError):
            return True  # not known: the worse case

    def require_whole(self, way_out: str) -> None:
        """Refuses one party's part where all parties are needed."""
        try:
            parties = tomllib.loads(self.job.read_text()).get("party", [])
        except (OSError, tomllib.TOMLDecodeError):
            return  # reading it as a job says what is wrong
        absent = [str(party.get("name")) for party in parties if isinstance(party, dict) and "features" not in party]
        if absent:
            lacks = f"without the data of {', '.join(absent)}"
            raise BadInput(f"{self.path} holds one party's part of a run over the network, {lacks}; {way_out}")


_PINS = TypeAdapter(dict[str, dict[PartyName, OfferedModel]])  # by run and party


class PinnedModels:
    """What each party offered first for a run; its model may not change after that, its default may.

    `files` are those of the run's folder: a default is a mean of embeddings.
    """

    def __init__(self, file: Path, files: Files) -> None:
        self._file = file
        self._files = files
        self._lock = Lock()
        try:
            self._held = _PINS.validate_python(json.loads(files.read(file)) if file.exists() else {})
        except (OSError, ValueError) as error:
            raise BadState(
                f"{file} is damaged ({error}); remove it, and the next model of each party is trusted as it is"
            ) from None

    def find(self, run: str, party: PartyName) -> OfferedModel | None:
        """Its `next_number` is behind the last question of this run that the party answered under a secure sum."""
        return self._held.get(run, {}).get(party)

    def note_answer(self, run: str, party: PartyName, number: int) -> None:
        """A party that comes back and knows less has lost its record of charges."""
        if (held := self.find(run, party)) is not None:
            self._keep(party, held.model_copy(update={"next_number": max(held.next_number, number + 1)}))

    def pin(self, party: PartyName, offered: OfferedModel) -> None:
        held = self.find(offered.run, party)
        number = 0 if held is None else held.next_number
        self._keep(party, offered.model_copy(update={"key": None, "next_number": number}))

    def _keep(self, party: PartyName, kept: OfferedModel) -> None:
        with self._lock:
            run = self._held.setdefault(kept.run, {})
            if run.get(party) == kept:
                return
            run[party] = kept
            with map_write_errors(self._file):
                self._files.replace(self._file, canonical_json(_PINS.dump_python(self._held)))
