"""From what a user names, a job file or a run's folder, to this party's half."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from thinwire.align import Alignment, Ids, read_alignment, ristretto, write_alignment
from thinwire.align import Terms as AlignTerms
from thinwire.align.party import AligningParty
from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.job.party_view import PartyView, read_party_view
from thinwire.job.row_selection import IdTable
from thinwire.net.grpc.service import Refused
from thinwire.predict.model_store import RunFolder
from thinwire.predict.party_models import NewRows
from thinwire.predict.rows import read_new_ids
from thinwire.storage import layout
from thinwire.storage.encrypted_files import Files


@dataclass(frozen=True)
class RunSource:
    """A party's part of the job, and the path to its run; the path may lead elsewhere later."""

    own: PartyView
    path: Path

    def folder(self) -> RunFolder:
        """Where the path leads now."""
        return RunFolder(self.path.resolve())


def find_run(source: Path, name: PartyName, run: Path | None, settings: Sequence[str] = ()) -> RunSource:
    """A folder is a run with its own job.toml; a file is a job whose run lies in runs/<job>/<name> unless given."""
    add_import_paths(source)
    if source.is_dir():
        if run is not None:
            raise BadInput(f"{source} is a run's folder already; leave --run out")
        return RunSource(read_party_view(source / layout.JOB, name, settings), source)
    own = read_party_view(source, name, settings)
    return RunSource(own, run or Path("runs") / source.stem / name)


def add_import_paths(source: Path) -> None:
    """A module of one's own is looked for beside the job file, and where the command runs; a run holds no code."""
    for folder in (source if source.is_dir() else source.parent, Path()):
        text = str(folder.resolve())
        if text not in sys.path:
            sys.path.append(text)


def align_new_rows(found: RunSource, features: Path | None, ids: Path | None, say: Callable[[str], None]) -> NewRows:
    """This party's half of a private alignment of new rows: nobody shows an id that the others lack.

    It is kept in the run's folder. A party that is started again with the same ids goes on with it, since the others,
    who are at work, would not align once more.
    """
    own = found.own
    if features is None and not own.is_label_party:
        raise BadInput(f"--features {own.me}=FILE is missing: where this party's new rows are")
    with own.text.locate_errors():
        own_ids = read_new_ids(own.section, features, ids)
    if own_ids is None:
        raise BadInput("new rows are brought into one order by their ids, and the section of this party names none")
    folder = found.folder()
    kept = folder.path / layout.NEW_ROWS / f"{own.me}.alignment"
    alignment = _kept(kept, folder.files, own, own_ids)
    if alignment is None:
        alignment = _align(own, own_ids, kept, say)
        kept.parent.mkdir(exist_ok=True)
        write_alignment(kept, alignment, folder.files)
    else:
        when = f"{alignment.when:%Y-%m-%d %H:%M} UTC"
        say(f"these ids were aligned on {when}: that holds; to align anew, all parties remove theirs: {kept}")
    texts = [text.decode() for text in own_ids.texts(alignment.rows)]
    outside = frozenset(own_ids.decode()) - set(texts)
    return NewRows(features, alignment.rows, alignment.digest, IdTable(texts, outside))


def _kept(file: Path, files: Files, own: PartyView, ids: Ids) -> Alignment | None:
    """The last alignment, where it was of these ids with these parties."""
    if not file.exists():
        return None
    found = read_alignment(file, files)
    parties = (*own.feature_parties, own.label_party)
    same = (found.me, found.parties, found.ids_digest) == (own.me, parties, ids.digest())
    return found if same else None


def _align(own: PartyView, ids: Ids, kept: Path, say: Callable[[str], None]) -> Alignment:
    try:
        with ristretto() as backend:
            return AligningParty(own.network_party, "rows to score", say).align(
                ids, backend, AlignTerms(), lambda *_: None
            )
    except Refused as error:
        raise BadInput(
            f"{error}. This party's ids are new ({kept.name}, the last alignment, is of others or not there). If the "
            "others go on with an earlier one, bring back the ids that were aligned then; or end all, remove "
            f"{layout.NEW_ROWS}/ from every party's run, and start them together"
        ) from None
