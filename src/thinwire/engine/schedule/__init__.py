"""WHEN we talk: exchange now, or learn from what we already have.

A schedule is a frozen value of a recipe; `open()` gives a plan, which says for each round what to do, in
order: `Send`, `Await`, `Local`; where the update comes first `Update`, `Local`, `Refresh`. It decides; the protocol
carries it out.
"""

from thinwire.engine.schedule.cached_steps import CachedSteps, Overlap, Workset
from thinwire.engine.schedule.exchange_cache import CosineTally, ExchangeCache, cosine_weights
from thinwire.engine.schedule.plan import (
    Action,
    Await,
    EveryBatch,
    Local,
    LocalSteps,
    OneWay,
    Plan,
    Ready,
    Refresh,
    Send,
    Update,
    UpdateFirstPlan,
)
from thinwire.engine.schedule.step_controller import MOST_LEVEL, BatchOutcome, Pace

Schedule = EveryBatch | LocalSteps | CachedSteps | OneWay

__all__ = ["CachedSteps", "EveryBatch", "LocalSteps", "OneWay", "Overlap", "Schedule", "Workset"]
__all__ += ["MOST_LEVEL", "Action", "Await", "BatchOutcome", "Local", "Pace", "Plan", "Ready", "Send"]
__all__ += ["Refresh", "Update", "UpdateFirstPlan"]
__all__ += ["CosineTally", "ExchangeCache", "cosine_weights"]
