"""Many runs of one job: a grid of settings, several seeds; in processes of this machine, or on a Ray cluster."""

from thinwire.lab.runner import EXECUTORS, WorkerLost, run_each
from thinwire.lab.sweep.page import averaged
from thinwire.lab.sweep.trials import Grid, Swept, Trial, Tried, sweep

__all__ = ["EXECUTORS", "Grid", "Swept", "Trial", "Tried", "WorkerLost", "averaged", "run_each", "sweep"]
