"""Two generations of everything a resumed party needs, each whole or not there at all.

::

    <generation>-<incarnation>/
        manifest               the MAC's 64 hex digits, a line's end, and canonical JSON: what the MAC is over
        state.json             numbers and lists
        <name>.safetensors     tensors

A generation is made in a folder of another name and renamed when all of it is on the disk. A process removes only
what it wrote itself or what older ones left, and never the generation it came from: killed between any two calls, it
leaves one that loads.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from thinwire.base.errors import BadInput, BadState, Diverged
from thinwire.engine.streams import blocks
from thinwire.storage.atomic_file import WriteFailed, make_folder, sync_folder
from thinwire.storage.encrypted_files import PLAIN, DamagedFile, Files
from thinwire.storage.json_file import canonical_json
from thinwire.storage.tensor_file import WrittenTensors, read_tensors, write_tensors

FORMAT = 2
GENERATION = re.compile(r"(\d{10,})-(\d{6,})")
_UNFINISHED = re.compile(r"new-(\d{6,})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class CheckpointFailed(WriteFailed):
    """A generation could not be written; those before it are as they were."""


class _Unusable(Exception):
    """Why a generation cannot be loaded."""


@contextmanager
def _mapped_errors(file: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _Unusable(f"{file} cannot be read: {error.strerror}") from None
    except BadState as error:
        raise _Unusable(error.what if isinstance(error, DamagedFile) else str(error)) from None


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A generation, and what was wrong with newer ones."""

    data: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    generation: int
    warnings: list[str]


@dataclass(frozen=True, order=True)
class _Place:
    generation: int
    incarnation: int
    path: Path = field(compare=False)


