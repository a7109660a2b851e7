"""A feature party's several processes: how they begin, each with its own rows."""

from __future__ import annotations

from thinwire.base.errors import BadInput
from thinwire.engine.privacy.accounting.exposure import Frozen
from thinwire.engine.privacy.dp_bottom import APART, DPBottom, find_row_coupling
from thinwire.engine.programs.parties import FeatureParty
from thinwire.engine.protocols.bottom import Learner, NoOptimizer
from thinwire.job.party_view import PartyView
from thinwire.training.party.party_run import batches_of
from thinwire.training.ranks import Order, Part, Ranks, follow, joined
from thinwire.training.ranks.rank_share import Share, load_share

_MOST_WAITS = 7  # a peer that is connected has six times wait_seconds, and one before that
_COMPUTING_SECONDS = 600.0


def joined_for(own: PartyView) -> Ranks:
    """This party's processes, met; refuses what only one process can do, before any data is read."""
    if own.is_label_party:
        raise BadInput(
            f"{own.me!r} is the label party, which runs in one process: start it without torchrun; only a feature "
            "party's bottom model can be on several"
        )
    if isinstance(own.settings.training, DPBottom):
        raise BadInput("job.training: DPBottom adds its noise in one process; start this party without torchrun")
    return joined(_MOST_WAITS * own.network.wait_seconds + _COMPUTING_SECONDS)


def first_share(own: PartyView, ranks: Ranks) -> Share:
    """At rank 0: its own rows, once all ranks are known to have read the same tables."""
    share = load_share(own, ranks)
    require_separate_rows(own, share.party)
    share.group.compare(share.features, share.test_features)
    return share


def follow_party(own: PartyView, ranks: Ranks) -> None:
    """At every other rank: reads its rows once rank 0 says so, and works until rank 0 says that it is over."""
    if ranks.told().order is not Order.READ:
        return
    share = load_share(own, ranks)
    party, group = share.party, share.group
    group.show(share.features, share.test_features)
    batches = batches_of(own, group.rows)
    device = own.settings.device
    party.bottom.to(device).train()
    if isinstance(own.settings.training, Frozen):
        party.bottom.requires_grad_(False).eval()
    # A name of its own: dropout must not draw alike for different rows.
    name = f"{own.me}/bottom/rank {ranks.rank}"
    learner = Learner(name, party.bottom, NoOptimizer(), own.settings.seed, batches.rounds)
    tests = None if party.test_features is None else party.test_features.to(device)
    follow(
        ranks, Part(learner, ranks.rank, group.shares, party.features.to(device), tests), batches, party.width or 0
    )


def require_separate_rows(own: PartyView, party: FeatureParty) -> None:
    """Refuses a bottom model in which rows see each other: a part of a batch would come out otherwise."""
    like = next(party.bottom.parameters(), party.features)
    why = find_row_coupling(party.bottom, party.features[:3].to(like.device))
    if why is not None:
        raise BadInput(
            f"party.{own.me}.model: {why}; its rows would lie in several processes, and come out otherwise than in "
            f"one. Start this party without torchrun, or {APART}"
        )
