"""The runs of a diagnosis: centralised, svfl, the recipe, and the recipe with one axis put back at a time.

Centralised training is plain torch on all columns, with the job's weights, batches and optimisers. It shares no code
with the parties' protocols, so it can tell what they cost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from thinwire.base.errors import Diverged
from thinwire.engine.methods import svfl
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.optimizers import set_lr
from thinwire.engine.privacy.accounting.exposure import TrainedOnRawRows
from thinwire.engine.protocols.evaluation import compute_outputs, embed_in_chunks
from thinwire.job.job import Job
from thinwire.lab.ablation.variants import Variant, list_variants
from thinwire.lab.runner import train_to_end
from thinwire.report.record import Evaluation
from thinwire.training.result import compute_scores, require_finite_loss


def train_centrally(job: Job, on_round: Callable[[int], None] | None = None) -> dict[str, float]:
    """Trains the job's modules in place; the metrics at the end, on test rows where there are any."""
    label, device = job.label_party, job.device
    holders = [(party, party.bottom) for party in job.parties]
    tables = [(party.features, party.test_features) for party in job.parties]
    bottoms: list[nn.Module] = [bottom.to(device).train() for _, bottom in holders]
    specs = [party.optimizer or job.optimizer for party, _ in holders]
    if label.bottom is not None:
        bottoms.append(label.bottom.to(device).train())
        tables.append((label.features, label.test_features))
        specs.append(label.optimizer or job.optimizer)
    top = label.top.to(device).train()
    steps = [
        (spec, spec.build(module.parameters()))
        for spec, module in zip([*specs, label.optimizer or job.optimizer], [*bottoms, top], strict=True)
    ]
    features = [table.to(device) for table, _ in tables]
    labels = label.labels.to(device)
    batches = job.divide_rows()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        for round in range(batches.rounds):
            rows = batches.rows(round).to(device)
            h = [bottom(x[rows]) for bottom, x in zip(bottoms, features, strict=True)]
            loss = label.loss(top(fuse(label.fusion, h)), labels[rows]).mean()
            require_finite_loss(loss.item())
            loss.backward()
            for spec, optimizer in steps:
                if optimizer is not None:
                    set_lr(optimizer, spec.lr_at(round, batches.rounds))
                    optimizer.step()
                    optimizer.zero_grad()
            if on_round is not None:
                on_round(round + 1)
    tested = label.test_labels is not None
    looked_at: list[Tensor] = [test if tested else training for training, test in tables]
    found = [embed_in_chunks(bottom, x.to(device)) for bottom, x in zip(bottoms, looked_at, strict=True)]
    truth = label.test_labels if tested else label.labels
    return compute_scores(compute_outputs(top, label.fusion, found), truth, label.loss, job.metrics)


# The runs of a diagnosis: centralised, svfl, the recipe, and the recipe with one axis put back at a time ----------


CENTRALISED, SVFL, RECIPE = "centralised", "svfl", "recipe"


@dataclass(frozen=True, eq=False)
class AblationRun:
    """One run to make: a name, or the axis that it puts back."""

    name: str
    seed: int
    job: Job
    variant: Variant | None = None


@dataclass(frozen=True)
class AblationResult:
    """Where one run ended."""

    name: str
    seed: int
    value: float | None  # of the first metric, at the last evaluation; None where the run diverged
    earlier: float | None = None  # three quarters of the way
    bytes: int | None = None
    error: str | None = None


def plan_runs(job: Job, seed: int) -> list[AblationRun]:
    """Without targets and byte budgets, which would end some runs earlier than others."""
    job = replace(_fresh(job), target=None, byte_budget=None, link_seconds_budget=None, diagnostics=False)
    plain = replace(job, recipe=svfl(), training=TrainedOnRawRows(), budget=None)
    runs = [AblationRun(CENTRALISED, seed, plain), AblationRun(SVFL, seed, plain), AblationRun(RECIPE, seed, job)]
    return runs + [AblationRun(variant.axis, seed, variant.of(job), variant) for variant in list_variants(job)]


def run_ablation(run: AblationRun, on_round: Callable[[int], None] | None = None) -> AblationResult:
    """Makes the run; the weights that the job was given stay as they are. Ctrl-C raises."""
    job = _fresh(run.job)
    metric = next(iter(job.metrics), "loss")
    try:
        if run.name == CENTRALISED:
            return AblationResult(run.name, run.seed, train_centrally(job, on_round)[metric])
        result = train_to_end(job, on_round=on_round)
    except Diverged as error:
        return AblationResult(run.name, run.seed, None, error=str(error))
    values = [value for one in result.evaluations if (value := one.scores[metric]) is not None]
    return AblationResult(
        run.name, run.seed, values[-1], _before_the_end(result.evaluations, values), result.bytes.total
    )


def _before_the_end(evaluations: Sequence[Evaluation], values: Sequence[float]) -> float | None:
    """At the evaluation three quarters of the way, where there are enough of them to tell."""
    if len(values) < 5:
        return None
    most = 0.75 * evaluations[-1].round
    return [value for one, value in zip(evaluations, values, strict=True) if one.round <= most][-1]


def _fresh(job: Job) -> Job:
    """The same job with copies of its modules: training changes them in place."""
    label = job.label_party
    return replace(
        job,
        parties=[replace(party, bottom=copy.deepcopy(party.bottom)) for party in job.parties],
        label_party=replace(
            label,
            top=copy.deepcopy(label.top),
            bottom=copy.deepcopy(label.bottom),
            class_weights=None,  # the loss has them already
        ),
    )
