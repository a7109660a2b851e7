"""Many runs of one job: a grid of settings, several seeds; in processes of this machine, or on a Ray cluster."""

from thinwire.sweeps.executing import EXECUTORS, WorkerLost, each
from thinwire.sweeps.grid import Grid, Trial
from thinwire.sweeps.running import Swept, Tried, sweep
from thinwire.sweeps.tallying import averaged

__all__ = ["EXECUTORS", "Grid", "Swept", "Trial", "Tried", "WorkerLost", "averaged", "each", "sweep"]
