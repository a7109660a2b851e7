"""EF-VFL (Valdeira et al., 2025): compressed error feedback. Algorithm 1 (shared labels), 2 (private labels).

    each round t:
      party k:  c_k <- C(h_k - G_k[rows]); send c_k         streams.py, ErrorFeedback.outgoing
      all:      G_k[rows] += c_k                            ErrorFeedback, at both ends
      shared:   label forwards all c_j and the top model; party k's gradient uses its own exact h_k and the
                others' surrogates                          engine/protocols/representations.py
      private:  label sends dL/dh_k taken at the surrogates engine/protocols/derivatives.py

Differs from the paper: the exchange comes before the update, as in the authors' code, and surrogates start at 0;
warm_start=True sends C(h) of all rows first. order="update_first" with warm_start=True is the paper to the letter:

    G_k <- C(h_k) of all rows                               warm_start
    each round t:
      all:      update with the surrogates as they are      engine/protocols/update_first.py, update and local
      party k:  c_k <- C(h_k - G_k[rows]), h_k under the new weights: a second forward pass     refresh
      all:      G_k[rows] += c_k                            refresh
"""

from thinwire.engine.compress import Compressor, Identity
from thinwire.engine.methods.parts import build_schedule, parse_labels
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import Direct, ErrorFeedback


def efvfl(
    compressor: Compressor,
    labels: str = "shared",
    local_steps: int = 1,
    *,
    order: str = "exchange_first",
    warm_start: bool = False,
    scope: str = "rows",
    broadcast: str = "symbols",
    top_compressor: Compressor | None = None,
) -> Recipe:
    """Sends what the surrogates still miss; what compression loses now is corrected later.

    Args:
        compressor: of what the surrogates still miss; has to be a contraction.
        labels: "shared" with all parties, or "private".
        local_steps: updates on each batch, where labels are shared.
        order: "exchange_first" as the authors' code, or "update_first" as the paper.
        warm_start: send all rows' embeddings before the first round.
        scope: the error of the batch's "rows" travels, or that of the whole "table", computed anew.
        broadcast: what the other parties get, where labels are shared: "symbols", or the batch's "surrogates".
        top_compressor: of the top model's weights, where labels are shared.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.
        IncompatibleRecipe: a compressor under which the error would grow.

    Examples:
        >>> tw.methods.efvfl(tw.compress.TopK(0.1), labels="private").name
        'efvfl'
    """
    who = parse_labels("efvfl", labels)
    return Recipe(
        "efvfl",
        uplink=ErrorFeedback(compressor, scope),
        downlink=Direct(Identity()),
        top=ErrorFeedback(top_compressor) if top_compressor else Direct(Identity()),
        schedule=build_schedule(who, local_steps),
        labels=who,
        order=order,
        broadcast=broadcast,
        warm_start=warm_start,
    )
