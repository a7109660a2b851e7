"""A feature party's several processes: how they begin, each with its own rows."""

from __future__ import annotations

from thinwire.conversations.learner import Learner, Untrained
from thinwire.errors import BadInput
from thinwire.group import Group, Order, Part, Ranks, follow, joined
from thinwire.job.job import embedding_width
from thinwire.job.own_part import OwnPart
from thinwire.network.party_run import batches_of
from thinwire.party import FeatureParty
from thinwire.privacy.dp_bottom import APART, DPBottom, Frozen, rows_seen_together

__all__ = ["first_of_group", "follow_party", "joined_for"]

_MOST_WAITS = 7  # a peer that is connected has six times wait_seconds, and one before that
_COMPUTING_SECONDS = 600.0


def joined_for(own: OwnPart) -> Ranks:
    """This party's processes, met; refuses what only one process can do, before any data is read."""
    if own.is_label_party:
        raise BadInput(
            f"{own.me!r} is the label party, which runs in one process: start it without torchrun; only a feature "
            "party's bottom model can be on several"
        )
    if isinstance(own.training, DPBottom):
        raise BadInput("job.training: DPBottom adds its noise in one process; start this party without torchrun")
    return joined(_MOST_WAITS * own.network.wait_seconds + _COMPUTING_SECONDS)


def first_of_group(own: OwnPart, ranks: Ranks, party: FeatureParty) -> Group:
    """At rank 0: all ranks have the same rows, and each keeps its own."""
    _require_separate_rows(own, party)
    group = _group(ranks, party)
    group.compare(party.features, party.test_features)
    group.keep_own_rows(party)
    return group


def follow_party(own: OwnPart, ranks: Ranks) -> None:
    """At every other rank: reads its rows once rank 0 says so, and works until rank 0 says that it is over."""
    if ranks.told().order is not Order.READ:
        return
    party = own.load_features()
    group = _group(ranks, party)
    width = embedding_width(f"party.{own.me}.model:", party.bottom, party.features)
    group.show(party.features, party.test_features)
    group.keep_own_rows(party)
    batches = batches_of(own, group.rows)
    device = own.settings.device
    party.bottom.to(device).train()
    if isinstance(own.training, Frozen):
        party.bottom.requires_grad_(False).eval()
    # A name of its own: dropout must not draw alike for different rows.
    name = f"{own.me}/bottom/rank {ranks.rank}"
    learner = Learner(name, party.bottom, Untrained(), own.settings.seed, batches.rounds)
    tests = None if party.test_features is None else party.test_features.to(device)
    follow(ranks, Part(learner, ranks.rank, group.shares, party.features.to(device), tests), batches, width)


def _group(ranks: Ranks, party: FeatureParty) -> Group:
    return Group(ranks, len(party.features), 0 if party.test_features is None else len(party.test_features))


def _require_separate_rows(own: OwnPart, party: FeatureParty) -> None:
    like = next(party.bottom.parameters(), party.features)
    why = rows_seen_together(party.bottom, party.features[:3].to(like.device))
    if why is not None:
        raise BadInput(
            f"party.{own.me}.model: {why}; its rows would lie in several processes, and come out otherwise than in "
            f"one. Start this party without torchrun, or {APART}"
        )
