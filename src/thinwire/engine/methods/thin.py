"""thin, our own: everything at once, with private labels and any number of parties; coarse at first, fine at last.

    up:    error feedback with integers of `up_step` deviations, entropy-coded (about a bit per value); along the few
           directions that rows vary in, and six times finer, where that takes fewer bits: wide embeddings
    down:  derivatives as integers of `down_step` deviations, rounded at random so that they are unbiased;
           or along few directions, four times finer. That is noise: where it would leave a batch worth fewer than 64
           rows, the step is halved until it does not
    when:  one step per exchange; with a higher `reuse` cached steps with weights between exchanges, as CELU-VFL, as
           many as it and the number of rows allow: fewer bytes still, and on several data sets a worse model. None
           where messages are cheap already, half as many once the training loss rises; overlap="ahead" lets both
           sides compute at once: the next embedding is sent before the answer to this one arrives
    then:  whenever the loss of fresh batches or the validation score stands still, and by shares of the first half
           of the run at the latest, steps half as large, down to `finest_step`, and half as many cached steps, down
           to none: what is left is split learning with two or three bits per value
    look:  at an evaluation only what has changed in the embeddings of validation rows travels, in steps of
           `evaluation_step` deviations (None: all of them, as `scoring` says)

What makes it work: on mini-batches quantise rather than sparsify; error feedback matters up, unbiasedness down.
"""

from math import ceil, log2

from thinwire.engine.compress import Directions, Refining, Shorter, StdGrid
from thinwire.engine.compress.parameters import require_number
from thinwire.engine.methods.parts import parse_overlap
from thinwire.engine.privacy import Labels
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import MOST_LEVEL, CachedSteps
from thinwire.engine.streams import Direct, ErrorFeedback

_RISE_LIMIT = 1.5
_WORTH_BITS = 0.25
_ROWS_A_USE = 5000
_LEAST_ROWS = 64
_FINER_UP, _FINER_DOWN = 6, 4


def thin(
    up_step: float = 2.0,
    down_step: float = 8.0,
    capacity: int = 5,
    reuse: int = 1,
    xi_degrees: float | None = 60.0,
    overlap: bool | str = False,
    *,
    finest_step: float = 0.5,
    warm_passes: int = 0,
    evaluation_step: float | None = 0.25,
) -> Recipe:
    """Few bytes both ways and few rounds, the score of split learning; private labels.

    With `warm_passes` it begins as `once` does: embeddings of all rows go up, and the label party takes so many
    passes over them by itself before the first exchange. Pre-train the bottom models then.
    """
    given = {"up_step": up_step, "down_step": down_step, "finest_step": finest_step}
    up_step, down_step, finest = (require_number("thin", name, value, above=0) for name, value in given.items())
    up, down = Refining(up_step, finest), Refining(down_step, finest)
    up_along, down_along = (
        Refining(one.coarsest / finer, one.finest / finer) for one, finer in ((up, _FINER_UP), (down, _FINER_DOWN))
    )
    return Recipe(
        "thin",
        uplink=ErrorFeedback(Shorter(StdGrid(up), Directions(up_along))),
        downlink=Direct(
            Shorter(
                StdGrid(down, stochastic=True, least_rows=_LEAST_ROWS),
                Directions(down_along, stochastic=True, least_rows=_LEAST_ROWS),
            )
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
            levels=max(0, min(MOST_LEVEL, ceil(log2(max(up_step, down_step) / finest)))),
        ),
        labels=Labels.PRIVATE,
        warm_start=warm_passes > 0,
        warm_passes=warm_passes,
        evaluation_step=evaluation_step,
    )
