"""WHO SEES WHAT: who may see labels, sums instead of single embeddings, and the keys behind both.

agreement = KeyAgreement("bank", Subject(run, recipe_digest, parties), identity, secret)
keys = agreement.pair_keys(agreement.verified(offers_of_the_others))
sender = SecureSum().open_party("bank", parties, keys)
sealed = sender.seal(symbols, adding, context)    # at each party; adding = compressor.adding(round)
total = open_sum(all_sealed, adding, context)     # at the label party, which learns the sum and no summand

Names load on first use (PEP 562): the accounting does not need torch, and `thinwire privacy` does not import it.
"""

from typing import TYPE_CHECKING

from thinwire.base.extras import load_lazily

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

__all__ = ["Aggregation", "Budget", "BudgetExceeded", "Context", "DPBottom", "Frozen", "KeyAgreement", "LabelDP"]
__all__ += ["Labels", "Marvell", "MaxNorm", "NoDefence", "NoiseKey", "Observer", "PartyIdentity", "Plain"]
__all__ += ["PrivacyLedger", "SecureSum", "SecureSumSender", "Subject", "TrainedOnRawRows", "accounting"]
__all__ += ["in_process_identities", "open_sum", "poisson_binomial_epsilon", "ring_modulus"]

__getattr__ = load_lazily(__name__, __all__, ("accounting", "defences", "dp_bottom", "keys", "secure_sum"))


def __dir__() -> list[str]:
    return sorted(__all__)
