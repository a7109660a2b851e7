"""FedBCD (Liu et al., 2019; as baseline in CELU-VFL, Algorithm 1).

    exchange batch i as in split learning                   engine/protocols/derivatives.py
    then, Q - 1 times, on the *same* batch:                 engine/schedule/cached_steps.py, capacity 1
      party k:  re-run f_k, back-propagate the same dL/dh_k   DerivativeFeatureEnd.local
      label:    re-run the top model on the same h_k          DerivativeLabelEnd.local

Differs from the paper: Q counts the exchange's own update, as CELU-VFL's R does, so that fedbcd(1) is svfl.
"""

from thinwire.engine.compress import Identity
from thinwire.engine.privacy import Labels
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps
from thinwire.engine.streams import Direct


def fedbcd(local_steps: int) -> Recipe:
    """`local_steps` updates on each batch in all, with stale partner values after the first; private labels.

    Args:
        local_steps: updates on each batch, the exchange's own included.

    Raises:
        BadParameter: `local_steps` is out of its range.

    Examples:
        >>> tw.methods.fedbcd(local_steps=5).name
        'fedbcd'
    """
    exact = Direct(Identity())
    schedule = CachedSteps(capacity=1, reuse=local_steps, xi_degrees=None)
    return Recipe("fedbcd", exact, exact, exact, schedule, Labels.PRIVATE)
