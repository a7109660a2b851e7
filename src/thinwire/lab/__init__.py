"""LAB: research on top of it: sweeps, tuning, ablations, attacks, the papers' experiments and their data sets.

May import every floor up to predict.
"""
