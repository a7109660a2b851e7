"""What noise on embeddings does not cover: a bottom model that learns from raw rows carries one row into all others.

One feature, tanh(w x) in each coordinate, w = 0 at first; every row has x = 1 but one outlier, whose x is +s in the
one world and -s in the other. In the first round all embeddings are 0: nothing shows. The outlier's derivative is the
same in both worlds, but its gradient is derivative * x, so that w goes one way or the other, and with it the
embedding of *every other* row. The outlier's own embedding, tanh(w x), hardly tells: both signs have turned.

Accounting of the outlier's own releases sees none of this. An attacker who adds up the released sums of the other
rows does, whatever the noise on each of them. Clipping each row's gradient, and noise on the batch's sum, close the
way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.engine.compress import PoissonBinomial
from thinwire.engine.compress.message import Array
from thinwire.engine.privacy import NoiseKey
from thinwire.lab.attacks.dp_release import ReleaseAudit, best_threshold, largest_epsilon


class ManyBottoms(nn.Module):
    """One bottom model tanh(w x) for each repetition of the experiment, all at once."""

    def __init__(self, repetitions: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(repetitions, width))

    def forward(self, rows: Tensor) -> Tensor:
        """Embeddings [R, N, E] of rows [N]."""
        return torch.tanh(self.weight[:, None, :] * rows[None, :, None])


TrainStep = Callable[[ManyBottoms, Tensor, Tensor], None]  # (module, rows [N], derivative [R, N, E]): one update


@dataclass(frozen=True, slots=True)
class Scene:
    """A small training run with an outlier, for `audit_stateful`.

    Args:
        mechanism: adds the noise.
        width: of embeddings.
        parties: whose noise is added.
        rounds: full batches; each is one use of every row.
        others: rows besides the outlier.
        outlier: its feature's value.
        top: the top model's weight for each coordinate.

    Examples:
        >>> tw.audit.Scene(tw.compress.PoissonBinomial(trials=8, beta=0.2)).rounds
        4
    """

    mechanism: PoissonBinomial
    width: int = 2
    parties: int = 4
    rounds: int = 4  # full batches: each is one use of every row
    others: int = 64  # rows besides the outlier
    outlier: float = 50.0
    top: float = 0.1  # the top model's weight of each coordinate, a logit

    def rows(self, sign: int) -> Tensor:
        return torch.cat([torch.tensor([sign * self.outlier]), torch.ones(self.others)])

    def labels(self) -> Tensor:
        """The outlier's is 1, the others take turns."""
        return torch.arange(self.others + 1).remainder(2).eq(0).float()


def observe_releases(scene: Scene, sign: int, train_step: TrainStep, key: NoiseKey, repetitions: int) -> Array:
    """The sum of what was released about the *other* rows: [R, rounds], a line for each repetition of the run."""
    rows, labels = scene.rows(sign), scene.labels()
    module = ManyBottoms(repetitions, scene.width)
    shape = (repetitions, len(rows), scene.width)
    seen = np.zeros((repetitions, scene.rounds))
    for round in range(scene.rounds):
        released = torch.zeros(shape)
        for party in range(scene.parties):
            # The target's embedding, and parties at the middle of their range beside it.
            h = module(rows).detach() if party == 0 else torch.zeros(shape)
            noise = key.for_round(sign + 1, round, 0, f"party {party}")
            released += scene.mechanism.compress(h, noise).to_tensor()
        seen[:, round] = released[:, 1:].sum(dim=(1, 2)).double().numpy()
        # The label party's part: a logistic loss of the released sum.
        wrong = torch.sigmoid(scene.top * released.sum(dim=2)) - labels
        derivative = wrong[:, :, None] * scene.top / len(rows)
        train_step(module, rows, derivative.expand(shape))
    return seen


def audit_stateful(
    claimed: float, scene: Scene, delta: float, train_step: TrainStep, key: NoiseKey, repetitions: int = 60_000
) -> ReleaseAudit:
    """Measures the epsilon that the releases of other rows reveal about an outlier, against the claimed one.

    The attacker looks at one round or at all of them, whichever reveals more on the first half of the repetitions.

    Args:
        claimed: epsilon that the accounting states.
        scene: who trains what for how long.
        delta: of the claim.
        train_step: one update of the bottom models, given rows and derivatives.
        key: of the noise.
        repetitions: of the whole training.

    Examples:
        >>> scene = tw.audit.Scene(tw.compress.PoissonBinomial(trials=8, beta=0.2), rounds=2, others=4)
        >>> still = lambda module, rows, derivative: None  # a frozen bottom model
        >>> tw.audit.audit_stateful(1.5, scene, 1e-5, still, tw.privacy.NoiseKey(bytes(32)), repetitions=200).claimed
        1.5
    """
    one, other = (observe_releases(scene, sign, train_step, key, repetitions) for sign in (1, -1))
    half = repetitions // 2
    looks = [slice(0, None), *(slice(round, round + 1) for round in range(1, scene.rounds))]
    scores = [(one[:, look].sum(axis=1), other[:, look].sum(axis=1)) for look in looks]
    tried = [(best_threshold(a[:half], b[:half], delta), a[half:], b[half:]) for a, b in scores]
    chosen, a, b = max(tried, key=lambda found: found[0].promise)
    reach = largest_epsilon(len(a), delta)
    return ReleaseAudit(claimed, chosen.epsilon(a, b, delta), "the other rows' sums", reach)
