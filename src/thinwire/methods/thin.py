"""thin, our own: everything at once, with private labels and any number of parties.

    up:    error feedback with integers of `up_step` deviations, entropy-coded (about one bit a value)
    down:  derivatives as integers of `down_step` deviations, rounded at random so that they are right on average
    when:  cached steps with weights between exchanges, as CELU-VFL; half as many once the training loss rises

`reuse` is where bytes are saved: with 12 large sets of rows take half of them, and small ones are learned by heart.
What makes it work: on mini-batches quantise rather than sparsify; error feedback matters up, unbiasedness down.
"""

from thinwire.compress import StdGrid
from thinwire.methods.parts import overlap_of
from thinwire.privacy import Labels
from thinwire.recipe import Recipe
from thinwire.schedule import CachedSteps
from thinwire.streams import Direct, ErrorFeedback

__all__ = ["thin"]

_RISE_LIMIT = 1.5


def thin(
    up_step: float = 1.5,
    down_step: float = 8.0,
    capacity: int = 5,
    reuse: int = 6,
    xi_degrees: float | None = 60.0,
    overlap: bool | str = False,
) -> Recipe:
    """Few bytes both ways and few rounds; private labels."""
    return Recipe(
        "thin",
        uplink=ErrorFeedback(StdGrid(up_step)),
        downlink=Direct(StdGrid(down_step, stochastic=True)),
        top=Direct(StdGrid(up_step)),
        schedule=CachedSteps(
            capacity, reuse, xi_degrees, overlap=overlap_of("thin", overlap), rise_limit=_RISE_LIMIT
        ),
        labels=Labels.PRIVATE,
    )
