"""Labels and features from what a party holds, by four attacks on labels and one on features.

*Norm* and *direction*: Li et al., 2022, "Label leakage and protection in two-party split learning". For one logit a
row's derivative is (p - y) w: as long as the model is wrong. Where one class is rare the model says p near its
share, so that rare rows have long derivatives. p - y is negative for the rows of class 1 and positive for the
others, whatever the model has learned: one row of known class is enough to tell which way is which.

*Spectral*: Sun et al., 2022, "Label leakage and protection from forward embedding". Two classes that lie apart
stretch the cloud of all rows along the line between them: the top singular vector of the centred rows. The rare
class lies farther from the common mean, and that tells the axis' sign. The paper attacks embeddings; here it is
derivatives, which say more of labels.

*Model completion*: Fu et al., 2022, "Label inference attacks against vertical federated learning". A feature party
keeps its trained bottom model, whose embeddings were shaped by all labels, and trains a top model on a few known
rows. It counts as a leak as far as it beats what the same few labels would have taught it without the run. Noise on
the derivatives does not stop it: whatever makes the joint model good makes this one good.

*Inversion*: the label party holds the embedding of every row. With the features of a few rows it learns the way
back: a ridge regression on the embeddings and on random bends of them, its penalty chosen by leaving known rows
out. Under secure sum it has only the sum of all parties' embeddings, under noise only noisy ones.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from thinwire.base.errors import BadTensor
from thinwire.engine.models.learners import BoostedTrees, TreeFitter


def score_by_norm(derivatives: Tensor) -> Tensor:
    """|g| of each row of [N, E]: the longer, the more likely the rare class."""
    norms: Tensor = derivatives.detach().double().norm(dim=1)
    return norms


def score_by_direction(derivatives: Tensor, known: Tensor) -> Tensor:
    """The average cosine of each row of [N, E] with the derivatives of the rows `known` to be of the class."""
    if not len(known):
        raise BadTensor("direction_scores: the attacker knows no row of the class")
    unit = normalize(derivatives.detach().double(), dim=1)
    # What is alike but for the last bits of float32 is alike.
    return (unit @ unit[known].mean(dim=0)).round(decimals=6)


def score_by_spectrum(rows: Tensor) -> Tensor:
    """Each row of [N, E] along the main axis, towards the rare side."""
    centred = rows.detach().double()
    centred = centred - centred.mean(dim=0)
    # Of the small [E, E] matrix, not of the tall one.
    _, axes = torch.linalg.eigh(centred.T @ centred)
    along = centred @ axes[:, -1]
    # A few far rows on one side, many near ones on the other: the third moment has the sign of the few.
    scores: Tensor = along * torch.sign(along.pow(3).sum())
    return scores


_DECAY = 1e-2
_SCRATCH_STEPS = 200
_SCRATCH_TREES = 50


def score_by_completion(embeddings: Tensor, known: Tensor, labels: Tensor) -> Tensor:
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


def score_from_scratch(bottom: nn.Module, features: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """The same attacker without the run: the untrained bottom model and a top one, trained on the known rows."""
    _require_both(labels)
    if isinstance(bottom, BoostedTrees):
        return _boost_from_scratch(bottom, features, known, labels)
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


def _boost_from_scratch(bottom: BoostedTrees, features: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """Small trees of one's own: as many rows as the run's had are not known."""
    mine = BoostedTrees(leaves=4, shrinkage=0.1, min_rows=5, fields_vocab=bottom.fields_vocab)
    fitter, truth = TreeFitter(mine, features[known]), labels.double()[:, None]
    for _ in range(_SCRATCH_TREES):
        chance = torch.sigmoid(mine(features[known]).double())
        nodes, _ = fitter.fit((chance - truth).float().numpy(), (chance * (1 - chance)).float().numpy())
        mine.add(nodes)
    scores: Tensor = mine(features)[:, 0].double()
    return scores


def draw_labelled_rows(positive: Tensor, count: int, seed: int) -> Tensor:
    """Rows whose class the attacker knows: half of either class, as far as there are as many."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(positive), generator=rng)
    of_class = positive[order].bool()
    rare = order[of_class][: count // 2]
    return torch.cat([rare, order[~of_class][: count - len(rare)]])


def _require_both(labels: Tensor) -> None:
    if len(labels.unique()) != 2:
        raise BadTensor("model completion needs known rows of both classes; let the attacker know more rows")


_BENDS = 64
_PENALTIES = torch.logspace(-6, 4, 21, dtype=torch.float64)


def invert_embeddings(embeddings: Tensor, known: Tensor, features: Tensor) -> Tensor:
    """The features [N, F] of all rows, as guessed from embeddings [N, E] and the features of the `known` rows."""
    if len(known) != len(features) or len(known) < 3:
        raise BadTensor(f"inversion needs the features of at least three known rows, got {len(features)}")
    truth = features.detach().double().reshape(len(features), -1)
    inputs = _bent(embeddings.detach().double(), known)
    mean = truth.mean(dim=0)
    return inputs @ _ridge(inputs[known], truth - mean) + mean


def _bent(embeddings: Tensor, known: Tensor) -> Tensor:
    """Embeddings of scale 1, and as many random piecewise linear functions of them."""
    known_rows = embeddings[known]
    spread = known_rows.std(dim=0)
    scaled = (embeddings - known_rows.mean(dim=0)) / torch.where(spread > 1e-9, spread, torch.ones_like(spread))
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(scaled.shape[1], _BENDS, generator=rng, dtype=torch.float64) / scaled.shape[1] ** 0.5
    offsets = torch.randn(_BENDS, generator=rng, dtype=torch.float64)
    bends = torch.relu(scaled @ weights + offsets) / _BENDS**0.5
    both = torch.cat([scaled, bends], dim=1)
    return both - both[known].mean(dim=0)


def _ridge(inputs: Tensor, targets: Tensor) -> Tensor:
    """The weights of the ridge regression whose error on left-out rows is least."""
    u, s, vt = torch.linalg.svd(inputs, full_matrices=False)
    projected = u.T @ targets
    best: tuple[float, Tensor] | None = None
    for penalty in _PENALTIES:
        shrink = s.square() / (s.square() + penalty)
        # Each row's influence on its own fit, and on the mean: what is left is the error as if it were left out.
        influence = u.square() @ shrink + 1 / len(inputs)
        left_out = (targets - u @ (shrink[:, None] * projected)) / (1 - influence).clamp(min=1e-6)[:, None]
        error = float(left_out.square().sum())
        if best is None or error < best[0]:
            best = error, vt.T @ ((shrink / s.clamp(min=1e-12))[:, None] * projected)
    if best is None:
        raise BadTensor("inversion: no penalty to choose from")
    return best[1]
