"""A feature party on several processes or machines: its rows are shared out, its bottom model is on every rank.

rank 0                                       every other rank
has the wide-area stream, surrogates,        has its rows and a copy of the weights, nothing else
worksets, optimiser, log, checkpoints

EMBED round      ------------------------->  h = f(x[its rows of the round])
h_0 .. h_n in the round's order  <---------  its part of h
LEARN            ------------------------->
its part of dL/dh  ----------------------->  h.backward(dL/dh)
sum of the gradients; step  <--------------  its gradient
weights          ------------------------->  takes them over
"""

from thinwire.training.ranks.bottom import GroupBottom
from thinwire.training.ranks.follower import follow
from thinwire.training.ranks.group import Group, Table, TensorTable, pieces
from thinwire.training.ranks.part import Part, Shares
from thinwire.training.ranks.ranks import GroupBroken, Order, Ranks, is_group, joined

__all__ = [
    "Group",
    "GroupBottom",
    "GroupBroken",
    "Order",
    "Part",
    "Ranks",
    "Shares",
    "Table",
    "TensorTable",
    "follow",
    "is_group",
    "joined",
    "pieces",
]
