"""The public path of learners; they live in `thinwire.engine.models`."""

from thinwire.engine.models import (
    Bins,
    BoostedTrees,
    Linear,
    Pretrained,
    Pretraining,
    PrincipalDirections,
    RandomProjections,
    RawColumns,
    RegressionTop,
    Scorecard,
    ScorecardTop,
)

__all__ = ["Bins", "BoostedTrees", "Linear", "Pretrained", "Pretraining", "PrincipalDirections", "RandomProjections"]
__all__ += ["RawColumns", "RegressionTop", "Scorecard", "ScorecardTop"]
