"""PREDICT: scores: in one process, over the network, or on-line (`online`); nobody shows its features.

May import every floor up to train.
"""