class Checkpoints:
    """Saves and loads one party's generations. `key` is secret; `owner` says whose they are: run, party.

    None: whoever holds the key, to read only.

    `incarnation` counts the starts of this party's processes, so that a replaced one that wakes up harms nothing.
    `files` are the run's: as they are, or encrypted.
    """

    def __init__(
        self, folder: Path, key: bytes, owner: Mapping[str, str] | None, incarnation: int = 0, files: Files = PLAIN
    ) -> None:
        self._folder = folder
        self._files = files
        self._key = key
        self._owner = None if owner is None else dict(owner)
        self._incarnation = incarnation
        self._good: _Place | None = None  # what we loaded or saved last

    # Saving ---------------------------------------------------------------------------------------------

    def save(self, data: dict[str, Any], tensors: Mapping[str, Mapping[str, Tensor]], generation: int) -> int:
        """Writes a generation and gives its bytes; the one before stays. `tensors` goes by our own parties' names."""
        if self._good is not None and generation <= self._good.generation:
            raise BadInput(f"{self._folder}: generation {generation} after {self._good.generation}")
        for name, held in tensors.items():
            if not _NAME.fullmatch(name):
                raise BadInput(f"{name!r} is not a valid name for a tensor file")
            if (spoiled := _find_spoiled(held)) is not None:
                raise Diverged(f"{name}: {spoiled} holds NaN; lower the learning rate, or prepare the features")
        state = canonical_json(data)
        needed = len(state) + sum(tensor.nbytes for held in tensors.values() for tensor in held.values())
        new = self._folder / f"new-{self._incarnation:06d}"
        place = _Place(generation, self._incarnation, self._folder / f"{generation:010d}-{self._incarnation:06d}")
        try:
            make_folder(self._folder)
            self._remove_unfinished()
            new.mkdir(mode=0o700)
            written = self._write(new, state, tensors, generation)
            if place.path.exists():  # damaged, or it was never recorded: we began below it
                shutil.rmtree(place.path)
            os.rename(new, place.path)
            sync_folder(self._folder)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise CheckpointFailed(place.path, needed, error) from error
        for other in self._places():
            if other.incarnation <= self._incarnation and other not in (place, self._good):
                shutil.rmtree(other.path, ignore_errors=True)
        self._good = place
        return written

    def _write(self, folder: Path, state: bytes, tensors: Mapping[str, Mapping[str, Tensor]], generation: int) -> int:
        self._write_new(folder / "state.json", state)
        written = len(state)
        files = {}
        for name, held in tensors.items():
            with self._files.new(folder / f"{name}.safetensors") as write:
                file = write_tensors(write, held)
            files[name] = asdict(file)
            written += file.size
        manifest = canonical_json(
            {
                "format": FORMAT,
                "owner": self._owner,
                "generation": generation,
                "incarnation": self._incarnation,
                "state": hashlib.sha256(state).hexdigest(),
                "files": files,
            }
        )
        signed = self._mac(manifest) + b"\n" + manifest
        self._write_new(folder / "manifest", signed)
        sync_folder(folder)
        return written + len(signed)

    def _write_new(self, path: Path, content: bytes) -> None:
        with self._files.new(path) as write:
            write(content)

    def _remove_unfinished(self) -> None:
        for path in self._folder.iterdir():
            named = _UNFINISHED.fullmatch(path.name)
            if named is not None and int(named[1]) <= self._incarnation:
                shutil.rmtree(path)

    # Loading --------------------------------------------------------------------------------------------

    def load(self, newest: int, check: Callable[[dict[str, Any]], None]) -> LoadedCheckpoint | None:
        """The newest generation that is whole; None where none was ever made.

        `newest` is the generation that the private state knows of: one below it will do where it cannot be used, an
        older one has been rolled back. What `check` raises about the state goes to the caller as it is.
        """
        reasons = []
        # Of two with one number, the newer process's.
        places = {place.generation: place for place in sorted(self._places()) if not self._is_late(place, newest)}
        if not places and newest == 0:
            return None
        if newest and not any(generation >= newest for generation in places):
            reasons.append(f"generation {newest} is missing")
        for generation in sorted(places, reverse=True):
            try:
                data, tensors = self._loaded(places[generation], newest, check)
            except _Unusable as reason:
                reasons.append(f"generation {generation} cannot be used: {reason}")
                continue
            self._good = places[generation]
            if reasons:
                reasons.append(f"fell back to generation {generation}")
            return LoadedCheckpoint(data, tensors, generation, reasons)
        raise BadState(
            f"{self._folder} holds no checkpoint that can be used ({'; '.join(reasons)}); restore the run folder, "
            "including private.json, from a single backup, or start a new run in another folder"
        )

    def _loaded(
        self, place: _Place, newest: int, check: Callable[[dict[str, Any]], None]
    ) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        manifest = self._manifest(place)
        if place.generation < newest - 1:
            raise _Unusable(f"it was rolled back, the party has been at {newest}")
        state = self._bytes_of(place.path / "state.json")
        if hashlib.sha256(state).hexdigest() != manifest["state"]:
            raise _Unusable("state.json is damaged")
        data: dict[str, Any] = json.loads(state)
        check(data)
        return data, {name: self._tensors(place.path, name, told) for name, told in manifest["files"].items()}

    def _manifest(self, place: _Place) -> dict[str, Any]:
        """The manifest, once its MAC is right."""
        mac, _, text = self._bytes_of(place.path / "manifest").partition(b"\n")
        if not hmac.compare_digest(mac, self._mac(text)):
            raise _Unusable("its MAC is wrong: it is damaged, or of another party, run or key")
        manifest: dict[str, Any] = json.loads(text)
        if manifest["format"] > FORMAT:
            raise BadState(
                f"{place.path} has format {manifest['format']}, this version reads {FORMAT}; use the version that "
                "wrote it"
            )
        if manifest["format"] != FORMAT:
            raise _Unusable(f"it has format {manifest['format']}, this version reads {FORMAT}")
        if self._owner is not None and manifest["owner"] != self._owner:
            raise _Unusable(f"it is of {manifest['owner']}, this is {self._owner}")
        if manifest["generation"] != place.generation or manifest["incarnation"] != place.incarnation:
            raise _Unusable(f"generation {manifest['generation']} was put in its place")
        return manifest

    def _tensors(self, folder: Path, name: str, told: Mapping[str, Any]) -> dict[str, Tensor]:
        file = f"{name}.safetensors"
        with _mapped_errors(file):
            tensors = read_tensors(folder / file, WrittenTensors(**told), self._files)
        if (spoiled := _find_spoiled(tensors)) is not None:
            raise _Unusable(f"{file}: {spoiled} holds NaN")
        return tensors

    def _bytes_of(self, path: Path) -> bytes:
        with _mapped_errors(path.name):
            return self._files.read(path)

    def _places(self) -> list[_Place]:
        if not self._folder.is_dir():
            return []
        named = ((GENERATION.fullmatch(path.name), path) for path in self._folder.iterdir())
        return [_Place(int(name[1]), int(name[2]), path) for name, path in named if name is not None]

    def _is_late(self, place: _Place, newest: int) -> bool:
        """Written by a replaced process: the one that came after it would have recorded it."""
        return place.generation > newest and place.incarnation < self._incarnation - 1

    def _mac(self, manifest: bytes) -> bytes:
        return hmac.new(self._key, manifest, hashlib.sha256).hexdigest().encode()


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file."""
    # Copies: safetensors refuses tensors that share memory, as a batch and its slice do.
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})


def _find_spoiled(tensors: Mapping[str, Tensor]) -> str | None:
    """The first that holds NaN; infinity may be meant, as a bound or in a mask."""
    floats = ((key, tensor.contiguous()) for key, tensor in tensors.items() if tensor.is_floating_point())
    pieces = ((key, piece.float() if piece.itemsize == 1 else piece) for key, one in floats for piece in blocks(one))
    return next((key for key, piece in pieces if piece.isnan().any()), None)
