"""A recipe for a link: measure what computing costs, probe a few recipes, propose one, and check the promise."""

from thinwire.lab.tune.outcome import Tuned, parsed_link
from thinwire.lab.tune.probe import Aim, Prediction, Probed
from thinwire.lab.tune.tuner import Asked, Watch, tune

__all__ = ["Aim", "Asked", "Prediction", "Probed", "Tuned", "Watch", "parsed_link", "tune"]
