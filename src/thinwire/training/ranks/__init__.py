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
