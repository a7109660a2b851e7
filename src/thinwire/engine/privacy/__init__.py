"""WHO SEES WHAT: who may see labels, sums instead of single embeddings, and the keys behind both.

agreement = KeyAgreement("bank", Subject(run, recipe_digest, parties), identity, secret)
keys = agreement.pair_keys(agreement.verified(offers_of_the_others))
sender = SecureSum().open_party("bank", parties, keys)
sealed = sender.seal(symbols, adding, context)    # at each party; adding = compressor.adding(round)
total = open_sum(all_sealed, adding, context)     # at the label party, which learns the sum and no summand

Names load on first use (PEP 562): the accounting does not need torch, and `thinwire privacy` does not import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire.engine.privacy import accounting
    from thinwire.engine.privacy.accounting import (
        Budget,
        BudgetExceeded,
        Frozen,
        Observer,
        PrivacyLedger,
        TrainedOnRawRows,
        poisson_binomial_epsilon,
    )
    from thinwire.engine.privacy.defences import LabelDP, Labels, Marvell, MaxNorm, NoDefence
    from thinwire.engine.privacy.dp_bottom import DPBottom
    from thinwire.engine.privacy.keys import (
        Context,
        KeyAgreement,
        NoiseKey,
        PartyIdentity,
        Subject,
        in_process_identities,
        ring_modulus,
    )
    from thinwire.engine.privacy.secure_sum import Aggregation, Plain, SecureSum, SecureSumSender, open_sum

_NAMES = {
    "Aggregation": "secure_sum",
    "Budget": "accounting",
    "BudgetExceeded": "accounting",
    "Context": "keys",
    "DPBottom": "dp_bottom",
    "Frozen": "accounting",
    "PartyIdentity": "keys",
    "KeyAgreement": "keys",
    "LabelDP": "defences",
    "Labels": "defences",
    "Marvell": "defences",
    "MaxNorm": "defences",
    "NoDefence": "defences",
    "NoiseKey": "keys",
    "Observer": "accounting",
    "Plain": "secure_sum",
    "PrivacyLedger": "accounting",
    "SecureSum": "secure_sum",
    "SecureSumSender": "secure_sum",
    "Subject": "keys",
    "TrainedOnRawRows": "accounting",
    "in_process_identities": "keys",
    "open_sum": "secure_sum",
    "poisson_binomial_epsilon": "accounting",
    "ring_modulus": "keys",
}

__all__ = [
    "Aggregation",
    "Budget",
    "BudgetExceeded",
    "Context",
    "DPBottom",
    "Frozen",
    "KeyAgreement",
    "LabelDP",
    "Labels",
    "Marvell",
    "MaxNorm",
    "NoDefence",
    "NoiseKey",
    "Observer",
    "PartyIdentity",
    "Plain",
    "PrivacyLedger",
    "SecureSum",
    "SecureSumSender",
    "Subject",
    "TrainedOnRawRows",
    "accounting",
    "in_process_identities",
    "open_sum",
    "poisson_binomial_epsilon",
    "ring_modulus",
]


def __getattr__(name: str) -> Any:
    if name == "accounting":
        return import_module("thinwire.engine.privacy.accounting")
    if name in _NAMES:
        return getattr(import_module(f"thinwire.engine.privacy.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'thinwire.privacy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
