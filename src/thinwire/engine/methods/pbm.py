"""PBM-VFL (Tran et al., 2025): Poisson binomial noise under secure sum.

    party m:  q_m ~ Binomial(b, 1/2 + beta h_m / C)         engine/compress/quantize.py
              send q_m + masks mod 2^k                      engine/privacy/secure_sum.py
    label:    C / (beta b) * (sum of q - b M / 2); loss;    engine/compress/symbols.py, Counts
              send dL/dh of the sum, the same to all        engine/protocols/derivatives.py

Differs from the paper: masks live modulo 2^k (without a modulus they leak); the noise comes from each party's
own secret, never from the run's seed. The paper's privacy theorem does not hold as written.
"""

from thinwire.engine.compress import Identity, PoissonBinomial
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import EveryBatch
from thinwire.engine.streams import Direct


def pbm(trials: int, beta: float, bound: float = 1.0) -> Recipe:
    """The label party sees only a noisy sum of embeddings between -bound and bound; private labels.

    Args:
        trials: binomial trials a value; more are less noise.
        beta: bias of each trial, up to 1/4; more is less noise.
        bound: embeddings are cut off beyond it.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.methods.pbm(trials=16, beta=0.2).name
        'pbm'
    """
    exact = Direct(Identity())
    return Recipe(
        "pbm",
        uplink=Direct(PoissonBinomial(trials, beta, bound)),
        downlink=exact,
        top=exact,
        schedule=EveryBatch(),
        labels=Labels.PRIVATE,
        aggregation=SecureSum(),
    )
