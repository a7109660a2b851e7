"""What a run leaves on disk.

recipe.json                  the recipe, as its digest sees it
events.jsonl                 one line an evaluation
ledger.json                  bytes and messages by sender, receiver and kind
models/<party>.safetensors   the trained models
checkpoints/                 two generations of everything a resumed run needs
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from thinwire.errors import BadInput, BadState
from thinwire.types import PartyName

__all__ = ["RunDirectory"]

FORMAT = 1


class RunDirectory:
    """Reads and writes one run's folder. Every file appears whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, recipe: dict[str, Any]) -> None:
        """Starts a new run; refuses a folder that holds one already."""
        if (self.folder / "events.jsonl").exists():
            raise BadInput(f"{self.folder} holds a run already; resume it, or give another folder")
        for name in ("models", "checkpoints"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._write("recipe.json", json.dumps(recipe, indent=2, sort_keys=True) + "\n")
        self._write("events.jsonl", "")

    def append(self, event: dict[str, Any]) -> None:
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def truncate(self, count: int) -> list[dict[str, Any]]:
        """Keeps the first `count` events: those a checkpoint knows of."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()[:count]  # a last one may be half written
        kept = [json.loads(line) for line in lines]
        self._write("events.jsonl", "".join(json.dumps(event) + "\n" for event in kept))
        return kept

    def finish(self, ledger: list[dict[str, Any]], models: Mapping[PartyName, nn.Module]) -> None:
        self._write("ledger.json", json.dumps(ledger, indent=2) + "\n")
        for name, module in models.items():
            self._write_tensors(self.folder / "models" / f"{name}.safetensors", module.state_dict())

    # Checkpoints ------------------------------------------------------------------------------------------

    def save(self, data: dict[str, Any], tensors: Mapping[PartyName, Mapping[str, Tensor]]) -> None:
        """A new generation; the one before stays until this one is whole."""
        new = self.folder / "checkpoints" / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        digests = {}
        for party, held in tensors.items():
            self._write_tensors(new / f"{party}.safetensors", held)
            digests[party] = xxhash.xxh3_64_hexdigest((new / f"{party}.safetensors").read_bytes())
        text = json.dumps({"format": FORMAT, **data, "digests": digests}, sort_keys=True)
        (new / "state.json").touch(mode=0o600)  # it holds the secret of the noise
        (new / "state.json").write_text(text)
        (new / "state.xxh3").write_text(xxhash.xxh3_64_hexdigest(text.encode()))
        for path in (*new.iterdir(), new):
            _sync(path)
        last, before = self.folder / "checkpoints" / "last", self.folder / "checkpoints" / "before"
        shutil.rmtree(before, ignore_errors=True)
        if last.exists():
            last.rename(before)
        new.rename(last)
        _sync(last.parent)

    def load(
        self, job: Mapping[str, str], parties: Sequence[PartyName]
    ) -> tuple[dict[str, Any], dict[PartyName, Any]]:
        """The newest generation that is whole."""
        problems = []
        for name in ("last", "before"):
            folder = self.folder / "checkpoints" / name
            try:
                return self._load(folder, job, parties)
            except (OSError, ValueError, KeyError) as error:
                if isinstance(error, BadState):
                    raise
                problems.append(f"{name}: {error}")
        raise BadInput(f"{self.folder} holds no checkpoint to resume from ({'; '.join(problems)})")

    def _load(
        self, folder: Path, job: Mapping[str, str], parties: Sequence[PartyName]
    ) -> tuple[dict[str, Any], dict[PartyName, Any]]:
        text = (folder / "state.json").read_text()
        if xxhash.xxh3_64_hexdigest(text.encode()) != (folder / "state.xxh3").read_text():
            raise ValueError("state.json is damaged")
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise BadState(f"{folder} has format {data['format']}, this version reads {FORMAT}")
        different = sorted(key for key, value in job.items() if data["job"].get(key) != value)
        if different:
            raise BadState(
                f"{folder} was made by another job: {', '.join(different)} differ; resume with the same job, or "
                "begin a new run in another folder"
            )
        if set(data["digests"]) != set(parties):
            raise BadState(f"{folder} is of the parties {sorted(data['digests'])}, the job has {sorted(parties)}")
        for party in parties:
            found = xxhash.xxh3_64_hexdigest((folder / f"{party}.safetensors").read_bytes())
            if found != data["digests"][party]:
                raise ValueError(f"{party}.safetensors is damaged")
        return data, {party: load_file(folder / f"{party}.safetensors") for party in parties}

    def _write(self, name: str, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"{name}.part"
        temporary.write_text(text)
        os.replace(temporary, self.folder / name)

    def _write_tensors(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        # Copies: safetensors refuses tensors that share memory, as a batch and its slice do.
        temporary = path.with_suffix(".part")
        save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, temporary)
        os.replace(temporary, path)


def _sync(path: Path) -> None:
    """On the disk, not only in memory, before anything is renamed or removed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
