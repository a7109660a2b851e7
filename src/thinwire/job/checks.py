"""What a job from a file must also meet before anything starts: settings, labels, classes, noise and rows."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from thinwire.conversations.evaluation import evaluating
from thinwire.errors import BadInput
from thinwire.job.job import Job, embedding_width
from thinwire.job.messages import at, did_you_mean
from thinwire.job.schema import JobSection
from thinwire.models.losses import Weighted, binary_cross_entropy, cross_entropy
from thinwire.models.metrics import metric
from thinwire.party import LabelParty
from thinwire.privacy.accounting import Budget, Observer
from thinwire.streams import Storage

__all__ = ["build_budget", "build_storage", "check_batch_size", "check_job", "check_settings"]


def check_settings(settings: JobSection) -> None:
    """What `[job]` says can be had here."""
    with at("job.device"):
        _require_device(settings.device)
    with at("job.metrics"):
        for name in settings.metrics:
            metric(name)
    target = settings.target
    if target is not None and target.metric not in (*settings.metrics, "loss"):
        hint = did_you_mean(target.metric, settings.metrics)
        raise BadInput(f"job.target.metric {target.metric!r} is not among job.metrics, and not 'loss'{hint}")


def check_batch_size(settings: JobSection, rows: int) -> None:
    if settings.batch_size is not None and settings.batch_size > rows:
        raise BadInput(
            f"job.batch_size is {settings.batch_size}, but there are {rows} training rows; leave it out for all rows"
        )


def check_job(job: Job) -> None:
    """Refuses what would fail, or teach nothing, only after the start."""
    with at("recipe"):
        job.recipe.check(len(job.parties), job.label_party.fusion, job.batches)
    for party in job.parties:
        where = f"party.{party.name}.model:"
        job.check_separate_rows(where, party, embedding_width(where, party.bottom, party.features))
    with at("label_party"):  # bottom models were tried before
        widths = job.check()
    with at("job.budget"):
        job.limited_batching(widths)
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
                known = f"there are {', '.join(names)}{did_you_mean(name, names)}"
                raise BadInput(f"link.parties.{name}: no feature party has this name; {known}")


def build_budget(settings: JobSection) -> Budget | None:
    given = settings.budget
    return None if given is None else Budget(given.epsilon, given.delta, Observer(given.observer))


def build_storage(settings: JobSection, folder: Path) -> Storage:
    """`folder` is the job file's."""
    with at("job.scratch"):
        scratch = None if settings.scratch is None else folder / settings.scratch
        return Storage(int(settings.memory_limit_mb * 2**20), scratch)


def _require_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(f"{name!r} is not here: {str(error).splitlines()[0]}") from None


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
