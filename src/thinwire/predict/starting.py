"""From what a user names, a job file or a run's folder, to this party's half."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thinwire.align import Ids, ristretto
from thinwire.align import Terms as AlignTerms
from thinwire.errors import BadInput
from thinwire.job.own_part import OwnPart, read_own_part
from thinwire.network.aligning import AligningParty
from thinwire.predict.new_rows import new_ids
from thinwire.predict.own_models import NewRows
from thinwire.predict.run_folder import RunFolder
from thinwire.predict.table import IdTable
from thinwire.transport.certificates import Credentials, Revocations, load_credentials
from thinwire.transport.signing import CertifiedIdentity
from thinwire.types import PartyName

__all__ = ["Named", "aligned_rows", "identity_of", "look_beside", "named"]


@dataclass(frozen=True)
class Named:
    """A party's part of the job, and the path to its run; the path may lead elsewhere later."""

    own: OwnPart
    run: Path

    def folder(self) -> RunFolder:
        """Where the path leads now."""
        return RunFolder(self.run.resolve())


def named(source: Path, name: PartyName, run: Path | None, settings: Sequence[str] = ()) -> Named:
    """A folder is a run with its own job.toml; a file is a job whose run lies in runs/<job>/<name> unless given."""
    look_beside(source)
    if source.is_dir():
        if run is not None:
            raise BadInput(f"{source} is a run's folder already; leave --run out")
        return Named(read_own_part(source / "job.toml", name, settings), source)
    own = read_own_part(source, name, settings)
    return Named(own, run or Path("runs") / source.stem / name)


def look_beside(source: Path) -> None:
    """A module of one's own is looked for beside the job file, and where the command runs; a run holds no code."""
    for folder in (source if source.is_dir() else source.parent, Path()):
        text = str(folder.resolve())
        if text not in sys.path:
            sys.path.append(text)


def identity_of(own: OwnPart) -> CertifiedIdentity:
    """Who this party is to the others, where keys are agreed on."""

    def credentials() -> Credentials:
        return load_credentials(own.certificate_files, own.certificate_names[own.me])

    return CertifiedIdentity(credentials, own.certificate_names, Revocations(own.revoked))


def aligned_rows(own: OwnPart, features: Path | None, ids: Path | None, say: Callable[[str], None]) -> NewRows:
    """This party's half of a private alignment of new rows: nobody shows an id that the others lack."""
    if features is None and not own.is_label_party:
        raise BadInput(f"--features {own.me}=FILE is missing: where this party's new rows are")
    with own.text.located():
        found = new_ids(own.section, features, ids)
    if found is None:
        raise BadInput("new rows are brought into one order by their ids, and the section of this party names none")
    party = AligningParty(own, "rows to score", say)
    with ristretto() as backend:
        alignment = party.align(found, backend, AlignTerms(), lambda *_: None)
    texts = [text.decode() for text in found.texts(alignment.rows)]
    outside = frozenset(_texts(found)) - set(texts)
    return NewRows(features, alignment.rows, alignment.digest, IdTable(texts, outside))


def _texts(ids: Ids) -> list[str]:
    return [text.decode() for text in ids.texts(np.arange(len(ids)))]
