"""One run's folder: written as the run goes, and read where it goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from thinwire.base.errors import BadInput, BadState
from thinwire.base.types import PartyName
from thinwire.engine.streams import Storage
from thinwire.storage import layout
from thinwire.storage.atomic_file import append_file, make_folder, map_write_errors, replace_file
from thinwire.storage.checkpoints import Checkpoints, tensor_bytes
from thinwire.storage.encryption_key import begin_files, open_folder
from thinwire.storage.folder_lock import FolderLock
from thinwire.storage.json_file import dump_indented_json
from thinwire.storage.private_state import PrivateState, Replaced
from thinwire.storage.retention import has_checkpoint, require_able_to_go_on
from thinwire.storage.run_facts import RunFacts, require_readable, write_facts

_log = logging.getLogger(__name__)


class RunDirectory:
    """Reads and writes one run's folder. Every file appears whole or not at all.

    `key` is the file of the key that a new run is to be encrypted with.
    """

    def __init__(self, folder: Path, key: Path | None = None) -> None:
        require_readable(folder)
        self.folder = folder
        self.files = open_folder(folder, key)
        self._key = key
        self._lock: FolderLock | None = None

    def storage(self, wanted: Storage) -> Storage:
        """Where large tables may go: what is encrypted here must not lie readable elsewhere."""
        return wanted.require_folder() if self._key is not None or self.files.is_encrypted else wanted

    def begin(self, recipe: dict[str, Any], noise_secret: bytes, facts: RunFacts) -> None:
        """Starts a new run; refuses a folder that holds one already."""
        if (self.folder / layout.EVENTS).exists() and not self.is_unsaved():
            raise BadInput(f"{self.folder} already holds a run; resume it, or use another folder")
        self.files = begin_files(self.folder, self._key)
        self._open()
        self._private.set_noise_secret(noise_secret)
        write_facts(self.folder, facts)
        self.write(layout.RECIPE, dump_indented_json(recipe, sort_keys=True))
        self.write(layout.EVENTS, b"")

    def is_unsaved(self) -> bool:
        """A run was killed here before its first checkpoint: it begins anew."""
        require_able_to_go_on(self.folder)
        there = any((self.folder / name).exists() for name in (layout.DATA, layout.PRIVATE))
        return there and not has_checkpoint(self.folder, self.files)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Meanwhile no other process can train, forget or clean here."""
        self._lock = FolderLock(self.folder)
        self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _require_ours(self) -> None:
        if self._lock is not None and not self._lock.still_mine():
            raise Replaced(f"{self.folder}: this process was stopped and another one has taken over")

    def keep(self, party: PartyName, kept: Mapping[str, str]) -> None:
        """What a party's model needs beside its weights, as JSON, or CSV where its name says so."""
        for name, text in kept.items():
            self._keep_private(layout.metadata_file(self.folder, party, name), text.encode())

    def append(self, event: dict[str, Any]) -> None:
        """A whole line, or none; on the disk, since a checkpoint counts on it."""
        self._require_ours()
        path, line = self.folder / layout.EVENTS, json.dumps(event).encode() + b"\n"
        with map_write_errors(path, len(line)):
            append_file(path, line)

    def truncate(self, count: int) -> list[dict[str, Any]]:
        """Keeps the first `count` events: those a checkpoint knows of."""
        lines = (self.folder / layout.EVENTS).read_text().splitlines()[:count]  # a last one may be half written
        kept = [json.loads(line) for line in lines]
        self.write(layout.EVENTS, b"".join(json.dumps(event).encode() + b"\n" for event in kept))
        return kept

    def replace_last(self, event: dict[str, Any]) -> None:
        """The last event, with more in it."""
        lines = (self.folder / layout.EVENTS).read_bytes().splitlines(keepends=True)
        self.write(layout.EVENTS, b"".join([*lines[:-1], json.dumps(event).encode() + b"\n"]))

    def finish(self, ledger: list[dict[str, Any]], models: Mapping[PartyName, nn.Module]) -> None:
        self._require_ours()
        self.write(layout.LEDGER, dump_indented_json(ledger))
        for name, module in models.items():
            self._keep_private(layout.model_file(self.folder, name), tensor_bytes(module.state_dict()))

    def keep_last(self, models: Mapping[PartyName, nn.Module]) -> None:
        """The weights after the last round, beside those that are delivered."""
        for name, module in models.items():
            self._keep_private(layout.last_model_file(self.folder, name), tensor_bytes(module.state_dict()))

    def mark_finished(self, finished: bool) -> None:
        """A run that was stopped, or goes on for longer, is not."""
        if self._private.is_finished != finished:
            self._private.set_finished(finished)

    @property
    def noise_secret(self) -> bytes:
        """Kept with the run: resumed, it must draw the same noise."""
        return self._private.noise_secret

    def save(self, data: dict[str, Any], tensors: Mapping[PartyName, Mapping[str, Tensor]]) -> None:
        """A new generation; the one before stays until this one is whole."""
        self._checkpoints.save(data, tensors, self._generation + 1)
        self._generation += 1
        self._private.set_generation(self._generation)

    def load(
        self, job: Mapping[str, str], parties: Sequence[PartyName]
    ) -> tuple[dict[str, Any], dict[PartyName, Any]]:
        """The newest generation that is whole."""
        self.require_begun()
        self._open()
        loaded = self._checkpoints.load(self._private.generation, lambda data: self._require_same(data, job))
        if loaded is None:
            raise self._nothing()
        if set(loaded.tensors) != set(parties):
            raise BadState(
                f"{self.folder} is for the parties {sorted(loaded.tensors)}, the job has {sorted(parties)}"
            )
        for warning in loaded.warnings:
            _log.warning("%s: %s", self.folder, warning)
        self._generation = loaded.generation
        if self._generation > self._private.generation:  # killed before it was recorded
            self._private.set_generation(self._generation)
        return loaded.data, loaded.tensors

    def require_begun(self) -> None:
        """Refuses a folder without a run that can be resumed."""
        require_able_to_go_on(self.folder)
        if not (self.folder / layout.PRIVATE).exists():
            raise self._nothing()

    def _nothing(self) -> BadInput:
        return BadInput(f"{self.folder} holds no checkpoint to resume from")

    def _open(self) -> None:
        self._private = PrivateState.open(self.folder, self.files)
        incarnation = self._private.begin_incarnation()
        owner = {"party": "all, simulated"}
        self._checkpoints = Checkpoints(
            self.folder / layout.CHECKPOINTS, self._private.mac_key, owner, incarnation, self.files
        )
        self._generation = self._private.generation

    def _require_same(self, data: dict[str, Any], job: Mapping[str, str]) -> None:
        different = sorted(key for key, value in job.items() if data["job"].get(key, value) != value)
        if different:
            raise BadState(
                f"{self.folder} was created by another job: {', '.join(different)} differ; resume with the same "
                "job, or start a new run in another folder"
            )

    def write(self, name: str, content: bytes) -> None:
        """Readable by whoever may read the folder: nothing of single rows, or of weights."""
        path = self.folder / name
        with map_write_errors(path, len(content)):
            make_folder(self.folder)
            replace_file(path, content)

    def _keep_private(self, path: Path, content: bytes) -> None:
        with map_write_errors(path, len(content)):
            make_folder(self.folder)
            make_folder(path.parent)
            self.files.replace(path, content)
