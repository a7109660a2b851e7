"""WHEN we talk: exchange now, or learn from what we already have.

A schedule is a frozen value of a recipe; `open()` gives a plan, which says for each round what to do, in
order: `Send`, `Await`, `Local`. It decides; the conversation carries it out.
"""

from thinwire.schedule.actions import Action, Await, Local, Plan, Ready, Send
from thinwire.schedule.cached_steps import CachedSteps, Overlap
from thinwire.schedule.every_batch import EveryBatch
from thinwire.schedule.local_steps import LocalSteps
from thinwire.schedule.pace import Learned
from thinwire.schedule.shelf import Shelf
from thinwire.schedule.tally import CosineTally
from thinwire.schedule.weighting import cosine_weights
from thinwire.schedule.workset import Workset

Schedule = EveryBatch | LocalSteps | CachedSteps

__all__ = [
    "Action",
    "Await",
    "CachedSteps",
    "CosineTally",
    "EveryBatch",
    "Learned",
    "Local",
    "LocalSteps",
    "Overlap",
    "Plan",
    "Ready",
    "Schedule",
    "Send",
    "Shelf",
    "Workset",
    "cosine_weights",
]
