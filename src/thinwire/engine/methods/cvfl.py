"""C-VFL (Castiglia et al., ICML 2022), Algorithm 1; its Q = 1 variant, Algorithm 2, is labels="private".

    each round t0:
      party m:  send C_m(h_m)                               RepresentationFeatureEnd.send
      label:    send all C_j(h_j) and C_0(theta_0) to all   RepresentationLabelEnd.exchange
      for t = t0 .. t0 + Q - 1:                             engine/schedule/plan.py
        party m:  gradient at its own exact h_m, the others' received ones, the received top model; step
        label:    step of the exact theta_0 on the received embeddings

Differs from the paper: a party does not get its own symbols back; theta_0 travels uncompressed unless
`top_compressor` is given (the paper's experiments compress it like the embeddings).
"""

from thinwire.engine.compress import Compressor, Identity
from thinwire.engine.methods.parts import build_schedule, parse_labels
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import Direct


def cvfl(
    compressor: Compressor, local_steps: int = 1, labels: str = "shared", top_compressor: Compressor | None = None
) -> Recipe:
    """Compressed embeddings and `local_steps` on each batch, without error feedback.

    Args:
        compressor: of embeddings, on their way up.
        local_steps: updates on each batch.
        labels: "shared" with all parties, or "private".
        top_compressor: of the top model's weights, which travel where labels are shared.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.methods.cvfl(tw.compress.Uniform(4), labels="private").name
        'cvfl'
    """
    who = parse_labels("cvfl", labels)
    return Recipe(
        "cvfl",
        uplink=Direct(compressor),
        downlink=Direct(Identity()),
        top=Direct(top_compressor or Identity()),
        schedule=build_schedule(who, local_steps),
        labels=who,
    )
