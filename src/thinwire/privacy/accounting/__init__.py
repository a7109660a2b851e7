"""WHAT IT COSTS: the epsilon of what a feature party lets others see. Importing this does not import torch.

    exposure = Exposure(PoissonBinomialRelease(trials=16, beta=0.15, width=16), Parties(4), Frozen())
    ledger = PrivacyLedger("bank", exposure, rows=60_000, budget=Budget(epsilon=8))
    ledger.charge_release(rows)      # before they leave; BudgetExceeded if they must not
    ledger.spent()                   # every observer's epsilon, and what is not protected

The formulas are exact, docs/privacy_accounting.md says what they mean. What has no proof is infinite.
"""

from thinwire.privacy.accounting.exposure import (
    DEFAULT_DELTA,
    BottomModel,
    Budget,
    BudgetExceeded,
    Exact,
    Exposure,
    Frozen,
    Mechanism,
    Observer,
    Parties,
    PoissonBinomialRelease,
    PrivatelyTrained,
    TrainedOnRawRows,
    Uses,
)
from thinwire.privacy.accounting.figures import (
    Figure,
    Usefulness,
    conditions,
    epsilon_plain,
    figures,
    not_protected,
    usefulness,
)
from thinwire.privacy.accounting.ledger import PrivacyLedger
from thinwire.privacy.accounting.planner import Aim, Plan, Plans, plan
from thinwire.privacy.accounting.poisson_binomial import poisson_binomial_epsilon
from thinwire.privacy.accounting.renyi import Rdp, composed, epsilon_of

__all__ = [
    "DEFAULT_DELTA",
    "Aim",
    "BottomModel",
    "Budget",
    "BudgetExceeded",
    "Exact",
    "Exposure",
    "Figure",
    "Frozen",
    "Mechanism",
    "Observer",
    "Parties",
    "Plan",
    "Plans",
    "PoissonBinomialRelease",
    "PrivacyLedger",
    "PrivatelyTrained",
    "Rdp",
    "TrainedOnRawRows",
    "Usefulness",
    "Uses",
    "composed",
    "conditions",
    "epsilon_of",
    "epsilon_plain",
    "figures",
    "not_protected",
    "plan",
    "poisson_binomial_epsilon",
    "usefulness",
]
