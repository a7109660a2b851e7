"""The public path of learners; they live in `thinwire.engine.models`."""

from thinwire.engine.models.encoders import Bins, Pretrained, PrincipalDirections, RandomProjections, RawColumns
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.pretraining import Pretraining
from thinwire.engine.models.regression import Linear, RegressionTop

__all__ = ["Bins", "BoostedTrees", "Linear", "Pretrained", "Pretraining", "PrincipalDirections"]
__all__ += ["RandomProjections", "RawColumns", "RegressionTop"]
