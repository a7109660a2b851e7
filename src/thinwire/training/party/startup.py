"""From a party's own part of a job to a run that is ready to connect."""

from __future__ import annotations

import tomllib
from pathlib import Path

from thinwire.base.errors import BadInput
from thinwire.engine.programs.parties import collect_metadata
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.init_from import InitFrom
from thinwire.job.job_loader import LabelData
from thinwire.job.job_snapshot import digest_tables, require_same_text, save_text
from thinwire.job.party_view import PartyView, count_rows
from thinwire.storage import layout
from thinwire.storage.folder_lock import FolderLock
from thinwire.storage.run_directory import RunDirectory
from thinwire.storage.run_facts import EarlierRun
from thinwire.training.party.feature_role import FeatureRole
from thinwire.training.party.label_role import LabelRole
from thinwire.training.party.party_checkpoints import InitialWeights, PartyCheckpoints
from thinwire.training.party.party_run import Audience, PartyRole, PartyRun
from thinwire.training.party.session import PartySession, PartySizes
from thinwire.training.ranks.rank_share import load_first_share
from thinwire.training.ranks.ranks import Ranks


def open_party_run(
    own: PartyView, folder: Path, audience: Audience, beginning: InitFrom | None = None, ranks: Ranks | None = None
) -> PartyRun:
    """Reads this party's data, refuses a folder of another job or of changed data, and opens the run.

    `beginning`: an earlier run of this party's whose weights it takes over. `ranks`: this is the first of several
    processes; the others `follow_party`.
    """
    if beginning is not None:
        beginning.require_no_guarantee(own.recipe, own.settings.training)
        EarlierRun(beginning.folder)  # is it there?
    lock = FolderLock(folder)
    taken = lock.acquire()
    if taken is not None:
        audience.say(f"process {taken} was stopped; this one takes its place")
    share = None if ranks is None else load_first_share(own, ranks)
    data = own.load_data() if share is None else share.data
    rows, held_out = count_rows(data) if share is None else (share.group.rows, share.group.held_out_rows)
    validation, tests = (held_out.get(which, 0) for which in HeldOut)
    sizes = PartySizes(rows, validation, tests, **own.row_digests(), width=data.width or 0)
    _keep(
        own, folder, digest_tables(own.me, data) if share is None else share.digests(own.me), collect_metadata(data)
    )
    session = PartySession(own, lock, folder, sizes, audience.say)
    checkpoints = PartyCheckpoints(session)
    weights = InitialWeights(session, checkpoints.loaded, beginning)
    group = None if share is None else share.group
    role: PartyRole
    if isinstance(data, LabelData):
        role = LabelRole(session, weights, data, audience, group)
    else:
        role = FeatureRole(session, weights, data, group)
    return PartyRun(session, checkpoints, role, None if own.is_label_party else audience.round)


def _keep(own: PartyView, folder: Path, digests: dict[str, str], kept: dict[str, str]) -> None:
    text = own.format_document()
    if (folder / layout.JOB).exists():  # the last to be written
        require_same_text(folder, text, digests)
        began = tomllib.loads((folder / layout.JOB).read_text())["job"]["epochs"]
        if began != own.settings.epochs:
            raise BadInput(
                f"job.epochs is {own.settings.epochs:g}, but the run in {folder} began with {began:g}; across "
                "organisations the length of a run is fixed: use the same value, or a different --out"
            )
    else:
        save_text(folder, text, digests)
        RunDirectory(folder).keep(own.me, kept)
