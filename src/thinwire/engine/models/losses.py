"""Losses per row, not reduced: cached steps weight single rows, and the batch's average comes later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.compress.parameters import require_number

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels [B]) -> [B]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(logits)[label] of each row.

    Args:
        logits: [B, C].
        labels: integers [B] from 0 to C - 1.

    Raises:
        BadTensor: shapes do not match, or a label is not a class.

    Examples:
        >>> import torch
        >>> tw.losses.cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
        tensor([1.3863])
    """
    if logits.dim() != 2:
        raise BadTensor(
            f"cross_entropy: the logits have shape {tuple(logits.shape)}, expected [B, C]; for one logit per row "
            "use binary_cross_entropy"
        )
    classes = _classes(labels, len(logits), logits.shape[1], "cross_entropy")
    return functional.cross_entropy(logits, classes, reduction="none")


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log sigmoid(+-logit) of each row.

    Args:
        logits: [B] or [B, 1].
        labels: 0 or 1.

    Raises:
        BadTensor: shapes do not match, or a label is neither 0 nor 1.

    Examples:
        >>> import torch
        >>> tw.losses.binary_cross_entropy(torch.zeros(2), torch.tensor([0, 1]))
        tensor([0.6931, 0.6931])
    """
    line = _line(logits, "binary_cross_entropy: the logits")
    classes = _classes(labels, len(line), 2, "binary_cross_entropy")
    return functional.binary_cross_entropy_with_logits(line, classes.to(line.dtype), reduction="none")


def squared_error(prediction: Tensor, labels: Tensor) -> Tensor:
    """(prediction - label)^2 of each row.

    Args:
        prediction: [B] or [B, 1].
        labels: [B] or [B, 1].

    Raises:
        BadTensor: shapes do not match.

    Examples:
        >>> import torch
        >>> tw.losses.squared_error(torch.tensor([1.0]), torch.tensor([3.0]))
        tensor([4.])
    """
    line = _line(prediction, "squared_error: the prediction")
    target = _line(labels, "squared_error: labels")
    _same_rows(len(line), len(target), "squared_error")
    return (line - target.to(line.dtype)).square()


def poisson(log_rate: Tensor, labels: Tensor) -> Tensor:
    """exp(output) - label * output of each row: counts, by the logarithm of their rate.

    Args:
        log_rate: [B] or [B, 1].
        labels: counts, 0 or more.

    Raises:
        BadTensor: shapes do not match, or a label is negative.

    Examples:
        >>> import torch
        >>> tw.losses.poisson(torch.zeros(1), torch.tensor([2.0]))
        tensor([1.])
    """
    line = _line(log_rate, "poisson: the output")
    target = _line(labels, "poisson: labels")
    _same_rows(len(line), len(target), "poisson")
    if bool((target < 0).any()):
        raise BadTensor(f"poisson: labels must be counts, 0 or more, got {target[target < 0][0].item():g}")
    return line.exp() - target.to(line.dtype) * line


@dataclass(frozen=True, slots=True)
class WeightedLoss:
    """A loss whose rows are weighted by class; `with_class_weights` builds and checks it.

    Args:
        loss: the plain loss.
        class_weights: one weight per class.

    Examples:
        >>> import torch
        >>> tw.losses.WeightedLoss(tw.losses.binary_cross_entropy, (1.0, 2.0))(torch.zeros(2), torch.tensor([0, 1]))
        tensor([0.6931, 1.3863])
    """

    loss: Loss
    class_weights: tuple[float, ...]

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        classes = outputs.shape[1] if outputs.dim() == 2 and outputs.shape[1] > 1 else 2
        if len(self.class_weights) != classes:
            raise BadParameter(f"weighted: class_weights has {len(self.class_weights)} values for {classes} classes")
        rows = self.loss(outputs, labels)
        weights = torch.tensor(self.class_weights, dtype=rows.dtype, device=rows.device)
        return rows * weights[labels.reshape(-1).long()]


def with_class_weights(loss: Loss, class_weights: Sequence[float]) -> Loss:
    """The loss with each row's value multiplied by its class's weight.

    Args:
        loss: `cross_entropy`, `binary_cross_entropy` or your own.
        class_weights: one weight per class, 0 or more, not all 0.

    Raises:
        BadParameter: a loss without classes, or weights that are not one number per class.

    Examples:
        >>> tw.losses.with_class_weights(tw.losses.cross_entropy, [1.0, 5.0]).class_weights
        (1.0, 5.0)
    """
    if loss in (squared_error, poisson):
        raise BadParameter(f"weighted: {name_loss(loss)} has no classes; use it without class_weights")
    weights = tuple(
        require_number("weighted", f"class_weights[{i}]", weight, at_least=0)
        for i, weight in enumerate(class_weights)
    )
    if len(weights) < 2 or not any(weights):
        raise BadParameter(f"weighted: class_weights needs one number per class, not all 0, got {list(weights)}")
    return WeightedLoss(loss, weights)


def find_base_rate(loss: Loss, labels: Tensor, width: int, weights: Tensor | None = None) -> Tensor:
    """The constant output with the lowest loss, [width]: the logits of class frequencies, or the mean; else 0.

    Args:
        loss: one of `tw.losses`, or your own.
        labels: [N].
        width: number of outputs.
        weights: row weights [N]; class weights of the loss count besides.

    Raises:
        BadTensor: labels that the loss does not accept.

    Examples:
        >>> import torch
        >>> tw.losses.find_base_rate(tw.losses.squared_error, torch.tensor([1.0, 3.0]), width=1).item()
        2.0
    """
    kind = Outputs.of(loss)
    if kind is Outputs.RAW:
        return torch.zeros(width)
    loss(torch.zeros(len(labels), width), labels)  # refuses labels that are none
    rows = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights.double()
    if kind in (Outputs.VALUE, Outputs.COUNT):
        mean = labels.flatten().double() @ rows / rows.sum()
        return (mean if kind is Outputs.VALUE else mean.clamp(min=0.5 / len(rows)).log()).expand(width)
    classes = labels.flatten().long()
    if isinstance(loss, WeightedLoss):
        rows = rows * torch.tensor(loss.class_weights, dtype=torch.float64)[classes]
    counts = torch.bincount(classes, rows, minlength=max(2, width))
    logs = (counts / counts.sum()).clamp(min=0.5 / len(classes)).log()  # a class without rows is rare, not impossible
    return logs if kind is Outputs.CLASSES else logs[1:] - logs[:1]


def find_plain_loss(loss: Any) -> Any:
    """The loss without its class weights.

    Args:
        loss: any loss.

    Examples:
        >>> weighted = tw.losses.with_class_weights(tw.losses.cross_entropy, [1.0, 5.0])
        >>> tw.losses.find_plain_loss(weighted) is tw.losses.cross_entropy
        True
    """
    return loss.loss if isinstance(loss, WeightedLoss) else loss


def _line(x: Tensor, name: str) -> Tensor:
    """[B, 1] as [B]: the two must never meet in one operation, or they broadcast to [B, B]."""
    if x.dim() == 2 and x.shape[1] == 1:
        return x[:, 0]
    if x.dim() != 1:
        raise BadTensor(f"{name} has shape {tuple(x.shape)}, expected [B] or [B, 1]")
    return x


def _classes(labels: Tensor, rows: int, count: int, name: str) -> Tensor:
    """Labels as int64 [B], every one a class from 0 to count - 1."""
    line = _line(labels, f"{name}: labels")
    _same_rows(rows, len(line), name)
    classes = line.long()
    lowest, highest = torch.aminmax(classes)
    if lowest.item() < 0 or highest.item() >= count or not (classes is line or torch.equal(classes.to(line), line)):
        wrong = (classes < 0) | (classes >= count) | (classes != line)
        raise BadTensor(f"{name}: labels must be integers from 0 to {count - 1}, got {line[wrong][0].item()}")
    return classes


def _same_rows(rows: int, labels: int, name: str) -> None:
    if rows != labels:
        raise BadTensor(f"{name}: {rows} rows of outputs but {labels} labels")


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
    "poisson": poisson,
}


class Outputs(Enum):
    """What a model's outputs mean, by the loss that it was trained with.

    Examples:
        >>> tw.losses.Outputs.of(tw.losses.cross_entropy).value
        'classes'
    """

    CLASSES = "classes"  # a logit a class
    PROBABILITY = "probability"  # one logit
    VALUE = "value"  # the value itself
    COUNT = "count"  # the logarithm of a rate
    RAW = "outputs"  # a loss of one's own: nothing is known

    @classmethod
    def of(cls, loss: Any) -> Outputs:
        known: dict[Any, Outputs] = {
            cross_entropy: cls.CLASSES,
            binary_cross_entropy: cls.PROBABILITY,
            squared_error: cls.VALUE,
            poisson: cls.COUNT,
        }
        return known.get(find_plain_loss(loss), cls.RAW)

    def columns(self, width: int) -> tuple[str, ...]:
        match self:
            case Outputs.CLASSES:
                return tuple(f"probability_{one}" for one in range(width))
            case Outputs.PROBABILITY:
                return ("probability",)
            case Outputs.VALUE | Outputs.COUNT:
                return ("value",)
        return tuple(f"output_{one}" for one in range(width))

    def to_predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities or values, [rows, columns]; row by row."""
        table = outputs if outputs.dim() == 2 else outputs.reshape(len(outputs), -1)
        match self:
            case Outputs.CLASSES:
                return torch.softmax(table, dim=1)
            case Outputs.PROBABILITY:
                # Not sigmoid, which rounds by where a value stands among the others; softmax goes row by row.
                return torch.softmax(torch.stack([torch.zeros_like(table), table], -1), -1)[..., 1]
            case Outputs.COUNT:
                return table.exp()
        return table

    def to_scored(self, outputs: Tensor) -> Tensor:
        """What metrics look at: logits, or values in the label's own scale."""
        return self.to_predictions(outputs) if self is Outputs.COUNT else outputs


def choose_curvature(loss: Loss, decides_alone: bool) -> float | str:
    """The second derivative that boosted trees assume under this loss.

    Args:
        loss: one of `tw.losses`, or your own.
        decides_alone: whether nothing but a bias and the loss stands behind a row's derivative.

    Examples:
        >>> tw.losses.choose_curvature(tw.losses.squared_error, decides_alone=True)
        2.0
    """
    if Outputs.of(loss) is Outputs.VALUE:
        return 2.0
    if Outputs.of(loss) is Outputs.COUNT:  # it is the rate, which no derivative shows
        return "mean_square"
    return "derived" if decides_alone else 0.25  # the largest that a logistic loss has


def name_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> str:
    """The loss's name and class weights, for messages and digests.

    Args:
        loss: any loss.

    Examples:
        >>> tw.losses.name_loss(tw.losses.poisson)
        'poisson'
    """
    if isinstance(loss, WeightedLoss):
        return f"{name_loss(loss.loss)} weighted by {list(loss.class_weights)}"
    return getattr(loss, "__name__", type(loss).__name__)
