"""thin, our own: everything at once, with private labels and any number of parties; two or three bits per value.

    up:    error feedback with integers of `up_step` deviations, entropy-coded; along the few directions that rows
           vary in, and six times finer, where that takes fewer bits: wide embeddings
    down:  derivatives as integers of `down_step` deviations, rounded at random so that they are unbiased;
           or along few directions, four times finer
    when:  one step per exchange; overlap="ahead" lets both sides compute at once: the next embedding leaves before
           this one's answer is here
    look:  at an evaluation only what has changed in the embeddings of validation rows travels, in steps of
           `evaluation_step` deviations (None: all of them, as `scoring` says)

Fewer bytes still, and on several data sets a worse model:

    coarse at first:  with steps above `finest_step` messages begin coarse. Whenever the loss of fresh batches or the
                      validation score stands still, and by shares of the first half of the run at the latest, steps
                      are halved, down to `finest_step`. Rounding down is noise: where it would leave a batch worth
                      fewer than 64 rows, the step is halved until it does not
    cached steps:     with a higher `reuse`, weighted as in CELU-VFL, as many as it and the number of rows allow;
                      none where messages are cheap already, half as many once the training loss rises

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
    up_step: float = 0.5,
    down_step: float = 0.5,
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

    Args:
        up_step: coarsest step of embeddings, in standard deviations of the message.
        down_step: coarsest step of derivatives.
        capacity: exchanges that are kept, where `reuse` is above 1.
        reuse: updates from each exchange, its own included; 1 takes no cached steps.
        xi_degrees: as in `celu`.
        overlap: as in `celu`.
        finest_step: where both steps end.
        warm_passes: passes over all rows' embeddings before the first exchange.
        evaluation_step: of validation rows' embeddings; None sends them as `scoring` says.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.methods.thin(up_step=1.0, reuse=4).name
        'thin'
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
