"""From a party's own part of a job to a run that is ready to connect."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

from thinwire.base.errors import BadInput
from thinwire.engine.programs.parties import collect_metadata
from thinwire.job.init_from import InitFrom
from thinwire.job.job_snapshot import require_same_text, save_text
from thinwire.job.party_view import PartyView
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
    own: PartyView,
    folder: Path,
    audience: Audience,
    beginning: InitFrom | None = None,
    ranks: Ranks | None = None,
) -> PartyRun:
    """Reads this party's data, refuses a folder of another job or of changed data, and opens the run.

    `beginning`: an earlier run of this party's whose weights it takes over. `ranks`: this is the first of a feature
    party's processes; the others `follow_party`.
    """
    if beginning is not None:
        beginning.require_no_guarantee(own.recipe, own.settings.training)
        EarlierRun(beginning.folder)  # is it there?
    lock = FolderLock(folder)
    taken = lock.acquire()
    if taken is not None:
        audience.say(f"process {taken.pid} was stopped; this one takes its place")
    ids, test_ids = own.row_ids(), own.test_row_ids()
    digests = {
        "row_ids": None if ids is None else ids.digest,
        "test_row_ids": None if test_ids is None else test_ids.digest,
    }

    def open_run(sizes: PartySizes, make_role: Callable[[PartySession, InitialWeights], PartyRole]) -> PartyRun:
        session = PartySession(own, lock, folder, sizes, audience.say)
        checkpoints = PartyCheckpoints(session)
        role = make_role(session, InitialWeights(session, checkpoints.loaded, beginning))
        return PartyRun(session, checkpoints, role, None if own.is_label_party else audience.round)

    if own.is_label_party:
        data = own.load_label_data()
        tests = 0 if data.test_labels is None else len(data.test_labels)
        sizes = PartySizes(len(data.labels), tests, **digests, width=data.width or 0)
        _keep(own, folder, own.data_digests(data), collect_metadata(data))
        return open_run(sizes, lambda session, weights: LabelRole(session, weights, data, audience))
    if ranks is not None:
        share = load_first_share(own, ranks)
        party, group = share.party, share.group
        sizes = PartySizes(group.rows, group.test_rows, **digests, width=party.width or 0)
        _keep(own, folder, share.digests(), collect_metadata(party))
        return open_run(sizes, lambda session, weights: FeatureRole(session, weights, party, group))
    party = own.load_features()
    tests = 0 if party.test_features is None else len(party.test_features)
    sizes = PartySizes(len(party.features), tests, **digests, width=party.width or 0)
    _keep(own, folder, own.data_digests(party), collect_metadata(party))
    return open_run(sizes, lambda session, weights: FeatureRole(session, weights, party))


def _keep(own: PartyView, folder: Path, digests: dict[str, str], kept: dict[str, str]) -> None:
    text = own.format_document()
    if (folder / layout.DATA).exists():  # the last to be written
        require_same_text(folder, text, digests)
        began = tomllib.loads((folder / layout.JOB).read_text())["job"]["epochs"]
        if began != own.settings.epochs:
            raise BadInput(
                f"job.epochs is {own.settings.epochs:g}, but the run in {folder} began with {began:g}; between "
                "organisations a run keeps its length: give the same, or another --out"
            )
    else:
        save_text(folder, text, digests)
        RunDirectory(folder).keep(own.me, kept)
