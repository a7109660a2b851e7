"""The papers' experiments, run again with bytes counted on the wire, and their claims checked."""

from thinwire.reproduce.expecting import Verdict, judged
from thinwire.reproduce.experiment import Experiment, at_size
from thinwire.reproduce.files import experiment_files, read_experiment
from thinwire.reproduce.output import written
from thinwire.reproduce.running import Plan, run_all
from thinwire.reproduce.statistics import CurveResult, results_of

__all__ = [
    "CurveResult",
    "Experiment",
    "Plan",
    "Verdict",
    "at_size",
    "experiment_files",
    "judged",
    "read_experiment",
    "results_of",
    "run_all",
    "written",
]
