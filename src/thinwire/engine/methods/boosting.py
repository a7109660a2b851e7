"""Boosted trees as bottom models, our own: gradient boosting (Friedman, 2001) split by column.

    up:    what an exchange added to the sum of a party's trees. A single tree has few different outputs, so each row
           travels as its leaf's number, exact and entropy-coded; error feedback keeps the sum at both ends
    down:  derivatives as integers of `down_step` deviations, rounded at random so that they are unbiased
    when:  one exchange of all rows per round; every party answers the same derivative with new trees

Parties go together, not in turn: an exchange costs one round trip however many they are.
"""

from thinwire.engine.compress import Cast, Codebook, Identity, StdGrid
from thinwire.engine.privacy import Labels
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import EveryBatch
from thinwire.engine.streams import Direct, ErrorFeedback


def boosting(down_step: float = 0.5, levels: int = 64) -> Recipe:
    """Leaf numbers of trees up, gradients (derivatives) in a few bits down; private labels, full batches.

    Args:
        down_step: of derivatives, in standard deviations of the message.
        levels: different outputs that a message may name exactly.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.methods.boosting().name
        'boosting'
    """
    return Recipe(
        "boosting",
        uplink=ErrorFeedback(Codebook(levels)),
        downlink=Direct(StdGrid(down_step, stochastic=True)),
        top=Direct(Identity()),
        schedule=EveryBatch(),
        labels=Labels.PRIVATE,
        scoring=Cast("bfloat16"),
    )
