"""The key of encrypted run folders, and `encryption.json`: whether a folder is encrypted, and with which key.

A key is a file of 32 random bytes, which only its owner may read. `encryption.json` stands in a folder before
anything else does, and stays. It names the file of the key, and holds what tells that key from others; nothing in it
helps to read the rest.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from thinwire.base.errors import BadInput, BadState
from thinwire.storage import layout
from thinwire.storage.atomic_file import make_folder, map_write_errors, new_file, replace_file, sync_folder, write_all
from thinwire.storage.encrypted_files import MARK, PLAIN, DamagedFile, Files, RunKey
from thinwire.storage.json_file import dump_indented_json

KEY_BYTES = 32
_MOST_BYTES = 4096  # of a file that may hold one


class BadKey(BadInput):
    """The key of an encrypted run is missing, is another one, or cannot be used."""


def new_key(path: Path) -> None:
    """Makes a key from the system's randomness, as hex digits; never over a file that is there."""
    text = secrets.token_hex(KEY_BYTES).encode() + b"\n"
    try:
        with new_file(path) as descriptor:
            write_all(descriptor, [text])
        sync_folder(path.parent)
    except FileExistsError:
        raise BadKey(f"{path} already exists, and runs may need it; choose another name") from None
    except OSError as error:
        raise BadKey(f"{path} cannot be written: {error.strerror}") from None


def read_key(path: Path) -> bytes:
    """32 bytes, or 64 hex digits. Raises FileNotFoundError; BadKey for all else that is wrong."""
    try:
        # A named pipe would otherwise wait for its writer for ever.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadKey(f"{path} is not a regular file; name the key file itself")
            if status.st_mode & 0o077:
                raise BadKey(
                    f"{path}: users other than its owner can read or change this key (mode "
                    f"{stat.S_IMODE(status.st_mode):04o}); make it private: chmod 600 {path}"
                )
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadKey(f"{path} cannot be read: {error.strerror}") from None
    if len(data) == KEY_BYTES:
        return data
    try:
        key = bytes.fromhex(data.strip().decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadKey(
            f"{path} is not a key: a key is {KEY_BYTES} bytes, or {2 * KEY_BYTES} hex digits; `thinwire key FILE` "
            "makes a new one"
        )
    return key


FORMAT = 1
VARIABLE = "THINWIRE_KEY"
_OF_A_RUN = (layout.DATA, layout.PRIVATE, layout.EVENTS)  # the first that a run writes


@dataclass(frozen=True)
class _Marker:
    run: bytes
    check: str
    key: str  # the file it was in


def open_folder(folder: Path, key: Path | None = None) -> Files:
    """The folder's own files, as they are or encrypted; `key` is where the job says that the key is."""
    marker = _read_marker(folder)
    if marker is None:
        _require_readable(folder)
        if key is not None and any((folder / name).exists() for name in _OF_A_RUN):
            raise BadInput(
                f"the run in {folder} started without encryption and continues that way; remove [encryption], or "
                "start another run in a new --out"
            )
        return PLAIN
    return Files(folder, _fitting(folder, marker, key)[0])


def _require_readable(folder: Path) -> None:
    """A folder that has lost its marker is none without encryption."""
    for path in (folder / name for name in _OF_A_RUN if (folder / name).is_file()):
        try:
            with path.open("rb") as file:
                begins = file.read(len(MARK))
        except OSError:
            continue
        if begins == MARK:
            raise DamagedFile(path, f"is encrypted, and {layout.ENCRYPTION}, which describes how, is missing")


def begin_files(folder: Path, key: Path | None) -> Files:
    """The same for a run that begins or goes on: with a key, a new folder is encrypted from now on."""
    marker = _read_marker(folder)
    if marker is None:
        found = open_folder(folder, key)
        if key is None:
            return found
        run = secrets.token_bytes(16)
        fresh = RunKey(_key_at(key), run)
        _write_marker(folder, _Marker(run, fresh.check(), str(key.resolve())))
        return Files(folder, fresh)
    fitting, path = _fitting(folder, marker, key)
    if path == key and marker.key != str(key.resolve()):  # it has moved, and the job says where to
        _write_marker(folder, _Marker(marker.run, marker.check, str(key.resolve())))
    return Files(folder, fitting)


def _fitting(folder: Path, marker: _Marker, key: Path | None) -> tuple[RunKey, Path]:
    """The first of the keys named for it that is the folder's, and its file."""
    others = []
    for path in _places(marker, key):
        try:
            found = RunKey(read_key(path), marker.run)
        except FileNotFoundError:
            continue
        if found.check() == marker.check:
            return found, path
        others.append(str(path))
    if others:
        raise BadKey(
            f"{folder} is encrypted with another key than that in {' or '.join(others)}; name the file of the right "
            f"one: {VARIABLE}=FILE"
        )
    raise BadKey(
        f"{folder} is encrypted, and its key is not there: {', '.join(map(str, _places(marker, key)))}. Bring it "
        f"back, or say where it is: {VARIABLE}=FILE"
    )


def _places(marker: _Marker, key: Path | None) -> list[Path]:
    named = (key, os.environ.get(VARIABLE), marker.key)
    return list(dict.fromkeys(Path(place) for place in named if place))


def _key_at(path: Path) -> bytes:
    try:
        return read_key(path)
    except FileNotFoundError:
        raise BadKey(f"encryption.key: there is no file {path}; `thinwire key {path}` makes a new key") from None


def _read_marker(folder: Path) -> _Marker | None:
    path = folder / layout.ENCRYPTION
    try:
        held = json.loads(path.read_bytes())
        if held["format"] == FORMAT:
            return _Marker(bytes.fromhex(held["run"]), str(held["check"]), str(held["key"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise BadState(
            f"{path} is damaged; restore it from a backup: without it nothing in the folder can be read"
        ) from None
    raise BadState(f"{path} has format {held['format']}, this version reads {FORMAT}; use the version that wrote it")


def _write_marker(folder: Path, marker: _Marker) -> None:
    held = {"format": FORMAT, "run": marker.run.hex(), "check": marker.check, "key": marker.key}
    data = dump_indented_json(held)
    with map_write_errors(folder / layout.ENCRYPTION, len(data)):
        make_folder(folder)
        replace_file(folder / layout.ENCRYPTION, data)
