"""The same network in one place: plain torch on all columns, with the job's weights, batches and optimisers.

It shares no code with the parties' conversations, so it can tell what they cost.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.optimizers import set_lr
from thinwire.engine.protocols.evaluation import compute_outputs, embed_in_chunks
from thinwire.job.job import Job
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
