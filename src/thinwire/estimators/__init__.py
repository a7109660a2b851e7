"""Vertical learning as scikit-learn has it, for notebooks: the parties are simulated in this process."""

from thinwire.estimators.vertical import VerticalClassifier, VerticalRegressor

__all__ = ["VerticalClassifier", "VerticalRegressor"]
