"""Labels by completing the model (Fu et al., 2022, "Label inference attacks against vertical federated learning").

A feature party keeps its trained bottom model, whose embeddings were shaped by all labels. With the labels of a few
rows it trains a top model of its own on them, and then knows labels that it was never told. It counts as a leak as
far as it beats what the same few labels would have taught it without the run. Noise on the derivatives does not stop
it: whatever makes the joint model good makes this one good.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinwire.base.errors import BadTensor

_DECAY = 1e-2
_SCRATCH_STEPS = 200


def completed_scores(embeddings: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """How much each row of [N, E] seems of the class, from a linear top model trained on the `known` rows.

    `labels` are 0 or 1, one for each known row. Deterministic: a convex problem, solved to the end.
    """
    _require_both(labels)
    values = embeddings.detach().double()
    centre, scale = values[known].mean(dim=0), values[known].std(dim=0).clamp(min=1e-6)
    inputs = (values - centre) / scale
    top = torch.zeros(inputs.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([top], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        logits = inputs[known] @ top[:-1] + top[-1]
        value = cross_entropy(torch.stack([torch.zeros_like(logits), logits], dim=1), labels.long())
        value = value + _DECAY * top[:-1].square().sum()
        value.backward()
        return value

    solver.step(loss)
    return inputs @ top.detach()[:-1] + top.detach()[-1]


def from_scratch_scores(bottom: nn.Module, features: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """The same attacker without the run: the untrained bottom model and a top one, trained on the known rows."""
    _require_both(labels)
    mine = deepcopy(bottom).cpu().train()
    with torch.no_grad():
        width = mine(features[:2]).shape[1]
    top = nn.Linear(width, 2)
    nn.init.zeros_(top.weight)
    nn.init.zeros_(top.bias)
    optimizer = torch.optim.Adam([*mine.parameters(), *top.parameters()], lr=0.01, weight_decay=1e-3)
    for _ in range(_SCRATCH_STEPS):
        optimizer.zero_grad()
        cross_entropy(top(mine(features[known])), labels.long()).backward()
        optimizer.step()
    mine.eval()
    with torch.no_grad():
        logits = top(mine(features))
    scores: Tensor = logits[:, 1] - logits[:, 0]
    return scores.double()


def few_known_rows(positive: Tensor, count: int, seed: int) -> Tensor:
    """Rows whose class the attacker knows: half of either class, as far as there are as many."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(positive), generator=rng)
    of_class = positive[order].bool()
    rare = order[of_class][: count // 2]
    return torch.cat([rare, order[~of_class][: count - len(rare)]])


def _require_both(labels: Tensor) -> None:
    if len(labels.unique()) != 2:
        raise BadTensor("model completion needs known rows of both classes; let the attacker know more rows")
