"""The public path of learners; they live in `thinwire.engine.models`."""

from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.regression import Linear, RegressionTop
from thinwire.engine.models.scorecard import Scorecard, ScorecardTop

__all__ = ["BoostedTrees", "Linear", "RegressionTop", "Scorecard", "ScorecardTop"]
