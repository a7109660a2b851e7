"""What only this party may know of a run, and what must never go back: `private.json` and `charges.jsonl`.

The charges of the privacy ledger are on disk, a line each, before anything leaves."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from threading import Lock
from typing import Any

from thinwire.base.errors import BadInput, BadState, ThinwireError
from thinwire.storage import layout
from thinwire.storage.atomic_file import append_file, make_folder, map_write_errors, new_file, open_descriptor
from thinwire.storage.encrypted_files import PLAIN_RECORDS, Files, Wrapped
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.json_file import canonical_json

FORMAT = 2  # 1 counted no charges
_KEY_BYTES = 32
Persist = Callable[[Callable[[], None]], None]  # calls what it is given, and again where waiting may help


class Replaced(ThinwireError):
    """A newer process of this party has begun; this one must end."""


@dataclass(frozen=True)
class _Fields:
    incarnation: int = 0  # how often a process of this party has begun
    mac_key: str = field(default_factory=lambda: secrets.token_hex(_KEY_BYTES), repr=False)
    noise_secret: str = field(default_factory=lambda: secrets.token_hex(_KEY_BYTES), repr=False)
    run_nonce: str | None = None
    generation: int = 0  # of the newest checkpoint
    aborted: str | None = None
    finished: bool = False
    charges: dict[str, int] = field(default_factory=dict)  # lines that each record of charges has held


class PrivateState:
    """Reads and writes `private.json`. Every change is on the disk before the call returns."""

    def __init__(self, folder: Path, fields: _Fields, files: Files) -> None:
        self._folder = folder
        self._fields = fields
        self._files = files
        self._lock = Lock()
        self._charges: dict[str, ChargeLog] = {}

    @classmethod
    def open(cls, folder: Path, files: Files | None = None) -> PrivateState:
        """The folder's, or a new one with fresh secrets from the system. `files` are the folder's, where at hand."""
        path = folder / layout.PRIVATE
        files = files or open_folder(folder)
        if path.exists():
            return cls(folder, _read(path, files), files)
        made = cls(folder, _Fields(), files)
        with map_write_errors(folder):
            make_folder(folder)
        made._write(made._fields)
        return made

    def __repr__(self) -> str:
        return f"PrivateState({str(self._folder)!r}, {self._fields!r})"

    @property
    def incarnation(self) -> int:
        return self._fields.incarnation

    @property
    def mac_key(self) -> bytes:
        return bytes.fromhex(self._fields.mac_key)

    @property
    def noise_secret(self) -> bytes:
        return bytes.fromhex(self._fields.noise_secret)

    @property
    def run_nonce(self) -> str | None:
        return self._fields.run_nonce

    @property
    def generation(self) -> int:
        return self._fields.generation

    @property
    def abort_reason(self) -> str | None:
        return self._fields.aborted

    @property
    def is_finished(self) -> bool:
        return self._fields.finished

    def begin_incarnation(self) -> int:
        """The number of this process: higher than that of any before, whatever a replaced one may still write."""
        number = max(self.incarnation, *(number for number, _ in _claims(self._folder)), 0) + 1
        with map_write_errors(self._folder):
            while not _claimed(self._folder, number):
                number += 1
        self._write(replace(self._fields, incarnation=number))
        for other, path in _claims(self._folder):
            if other < number:
                path.unlink(missing_ok=True)
        return number

    def set_noise_secret(self, secret: bytes) -> None:
        self._change(noise_secret=secret.hex())

    def set_run_nonce(self, nonce: str | None) -> None:
        self._change(run_nonce=nonce)

    def set_generation(self, generation: int) -> None:
        self._change(generation=generation, charges=self._count_charges())

    def set_aborted(self, reason: str | None) -> None:
        self._change(aborted=reason)

    def set_finished(self, finished: bool) -> None:
        self._change(finished=finished)

    def open_charges(self, path: Path, persist: Persist = lambda write: write()) -> ChargeLog:
        """A record of charges in this folder; refuses one that has lost lines."""
        log = self._charges[path.name] = ChargeLog(path, self._files.lines(path), persist)
        known = _read(self._folder / layout.PRIVATE, self._files).charges.get(path.name, 0)
        if log.lines < known:
            raise BadState(
                f"{path} holds {log.lines} charges of the privacy ledger, and has held {known}: its end was cut "
                "off, or it is an older copy; restore the newest one, or start a new run in another folder"
            )
        return log

    def keep_charges(self) -> None:
        """From now on no charge that was recorded can be taken away unnoticed."""
        # Parties of a simulated run may predict in a process each.
        with map_write_errors(self._folder), open_descriptor(self._folder, os.O_RDONLY | os.O_DIRECTORY) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self._change(charges=self._count_charges())

    def _count_charges(self) -> dict[str, int]:
        return {name: log.lines for name, log in self._charges.items()}

    def _change(self, **changes: Any) -> None:
        with self._lock:  # an abort comes from another thread than a checkpoint
            on_disk = _read(self._folder / layout.PRIVATE, self._files)
            if on_disk.incarnation > self.incarnation:
                raise Replaced(
                    f"{self._folder}: process {on_disk.incarnation} of this party has taken over from this one, "
                    f"which was {self.incarnation}; nothing was written"
                )
            counted = (on_disk.charges, self._fields.charges, changes.pop("charges", {}))
            most = {name: max(one.get(name, 0) for one in counted) for known in counted for name in known}
            self._write(replace(self._fields, **changes, charges=most))

    def _write(self, fields: _Fields) -> None:
        held = {"format": FORMAT, **asdict(fields)}
        held["check"] = _check(held)
        data = canonical_json(held)
        with map_write_errors(self._folder / layout.PRIVATE, len(data)):
            self._files.replace(self._folder / layout.PRIVATE, data)
        self._fields = fields


def _read(path: Path, files: Files) -> _Fields:
    way_out = "restore it from a backup, or start a new run in another folder"
    try:
        if path.stat().st_mode & 0o077:
            raise BadInput(f"{path} holds secrets, but other users can read it; make it private: chmod 600 {path}")
        held = json.loads(files.read(path))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadState(f"{path} is damaged: it is not JSON; {way_out}") from None
    if isinstance(held, dict) and isinstance(held.get("format"), int) and held["format"] > FORMAT:
        raise BadState(
            f"{path} has format {held['format']}, this version reads {FORMAT}; use the version that wrote it"
        )
    names = {"format", "check", *(field.name for field in fields(_Fields))}
    names -= {"charges"} if isinstance(held, dict) and held.get("format") == 1 else set()
    if not isinstance(held, dict) or held.keys() != names or held.pop("check") != _check(held):
        raise BadState(f"{path} is damaged: its checksum does not match; {way_out}")
    del held["format"]
    return _Fields(**held)


def _check(held: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(held)).hexdigest()


def _claims(folder: Path) -> list[tuple[int, Path]]:
    found = ((path.name.removeprefix("incarnation-"), path) for path in folder.glob("incarnation-*"))
    return [(int(number), path) for number, path in found if number.isdecimal()]


def _claimed(folder: Path, number: int) -> bool:
    """Only one process can make this file, even if a replaced one writes an old number into private.json."""
    try:
        with new_file(folder / f"incarnation-{number:06d}", sync=False):
            return True
    except FileExistsError:
        return False


class ChargeLog:
    """Charges by name and draw, each once. A replayed round finds its charge there, and is not charged again.

    `wrapped` says how they lie on the disk: as they are, or encrypted. `persist` may write again where it failed.
    """

    def __init__(self, path: Path, wrapped: Wrapped = PLAIN_RECORDS, persist: Persist = lambda it: it()) -> None:
        self._path = path
        self._wrapped = wrapped
        self._persist = persist
        self._known: dict[str, tuple[str, ...]] = {}  # the draws of each charge
        self.lines = 0
        self._end = 0  # of whole lines: a crash, or a full disk, may have cut off what follows
        for entry in self.entries():
            self._note(str(entry["charge"]), str(entry.get("draw", "")))

    def _note(self, charge: str, draw: str) -> None:
        self._known[charge] = (*self._known.get(charge, ()), draw)
        self.lines += 1

    def count_draws(self, charge: str, draw: str) -> int:
        return len({*self._known.get(charge, ()), draw})

    def record(self, charge: str, spent: Callable[[], dict[str, Any]], draw: str = "") -> None:
        """On disk once this returns."""
        if draw in self._known.get(charge, ()):
            return
        drawn = {"draw": draw} if draw else {}
        text = json.dumps({"charge": charge, **drawn, **spent()}, separators=(",", ":")).encode()
        line = b"".join((*self._wrapped.wrap(self.lines, [text]), b"\n"))
        self._persist(lambda: self._append(line))
        self._end += len(line)
        self._note(charge, draw)

    def _append(self, line: bytes) -> None:
        with map_write_errors(self._path, len(line)):
            append_file(self._path, line, self._end)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every charge that was recorded. Raises BadState where the record is damaged."""
        data = self._path.read_bytes() if self._path.exists() else b""
        self._end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._end].splitlines()):
            try:
                entry = json.loads(self._wrapped.unwrap(number, line))
                _ = entry["charge"]
            except (ValueError, KeyError, TypeError):
                raise BadState(
                    f"{self._path}, line {number + 1}: the record of the privacy ledger is damaged; restore it from "
                    "a backup, or start a new run in another folder"
                ) from None
            yield entry
