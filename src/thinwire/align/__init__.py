"""ALIGN: private alignment: which rows do the parties share, and in which common order.

May import base, engine, storage and net.

Each party brings the ids of its rows. Points of ids, blinded under fresh keys and shuffled, travel between the label
party and each feature party; ids and hashes of ids never do. What is revealed, to parties that follow the protocol
and may look at whatever they see (semi-honest):

- the number of a party's ids: a feature party's to the label party, the label party's to all;
- to the label party: which of its ids each single feature party has, so every pairwise overlap, not only the common
  one. A `min_overlap` does not undo that; it keeps the rows from the feature parties;
- to a feature party: which of its ids all parties have, and nothing about the others;
- where a feature party holds owners of rows (users, of ratings), its ids are matched with the different owners' ids
  of the label party; it also learns which of its ids each common row belongs to, so how many rows each of them has;
- to somebody who could read the link, which is encrypted: sizes, and a digest that a guess of all common ids at once
  could be tested against.

A party that does not follow the protocol can bring ids that it has guessed, and learns whether they match; aligning
again with other ids shows what has changed. Nothing of this sort can hide that from whoever chooses his own ids.

    aligned = align.intersect({"shop": shop_ids, "bank": bank_ids}, label_party="shop")    # all in one process
    aligned["bank"].rows                                                                   # of the bank's table

    with align.ristretto() as backend:                                                     # one real party
        talk = align.Conversation("bank", "shop", ["bank"], channel)
        alignment = align.align_feature_party(align.normalize_ids(ids), talk, backend)
"""

from thinwire.align.alignment import (
    Alignment,
    AlignmentsDiffer,
    NoOverlap,
    Terms,
    TooLittleOverlap,
    WorkersFailed,
    read_alignment,
    write_alignment,
)
from thinwire.align.bucket_files import Workspace, store_ids
from thinwire.align.conversation import Backend, Conversation
from thinwire.align.ids import Ids, OwnerIds, normalize_ids, normalize_owner_ids
from thinwire.align.intersect import AlignmentResult, intersect
from thinwire.align.protocol import align_feature_party, align_label_party
from thinwire.align.ristretto import RistrettoBackend, ristretto
from thinwire.base.types import Progress

__all__ = ["Alignment", "AlignmentResult", "AlignmentsDiffer", "Backend", "Conversation", "Ids", "NoOverlap"]
__all__ += ["Progress", "RistrettoBackend", "Terms", "TooLittleOverlap", "WorkersFailed", "align_feature_party"]
__all__ += ["align_label_party", "intersect", "normalize_ids", "read_alignment", "ristretto", "write_alignment"]
__all__ += ["OwnerIds", "Workspace", "normalize_owner_ids", "store_ids"]
