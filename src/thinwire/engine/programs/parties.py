"""The parties of a job, as their owners describe them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput, BadTensor, NotFinite
from thinwire.engine.models.losses import cross_entropy, with_class_weights
from thinwire.engine.models.optimizers import OptimizerSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInput(f"party {name!r}: a name has letters, digits, - and _, 64 at most, and starts with no sign")
    if name == "top":
        raise BadInput("party 'top': that name stands for the top model; choose another")


def to_float_tensor(party: str, field: str, values: Any) -> Tensor:
    """Features as a float32 tensor [N, ...], finite."""
    tensor = torch.as_tensor(values) if isinstance(values, (np.ndarray, Tensor)) else torch.tensor(values)
    tensor = tensor.to(torch.float32) if not tensor.is_floating_point() or tensor.dtype == torch.float64 else tensor
    if tensor.dim() < 1 or len(tensor) == 0:
        raise BadTensor(f"party {party!r}: {field} must have one row at least, got shape {tuple(tensor.shape)}")
    if tensor.dim() == 1:
        tensor = tensor[:, None]
    if not bool(torch.isfinite(tensor).all()):
        place = torch.nonzero(~torch.isfinite(tensor))[0].tolist()
        raise NotFinite(float(tensor[tuple(place)]), place, f"party {party!r}: {field} [row, column]")
    return tensor


class LabelMeaning(Protocol):
    """What the labels' numbers stand for."""

    @property
    def says(self) -> str:
        """In a sentence."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names; none where labels are numbers."""

    def to_json(self) -> str: ...


class FeaturePreparation(Protocol):
    """How a table became features."""

    def to_json(self) -> str: ...

    @property
    def row_dependent_columns(self) -> Sequence[str]:
        """Columns whose preparation follows from single rows."""

    @property
    def feature_places(self) -> Mapping[str, Sequence[int]]:
        """Which features each column became."""

    def describe(self) -> list[dict[str, Any]]: ...


def collect_metadata(party: object) -> dict[str, str]:
    """What belongs beside a party's model, as JSON: `preparation` of its table, `labels` for their coding."""
    found = {"preparation": getattr(party, "preparation", None), "labels": getattr(party, "coding", None)}
    return {name: part.to_json() for name, part in found.items() if part is not None}


@dataclass(eq=False)
class FeatureParty:
    """Holds columns and a bottom model; no labels."""

    name: str
    features: Any  # [N, ...]
    bottom: nn.Module
    test_features: Any = None
    optimizer: OptimizerSpec | None = None  # the job's unless given
    preparation: FeaturePreparation | None = None  # where the features come from a table of any columns
    width: int | None = field(default=None, init=False)  # of its embedding, once it was measured

    def __post_init__(self) -> None:
        check_name(self.name)
        self.features = to_float_tensor(self.name, "features", self.features)
        if self.test_features is not None:
            self.test_features = to_float_tensor(self.name, "test_features", self.test_features)
        if not isinstance(self.bottom, nn.Module):
            raise BadInput(f"party {self.name!r}: bottom must be a torch module, got {type(self.bottom).__name__}")


@dataclass(eq=False)
class LabelParty:
    """Holds the labels and the top model; may hold features and a bottom model too."""

    name: str
    labels: Any  # [N]
    top: nn.Module
    test_labels: Any = None
    features: Any = None
    test_features: Any = None
    bottom: nn.Module | None = None
    fusion: str = "sum"
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    class_weights: Sequence[float] | None = None
    optimizer: OptimizerSpec | None = None
    preparation: FeaturePreparation | None = None
    coding: LabelMeaning | None = None  # what the labels' numbers stand for

    def __post_init__(self) -> None:
        check_name(self.name)
        self.labels = self._labels("labels", self.labels)
        if self.test_labels is not None:
            self.test_labels = self._labels("test_labels", self.test_labels)
        if (self.features is None) != (self.bottom is None):
            raise BadInput(f"party {self.name!r}: features and bottom belong together; give both or neither")
        for table in ("features", "test_features"):
            if getattr(self, table) is not None:
                setattr(self, table, to_float_tensor(self.name, table, getattr(self, table)))
        if not isinstance(self.top, nn.Module):
            raise BadInput(f"party {self.name!r}: top must be a torch module, got {type(self.top).__name__}")
        if self.class_weights is not None:
            self.loss = with_class_weights(self.loss, self.class_weights)

    def _labels(self, field: str, values: Any) -> Tensor:
        tensor = torch.as_tensor(values)
        if tensor.dim() < 1 or len(tensor) == 0:
            raise BadTensor(f"party {self.name!r}: {field} must have one row at least")
        if tensor.is_floating_point():
            if not bool(torch.isfinite(tensor).all()):
                raise BadTensor(f"party {self.name!r}: {field} hold NaN or infinity")
            return tensor.float()
        return tensor.long()
