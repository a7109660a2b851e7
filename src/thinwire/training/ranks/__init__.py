"""A party on several processes or machines: its rows are shared out, its bottom model is on every rank.

rank 0                                       every other rank
has the wide-area stream, surrogates,        has its rows, the weights and an optimiser, nothing else
worksets, top model, log, checkpoints

EMBED round      ------------------------->  h = f(x[its rows of the round])
h_0 .. h_n in the round's order  <---------  its part of h
LEARN            ------------------------->
its part of dL/dh  ----------------------->  h.backward(n dL/dh), in which DistributedDataParallel takes the mean
step             <----- of gradients ----->  step
"""
