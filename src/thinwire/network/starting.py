"""From a party's own part of a job to a run that is ready to connect."""

from __future__ import annotations

import tomllib
from pathlib import Path

from thinwire.at_rest import layout
from thinwire.errors import BadInput
from thinwire.group import Ranks
from thinwire.job.init_from import InitFrom
from thinwire.job.job import embedding_width
from thinwire.job.job_snapshot import require_same_text, save_text
from thinwire.job.party_view import PartyView
from thinwire.network.feature_run import FeatureRun
from thinwire.network.grouping import first_share
from thinwire.network.label_run import LabelRun
from thinwire.network.party_run import Audience, Held, PartyRun
from thinwire.party import FeatureParty
from thinwire.party.description import kept_of
from thinwire.runs import Earlier, FolderLock, RunDirectory

__all__ = ["party_run"]


def party_run(
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
        beginning.require_no_guarantee(own.recipe, own.training)
        Earlier(beginning.folder)  # is it there?
    lock = FolderLock(folder)
    taken = lock.acquire()
    if taken is not None:
        audience.say(f"process {taken.pid} was stopped; this one takes its place")
    ids, test_ids = own.row_ids(), own.test_row_ids()
    digests = {
        "row_ids": None if ids is None else ids.digest,
        "test_row_ids": None if test_ids is None else test_ids.digest,
    }
    if own.is_label_party:
        data = own.load_label_data()
        tests = 0 if data.test_labels is None else len(data.test_labels)
        held = Held(len(data.labels), tests, **digests, width=data.width or 0)
        _keep(own, folder, own.data_digests(data), kept_of(data))
        return LabelRun(own, lock, folder, held, data, audience, beginning)
    if ranks is not None:
        share = first_share(own, ranks)
        held = Held(share.group.rows, share.group.test_rows, **digests, width=_width(own, share.party))
        _keep(own, folder, share.digests(), kept_of(share.party))
        return FeatureRun(own, lock, folder, held, share.party, audience, beginning=beginning, group=share.group)
    party = own.load_features()
    tests = 0 if party.test_features is None else len(party.test_features)
    held = Held(len(party.features), tests, **digests, width=_width(own, party))
    _keep(own, folder, own.data_digests(party), kept_of(party))
    return FeatureRun(own, lock, folder, held, party, audience, beginning=beginning)


def _width(own: PartyView, party: FeatureParty) -> int:
    return embedding_width(f"party.{own.me}.model:", party.bottom, party.features)


def _keep(own: PartyView, folder: Path, digests: dict[str, str], kept: dict[str, str]) -> None:
    text = own.resolved_text()
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
