"""The key of encrypted run folders: a file of 32 random bytes, which only its owner may read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from thinwire.at_rest.atomic_file import new_file, sync_folder, write_all
from thinwire.errors import BadInput

__all__ = ["KEY_BYTES", "BadKey", "new_key", "read_key"]

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
        raise BadKey(f"{path} is there already, and runs may need it; give another name") from None
    except OSError as error:
        raise BadKey(f"{path} cannot be written: {error.strerror}") from None


def read_key(path: Path) -> bytes:
    """32 bytes, or 64 hex digits. Raises FileNotFoundError; BadKey for all else that is wrong."""
    try:
        # A named pipe would otherwise wait for its writer for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadKey(f"{path} is no plain file; name the key file itself")
            if status.st_mode & 0o077:
                raise BadKey(
                    f"{path}: others than its owner may read or change this key (mode "
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
            f"{path} is no key: a key is {KEY_BYTES} bytes, or {2 * KEY_BYTES} hex digits; `thinwire key FILE` makes "
            "a new one"
        )
    return key
