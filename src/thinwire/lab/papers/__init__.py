"""The papers' experiments, run again with bytes counted on the wire, and their claims checked."""

from thinwire.lab.papers.experiment import Experiment, at_size, experiment_files, read_experiment
from thinwire.lab.papers.report import written
from thinwire.lab.papers.results import CurveResult, Verdict, judged, results_of
from thinwire.lab.papers.runs import Plan, run_all

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
