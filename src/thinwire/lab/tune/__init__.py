"""A recipe for a link: measure what computing costs, probe a few recipes, propose one, and check the promise."""

from thinwire.lab.tune.link_text import parsed_link
from thinwire.lab.tune.predicting import Aim, Prediction
from thinwire.lab.tune.probing import Probed
from thinwire.lab.tune.tuned import Tuned
from thinwire.lab.tune.tuning import Asked, Watch, tune

__all__ = ["Aim", "Asked", "Prediction", "Probed", "Tuned", "Watch", "parsed_link", "tune"]
