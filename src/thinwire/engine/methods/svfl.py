"""Standard split learning (Vepakomma et al., 2018), the baseline of every paper here.

    each round t, rows of the epoch's shuffle               engine/programs/batches.py
      party k:  h_k <- f_k(x_k[rows]); send h_k             engine/protocols/derivatives.py, DerivativeFeatureEnd.send
      label:    loss at fuse(h_1 .. h_K); send dL/dh_k;     DerivativeLabelEnd.exchange
                one step of the top model
      party k:  h_k.backward(dL/dh_k); one step             DerivativeFeatureEnd.receive

Plain SGD on the whole network, whose parts live with their owners.
"""

from thinwire.engine.compress import Identity
from thinwire.engine.privacy import Labels
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import EveryBatch
from thinwire.engine.streams import Direct


def svfl() -> Recipe:
    """Embeddings up, gradients (derivatives) down, one step everywhere; private labels.

    Returns:
        The baseline: 32-bit floats both ways, one exchange and one step a batch.

    Examples:
        >>> tw.methods.svfl().name
        'svfl'
    """
    exact = Direct(Identity())
    return Recipe("svfl", exact, exact, exact, EveryBatch(), Labels.PRIVATE)
