"""What a model's outputs mean, and how a table of them names its columns."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor

from thinwire.models.losses import Weighted, binary_cross_entropy, cross_entropy, squared_error

__all__ = ["Outputs"]


class Outputs(Enum):
    """By the loss that the model was trained with."""

    CLASSES = "classes"  # a logit a class
    PROBABILITY = "probability"  # one logit
    VALUE = "value"  # the value itself
    RAW = "outputs"  # a loss of one's own: nothing is known

    @classmethod
    def of(cls, loss: Any) -> Outputs:
        plain = loss.loss if isinstance(loss, Weighted) else loss
        known: dict[Any, Outputs] = {
            cross_entropy: cls.CLASSES,
            binary_cross_entropy: cls.PROBABILITY,
            squared_error: cls.VALUE,
        }
        return known.get(plain, cls.RAW)

    def columns(self, width: int) -> tuple[str, ...]:
        match self:
            case Outputs.CLASSES:
                return tuple(f"probability_{one}" for one in range(width))
            case Outputs.PROBABILITY:
                return ("probability",)
            case Outputs.VALUE:
                return ("value",)
        return tuple(f"output_{one}" for one in range(width))

    def shown(self, outputs: Tensor) -> Tensor:
        """Probabilities or values, [rows, columns]; row by row."""
        table = outputs if outputs.dim() == 2 else outputs.reshape(len(outputs), -1)
        match self:
            case Outputs.CLASSES:
                return torch.softmax(table, dim=1)
            case Outputs.PROBABILITY:
                return torch.sigmoid(table)
        return table
