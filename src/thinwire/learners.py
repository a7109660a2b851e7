"""The public path of learners; they live in `thinwire.engine.models`."""

from thinwire.engine.models import BoostedTrees, Linear, RegressionTop, Scorecard, ScorecardTop

__all__ = ["BoostedTrees", "Linear", "RegressionTop", "Scorecard", "ScorecardTop"]
