"""thin, our own: everything at once, with private labels and any number of parties.

    up:    error feedback with integers of `up_step` deviations, entropy-coded (about one bit a value); along the few
           directions that rows vary in, and six times finer, where that takes fewer bits: wide embeddings
    down:  derivatives as integers of `down_step` deviations, rounded at random so that they are right on average;
           or along few directions, four times finer
    when:  cached steps with weights between exchanges, as CELU-VFL, as many as `reuse` and the number of rows allow;
           none where messages are cheap already, half as many once the training loss rises; overlap="ahead" lets both
           sides compute at once: the next embedding leaves before this one's answer is here

What makes it work: on mini-batches quantise rather than sparsify; error feedback matters up, unbiasedness down.
"""

from thinwire.engine.compress import Directions, Shorter, StdGrid
from thinwire.engine.methods.parts import parse_overlap
from thinwire.engine.privacy import Labels
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps
from thinwire.engine.streams import Direct, ErrorFeedback

_RISE_LIMIT = 1.5
_WORTH_BITS = 0.25
_ROWS_A_USE = 1000
_FINER_UP, _FINER_DOWN = 6, 4


def thin(
    up_step: float = 1.5,
    down_step: float = 8.0,
    capacity: int = 5,
    reuse: int = 12,
    xi_degrees: float | None = 60.0,
    overlap: bool | str = False,
    warm_passes: int = 0,
) -> Recipe:
    """Few bytes both ways and few rounds; private labels.

    With `warm_passes` it begins as `once` does: embeddings of all rows go up, and the label party takes so many
    passes over them by itself before the first exchange. Pre-train the bottom models then.
    """
    return Recipe(
        "thin",
        uplink=ErrorFeedback(Shorter(StdGrid(up_step), Directions(up_step / _FINER_UP))),
        downlink=Direct(
            Shorter(StdGrid(down_step, stochastic=True), Directions(down_step / _FINER_DOWN, stochastic=True))
        ),
        top=Direct(StdGrid(up_step)),
        schedule=CachedSteps(
            capacity,
            reuse,
            xi_degrees,
            overlap=parse_overlap("thin", overlap),
            rise_limit=_RISE_LIMIT,
            worth_bits=_WORTH_BITS,
            rows_a_use=_ROWS_A_USE,
        ),
        labels=Labels.PRIVATE,
        warm_start=warm_passes > 0,
        warm_passes=warm_passes,
    )
