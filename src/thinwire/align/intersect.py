"""An alignment of parties that are all in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any

from thinwire.align.alignment import Alignment, Terms
from thinwire.align.bucket_files import Workspace, open_workspace
from thinwire.align.conversation import Backend, Conversation
from thinwire.align.ids import Ids, OwnerIds, normalize_ids, normalize_owner_ids
from thinwire.align.protocol import NO_GROUPS, align_feature_party, align_label_party
from thinwire.align.ristretto import ristretto
from thinwire.base.errors import BadParameter
from thinwire.base.types import PartyName, Progress
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.channel.simulated import Simulation

NO_WORKSPACES: Mapping[PartyName, Workspace] = MappingProxyType({})


class AlignmentResult(dict[PartyName, Alignment]):
    """Each party's alignment, as a dict, and the ledger of what was sent for it.

    Args:
        alignments: by party.
        ledger: bytes and messages.

    Examples:
        >>> found = tw.align.intersect({"shop": ["a", "b"], "bank": ["b"]}, label_party="shop")
        >>> sorted(found)
        ['bank', 'shop']
    """

    def __init__(self, alignments: Mapping[PartyName, Alignment], ledger: Ledger) -> None:
        super().__init__(alignments)
        self.ledger = ledger


def intersect(
    ids_by_party: Mapping[PartyName, Iterable[Any] | Ids],
    label_party: PartyName,
    *,
    min_overlap: int | float = 1,
    workers: int | None = None,
    backend: Backend | None = None,
    on_progress: Progress | None = None,
    groups: Mapping[PartyName, Iterable[Any] | OwnerIds] = NO_GROUPS,
    workspaces: Mapping[PartyName, Workspace] = NO_WORKSPACES,
) -> AlignmentResult:
    """Which rows all parties have, and in which common order; by the same messages as between real parties.

    `groups`: for each party that holds owners of rows (users, of ratings), whose each row of the label party's is, in
    the words of that party's ids. Its alignment then has one of its own rows for each common row.

    Sets over a million ids are matched in buckets on disk, in temporary folders unless a party has a workspace.

    `on_progress` is told what the label party has done; `workers` is for the default backend.

    Args:
        ids_by_party: every party's ids, in the order of its rows.
        label_party: one of them.
        min_overlap: fewest common rows: a whole number, or a fraction of each party's rows.
        workers: processes of the default backend.
        backend: of the elliptic curve's arithmetic.
        on_progress: called with the ids done and in all.
        groups: owners of the label party's rows, in the words of a party's ids.
        workspaces: folders for the buckets of large sets, by party.

    Returns:
        For every party the rows of its own table, in the common order.

    Raises:
        BadParameter: fewer than two parties, or a label party that is none of them.
        BadIds: an id that is empty or occurs twice; the message names the row.
        TooLittleOverlap: fewer common rows than `min_overlap`.

    Examples:
        >>> aligned = tw.align.intersect({"shop": ["a", "b", "c"], "bank": ["c", "a"]}, label_party="shop", workers=1)
        >>> len(aligned["bank"].rows)
        2
    """
    if label_party not in ids_by_party:
        raise BadParameter(f"label_party {label_party!r} is not among the parties, {', '.join(ids_by_party)}")
    if len(ids_by_party) < 2:
        raise BadParameter(f"an alignment needs at least two parties, but there is only {label_party!r}")
    terms = Terms(min_overlap)
    ids = {
        party: values if isinstance(values, Ids) else normalize_ids(values, f"ids of {party!r}")
        for party, values in ids_by_party.items()
    }
    features = [party for party in ids if party != label_party]
    if unknown := [party for party in groups if party not in features]:
        raise BadParameter(f"groups: {unknown[0]!r} is not a feature party; there are {', '.join(features)}")
    owners = {
        party: values if isinstance(values, OwnerIds) else normalize_owner_ids(values, f"owners of rows at {party!r}")
        for party, values in groups.items()
    }
    simulation = Simulation([*features, label_party], run=0, label_party=label_party)
    with ExitStack() as stack:
        used = stack.enter_context(ristretto(workers)) if backend is None else backend
        rooms = {party: stack.enter_context(open_workspace(workspaces.get(party))) for party in ids}

        def program(party: PartyName, mine: Ids) -> Callable[[], Alignment]:
            talk = Conversation(party, label_party, features, simulation.channel(party), list(owners))
            if party != label_party:
                return partial(align_feature_party, mine, talk, used, terms, workspace=rooms[party])
            told: dict[str, Any] = {} if on_progress is None else {"on_progress": on_progress}
            return partial(align_label_party, mine, talk, used, terms, groups=owners, workspace=rooms[party], **told)

        found = simulation.run({party: program(party, mine) for party, mine in ids.items()})
    return AlignmentResult({party: found[party] for party in ids}, simulation.ledger)
