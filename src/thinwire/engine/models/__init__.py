"""Bottom models, fusion, top models, and what trains and judges them.

Any torch module works as a bottom or top model; these are the ones that job files know by name. Weights
are drawn from torch's global generator, so ``torch.manual_seed`` before the constructor fixes them.
"""

from torch import nn

from thinwire.engine.models import losses, metrics
from thinwire.engine.models.bottom_models import CNN, LSTM, MVCNN, ResNet18
from thinwire.engine.models.fusion import FUSIONS, check_fusion, fuse, fusion_width
from thinwire.engine.models.losses import (
    LOSSES,
    Loss,
    WeightedLoss,
    binary_cross_entropy,
    cross_entropy,
    squared_error,
    with_class_weights,
)
from thinwire.engine.models.metrics import METRICS, Metric, metric
from thinwire.engine.models.mlp import MLP, LinearBottom, LinearTop, MLPTop, ScaledCosine
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
from thinwire.engine.models.wide_and_deep import DeepTower, WideAndDeep

MODELS: dict[str, type[nn.Module]] = {
    "linear": LinearBottom,
    "mlp": MLP,
    "cnn": CNN,
    "resnet18": ResNet18,
    "mvcnn": MVCNN,
    "lstm": LSTM,
    "deep_tower": DeepTower,
    "wide_and_deep": WideAndDeep,
    "linear_top": LinearTop,
    "mlp_top": MLPTop,
    "scaled_cosine": ScaledCosine,
}

__all__ = [
    "CNN",
    "FUSIONS",
    "LOSSES",
    "LSTM",
    "METRICS",
    "MLP",
    "MODELS",
    "MVCNN",
    "OPTIMIZERS",
    "SGD",
    "STEP_SIZES",
    "AdaGrad",
    "Adam",
    "Constant",
    "Cosine",
    "DeepTower",
    "InverseRoot",
    "LinearBottom",
    "LinearTop",
    "Loss",
    "MLPTop",
    "Metric",
    "OptimizerSpec",
    "OverRound",
    "ResNet18",
    "ScaledCosine",
    "StepMilestones",
    "StepSize",
    "WeightedLoss",
    "WideAndDeep",
    "binary_cross_entropy",
    "check_fusion",
    "cross_entropy",
    "fuse",
    "fusion_width",
    "losses",
    "metric",
    "metrics",
    "set_lr",
    "squared_error",
    "with_class_weights",
]
