"""A recipe for a link: measure what computing costs, probe a few recipes, propose one, and check the promise."""

from thinwire.lab.tune.outcome import TuningResult, parse_link
from thinwire.lab.tune.probe import Aim, Prediction, ProbeResult
from thinwire.lab.tune.tuner import TuningRequest, Watch, tune

__all__ = ["Aim", "Prediction", "ProbeResult", "TuningRequest", "TuningResult", "Watch", "parse_link", "tune"]
