"""WHAT IT COSTS: the epsilon of what a feature party lets others see. Importing this does not import torch.

    exposure = Exposure(PoissonBinomialRelease(trials=16, beta=0.15, width=16), Parties(4), Frozen())
    ledger = PrivacyLedger("bank", exposure, rows=60_000, budget=Budget(epsilon=8))
    ledger.charge_release(rows)      # before they leave; BudgetExceeded if they must not
    ledger.spent()                   # every observer's epsilon, and what is not protected

The formulas are exact, docs/privacy_accounting.md says what they mean. What has no proof is infinite.
"""

from thinwire.engine.privacy.accounting.budget import DEFAULT_DELTA, Budget, BudgetExceeded, Observer, Parties
from thinwire.engine.privacy.accounting.figures import (
    NoisePlan,
    NoisePlans,
    PrivacyTarget,
    Usefulness,
    assess_usefulness,
    plan_noise,
)
from thinwire.engine.privacy.accounting.ledger import (
    BottomModel,
    Exact,
    Exposure,
    Frozen,
    Mechanism,
    PoissonBinomialRelease,
    PrivacyLedger,
    PrivacyLoss,
    PrivatelyTrained,
    RandomizedResponseRelease,
    TrainedOnRawRows,
    Uses,
    compute_privacy_losses,
    epsilon_to_json,
    list_conditions,
    list_limitations,
)
from thinwire.engine.privacy.accounting.renyi import Rdp, compose, convert_to_epsilon, poisson_binomial_epsilon

__all__ = ["DEFAULT_DELTA", "BottomModel", "Budget", "BudgetExceeded", "Exact", "Exposure", "Frozen"]
__all__ += ["Mechanism", "NoisePlan", "NoisePlans", "Observer", "Parties", "PoissonBinomialRelease"]
__all__ += ["PrivacyLedger", "PrivacyLoss", "PrivacyTarget", "PrivatelyTrained"]
__all__ += ["RandomizedResponseRelease", "Rdp", "TrainedOnRawRows"]
__all__ += ["Usefulness", "Uses", "assess_usefulness", "compose", "compute_privacy_losses", "convert_to_epsilon"]
__all__ += ["epsilon_to_json", "list_conditions", "list_limitations", "plan_noise", "poisson_binomial_epsilon"]
