"""Bottom models, fusion, top models, and what trains and judges them.

Any torch module works as a bottom or top model; these are the ones that job files know by name. Weights
are drawn from torch's global generator, so ``torch.manual_seed`` before the constructor fixes them.
"""

from torch import nn

from thinwire.engine.models import losses, metrics
from thinwire.engine.models.encoders import Bins, Pretrained, PrincipalDirections, RandomProjections, RawColumns
from thinwire.engine.models.fusion import FUSIONS, check_fusion, fuse, fusion_width
from thinwire.engine.models.image_networks import CNN, MVCNN, ResNet18, ViewCNN
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.losses import (
    LOSSES,
    Loss,
    WeightedLoss,
    binary_cross_entropy,
    cross_entropy,
    poisson,
    squared_error,
    with_class_weights,
)
from thinwire.engine.models.metrics import METRICS, Metric, metric
from thinwire.engine.models.networks import (
    LSTM,
    MLP,
    BiasTop,
    DeepTower,
    InteractionTop,
    LinearBottom,
    LinearTop,
    MLPTop,
    ScaledCosine,
    WideAndDeep,
)
from thinwire.engine.models.optimizers import (
    OPTIMIZERS,
    SGD,
    STEP_SIZES,
    AdaGrad,
    Adam,
    Constant,
    Cosine,
    InverseRoot,
    OptimizerSpec,
    OverRound,
    StepMilestones,
    StepSize,
    set_lr,
)
from thinwire.engine.models.pretraining import Pretraining
from thinwire.engine.models.regression import Linear, RegressionTop
from thinwire.engine.models.scorecard import Scorecard, ScorecardTop
from thinwire.engine.models.step_bounds import (
    bound_cvfl_step,
    bound_efvfl_linear_step,
    bound_efvfl_step,
    bound_pbm_step,
    choose_celu_step,
)

MODELS: dict[str, type[nn.Module]] = {
    "linear": LinearBottom,
    "mlp": MLP,
    "cnn": CNN,
    "resnet18": ResNet18,
    "mvcnn": MVCNN,
    "view_cnn": ViewCNN,
    "lstm": LSTM,
    "deep_tower": DeepTower,
    "wide_and_deep": WideAndDeep,
    "boosted_trees": BoostedTrees,
    "principal_directions": PrincipalDirections,
    "random_projections": RandomProjections,
    "bins": Bins,
    "pretrained": Pretrained,
    "raw_columns": RawColumns,
    "scorecard": Scorecard,
    "bias_top": BiasTop,
    "interaction_top": InteractionTop,
    "linear_top": LinearTop,
    "mlp_top": MLPTop,
    "scaled_cosine": ScaledCosine,
    "regression_top": RegressionTop,
    "scorecard_top": ScorecardTop,
}

__all__ = ["CNN", "LSTM", "MLP", "MODELS", "MVCNN", "BiasTop", "Bins", "BoostedTrees", "DeepTower"]
__all__ += ["LinearBottom", "LinearTop", "MLPTop", "PrincipalDirections", "RawColumns", "ResNet18", "ScaledCosine"]
__all__ += ["InteractionTop", "RandomProjections", "ViewCNN", "WideAndDeep"]
__all__ += ["Linear", "Pretrained", "Pretraining", "RegressionTop", "Scorecard", "ScorecardTop"]
__all__ += ["FUSIONS", "check_fusion", "fuse", "fusion_width"]
__all__ += ["LOSSES", "Loss", "WeightedLoss", "binary_cross_entropy", "cross_entropy", "losses", "poisson"]
__all__ += ["squared_error", "with_class_weights"]
__all__ += ["METRICS", "Metric", "metric", "metrics"]
__all__ += ["OPTIMIZERS", "SGD", "STEP_SIZES", "AdaGrad", "Adam", "Constant", "Cosine", "InverseRoot"]
__all__ += ["OptimizerSpec", "OverRound", "StepMilestones", "StepSize", "set_lr"]
__all__ += ["bound_cvfl_step", "bound_efvfl_linear_step", "bound_efvfl_step", "bound_pbm_step", "choose_celu_step"]
