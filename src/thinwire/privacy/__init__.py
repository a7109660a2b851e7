"""WHO SEES WHAT: who may see labels, sums instead of single embeddings, and the keys behind both.

keys = in_process_keys(parties)
sender = SecureSum().open_party("bank", parties, keys["bank"])
sealed = sender.seal(counts, context)          # at each party
total = open_sum(all_sealed, context)          # at the label party, which learns the sum and no summand
"""

from thinwire.privacy.context import Context, ring_modulus
from thinwire.privacy.keys import NoiseKey, in_process_keys
from thinwire.privacy.labels import Labels
from thinwire.privacy.secure_sum import Aggregation, Plain, SecureSum, SecureSumSender, open_sum

__all__ = [
    "Aggregation",
    "Context",
    "Labels",
    "NoiseKey",
    "Plain",
    "SecureSum",
    "SecureSumSender",
    "in_process_keys",
    "open_sum",
    "ring_modulus",
]
