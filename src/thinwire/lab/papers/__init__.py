"""The papers' experiments, run again with bytes counted on the wire, and their claims checked."""

from thinwire.lab.papers.expecting import Verdict, judged
from thinwire.lab.papers.experiment import Experiment, at_size
from thinwire.lab.papers.files import experiment_files, read_experiment
from thinwire.lab.papers.output import written
from thinwire.lab.papers.running import Plan, run_all
from thinwire.lab.papers.statistics import CurveResult, results_of

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
