"""TRAIN: a run from start to end: simulated in this process, or one real party (`party`), or several ranks (`ranks`).

May import every floor up to report.
"""
