"""One exchange, our own: each party sends coarse codes of its rows, and the label party learns from them alone.

    up:    integers, entropy-coded, of a bottom model that is fitted to its party's own rows without labels
           (`tw.learners.PrincipalDirections`, `Bins`); every row once, in blocks until more rows no longer help
    down:  nothing but go on or stop
    when:  once a row; then the label party fits its top model, a network or boosted trees, by itself

A prediction is one message up. No derivative exists, so labels cannot leak by one; the label party holds a coarse
copy of what was encoded.
"""

from thinwire.engine.compress import Compressor, Identity, PoissonBinomial, RandomizedResponse, StdGrid
from thinwire.engine.privacy import Labels, Plain, SecureSum
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import OneWay
from thinwire.engine.streams import Direct


def once(
    passes: int = 100,
    batch_rows: int = 64,
    patience: int = 10,
    noise: PoissonBinomial | RandomizedResponse | None = None,
) -> Recipe:
    """Codes up, nothing down; the label party trains for at most `passes` passes over them; private labels.

    With `noise` a row costs the epsilon of one release. `RandomizedResponse` is for `Bins`: each party sends its own
    codes, some of them replaced at random. `PoissonBinomial` is for sums: under a secure sum the label party sees
    only the sum of all parties' codes, which must have the same meaning everywhere and depend on no row:
    `RandomProjections`, all of the same width.

    Args:
        passes: over the codes, at the label party, at most.
        batch_rows: rows of each of its steps.
        patience: passes without a better validation score before it stops.
        noise: on the codes, for a privacy guarantee.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.methods.once(passes=50).name
        'once'
    """
    whole: Compressor = StdGrid(1.0, scale=1.0)
    return Recipe(
        "once",
        uplink=Direct(noise or whole),
        downlink=Direct(Identity()),
        top=Direct(Identity()),
        schedule=OneWay(passes, batch_rows, patience),
        labels=Labels.PRIVATE,
        aggregation=SecureSum() if isinstance(noise, PoissonBinomial) else Plain(),
        scoring=whole if noise is None else Identity(),
    )
