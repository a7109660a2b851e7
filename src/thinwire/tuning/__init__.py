"""A recipe for a link: measure what computing costs, probe a few recipes, propose one, and check the promise."""

from thinwire.tuning.link_text import parsed_link
from thinwire.tuning.predicting import Aim, Prediction
from thinwire.tuning.probing import Probed
from thinwire.tuning.tuned import Tuned
from thinwire.tuning.tuning import Asked, Watch, tune

__all__ = ["Aim", "Asked", "Prediction", "Probed", "Tuned", "Watch", "parsed_link", "tune"]
