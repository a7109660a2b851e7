"""Many runs of one job: a grid of settings, several seeds; in processes of this machine, or on a Ray cluster."""

from thinwire.lab.sweep.executing import EXECUTORS, WorkerLost, each
from thinwire.lab.sweep.grid import Grid, Trial
from thinwire.lab.sweep.running import Swept, Tried, sweep
from thinwire.lab.sweep.tallying import averaged

__all__ = ["EXECUTORS", "Grid", "Swept", "Trial", "Tried", "WorkerLost", "averaged", "each", "sweep"]
