"""Which models belong to a run at the other parties, once it was served: `serving.json` in the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock

from pydantic import ValidationError

from thinwire.at_rest import PLAIN, Files
from thinwire.at_rest.json_file import canonical_json
from thinwire.errors import BadState
from thinwire.predict.introduction import Offered
from thinwire.types import PartyName

__all__ = ["Pins"]


class Pins:
    """What each party offered first for a run; its model may not change after that, its default may.

    `files` are those of the run's folder: a default is a mean of embeddings.
    """

    def __init__(self, file: Path | None, files: Files = PLAIN) -> None:
        self._file = file
        self._files = files
        self._lock = Lock()
        self._held: dict[str, dict[PartyName, Offered]] = {}
        if file is not None and file.exists():
            self._held = _read(file, files)

    def hash(self, run: str, party: PartyName) -> str | None:
        found = self._held.get(run, {}).get(party)
        return None if found is None else found.hash

    def offered(self, run: str, party: PartyName) -> Offered | None:
        """What a party that is away offered before, where it stated a default embedding."""
        found = self._held.get(run, {}).get(party)
        return found if found is not None and found.default is not None else None

    def note(self, party: PartyName, offered: Offered) -> None:
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


def _read(file: Path, files: Files) -> dict[str, dict[PartyName, Offered]]:
    try:
        told = json.loads(files.read(file))
        return {
            str(run): {str(party): Offered.model_validate(one) for party, one in held.items()}
            for run, held in told.items()
        }
    except (OSError, ValueError, AttributeError, ValidationError) as error:
        raise BadState(
            f"{file} is damaged ({error}); remove it, and parties are taken at their word once more"
        ) from None
