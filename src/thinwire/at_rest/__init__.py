"""What a run's folder holds on disk: readable files, and files that nobody reads without the run's key."""

from thinwire.at_rest.encrypted_files import PLAIN, DamagedFile, EncryptedFiles, Files, PlainFiles
from thinwire.at_rest.encryption_key import BadKey, begin_files, files_of, new_key, read_key

__all__ = [
    "PLAIN",
    "BadKey",
    "DamagedFile",
    "EncryptedFiles",
    "Files",
    "PlainFiles",
    "begin_files",
    "files_of",
    "new_key",
    "read_key",
]
