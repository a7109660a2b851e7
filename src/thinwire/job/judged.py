"""What a job from a file must also meet before anything starts: labels, classes, noise and rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from thinwire.conversations.evaluation import evaluating
from thinwire.errors import BadInput
from thinwire.job.job import Job
from thinwire.job.messages import at
from thinwire.models.losses import Weighted, binary_cross_entropy, cross_entropy
from thinwire.models.metrics import metric
from thinwire.party import LabelParty
from thinwire.privacy import SecureSum

__all__ = ["judge"]


def judge(job: Job) -> None:
    """Refuses what would fail, or teach nothing, only after the start."""
    with at("recipe"):
        job.recipe.check(len(job.parties), job.label_party.fusion)
    with at("label_party"):  # bottom models were tried before
        widths = job.check()
    fused = sum(widths.values()) if job.label_party.fusion == "concat" else next(iter(widths.values()))
    with evaluating(job.label_party.top):
        like = next(job.label_party.top.parameters(), torch.zeros(1))
        outputs = job.label_party.top(torch.zeros(1, fused, dtype=like.dtype, device=like.device)).cpu()
    _judge_labels(job.label_party, outputs)
    _judge_metrics(job, outputs)
    if job.link is not None:
        names = [party.name for party in job.parties]
        for name in job.link.parties:
            if name not in names:
                raise BadInput(f"link.parties.{name}: no feature party has this name; there are {', '.join(names)}")
    if isinstance(job.recipe.aggregation, SecureSum):
        for party in job.parties:
            if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in party.bottom.modules()):
                raise BadInput(
                    f"party.{party.name}.model: batch normalisation mixes rows, so noise on one row protects no "
                    "row; use a model without it"
                )


def _judge_labels(party: LabelParty, outputs: Tensor) -> None:
    """Every label is a class that the top model knows, and that some training row has."""
    loss = party.loss.loss if isinstance(party.loss, Weighted) else party.loss
    if loss not in (cross_entropy, binary_cross_entropy):
        return
    training = party.labels.unique()
    for field, labels in _labels(party):
        classes = labels.unique()
        with at(f"label_party.{field}"):
            party.loss(outputs.expand(len(classes), *outputs.shape[1:]), classes)
            unseen = [int(one) for one in classes if one not in training]
            if unseen:
                row = int((labels == unseen[0]).nonzero()[0])
                raise BadInput(f"row {row + 1} is of class {unseen[0]}, which no training row has")
    if len(training) == 1:
        raise BadInput(
            f"label_party.labels: all {len(party.labels)} rows are of class {int(training[0])}; training needs two"
        )


def _judge_metrics(job: Job, outputs: Tensor) -> None:
    """Every metric can be computed of these outputs and labels."""
    for _, labels in _labels(job.label_party):
        for name in job.metrics:
            with at("job.metrics"):
                metric(name).compute(outputs.expand(len(labels), *outputs.shape[1:]), labels)


def _labels(party: LabelParty) -> list[tuple[str, Tensor]]:
    both = [("labels", party.labels), ("test_labels", party.test_labels)]
    return [(field, labels) for field, labels in both if labels is not None]
