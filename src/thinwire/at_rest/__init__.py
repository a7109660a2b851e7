"""What a run's folder holds on disk: readable files, and files that nobody reads without the run's key."""

from thinwire.at_rest.files import PLAIN, EncryptedFiles, Files, PlainFiles
from thinwire.at_rest.folder import begin_files, files_of
from thinwire.at_rest.key_file import BadKey, new_key, read_key
from thinwire.at_rest.records import DamagedFile

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
