"""Many runs of one job: a grid of settings, several seeds; in processes of this machine, or on a Ray cluster."""

from thinwire.lab.runner import EXECUTORS, WorkerLost, run_each
from thinwire.lab.sweep.page import average_runs
from thinwire.lab.sweep.trials import Grid, SweepResult, Trial, TrialResult, sweep

__all__ = ["EXECUTORS", "Grid", "SweepResult", "Trial", "TrialResult", "WorkerLost", "average_runs", "run_each"]
__all__ += ["sweep"]
