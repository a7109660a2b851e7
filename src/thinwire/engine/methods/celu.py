"""CELU-VFL (Fu et al., VLDB 2022): cache-enabled local updates.

    exchange batch i; both ends insert (rows, h, dL/dh)     engine/protocols/derivatives.py
    draw a cached batch, round robin, W - 1 draws apart     engine/schedule/cached_steps.py
      party A:  w = cos(h now, h cached), 0 below cos(xi);  engine/schedule/exchange_cache.py
                back-propagate w * dL/dh cached             DerivativeFeatureEnd.local
      party B:  w = cos(dL/dh now, cached); back-propagate w * loss   DerivativeLabelEnd.local

Differs from the paper: any number of feature parties (the label party's cosine is then over the derivatives of
all of them); a fixed number of local steps per round, so that a run repeats bit for bit. overlap=True takes them
while the embedding travels; overlap="filling" takes as many as fit, as the paper does, does not repeat, and needs a
link whose messages take time; overlap="ahead" takes them while two embeddings travel: the next one leaves before this
round's updates, so that both sides compute at once.
"""

from thinwire.engine.compress import Identity
from thinwire.engine.methods.parts import parse_overlap
from thinwire.engine.privacy import Labels
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps
from thinwire.engine.streams import Direct


def celu(
    capacity: int,
    reuse: int,
    xi_degrees: float | None = 60.0,
    sampling: str = "round_robin",
    overlap: bool | str = False,
    local_steps: int | None = None,
) -> Recipe:
    """A workset of `capacity` exchanges, each used for `reuse` updates in all; private labels.

    Args:
        capacity: exchanges that are kept.
        reuse: updates from each exchange, its own included.
        xi_degrees: cached values that have turned further than this weigh nothing; None weighs all alike.
        sampling: which exchange comes next: "round_robin", "consecutive" or "random".
        overlap: when cached steps are taken: False after the exchange, True while the embedding travels,
            "filling" as many as fit, "ahead" while two embeddings travel.
        local_steps: cached steps a round; reuse - 1 unless given.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.methods.celu(capacity=5, reuse=3).name
        'celu'
    """
    exact = Direct(Identity())
    schedule = CachedSteps(capacity, reuse, xi_degrees, sampling, parse_overlap("celu", overlap), local_steps)
    return Recipe("celu", exact, exact, exact, schedule, Labels.PRIVATE)
