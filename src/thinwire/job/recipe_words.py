"""A recipe in words, on its four axes."""

from __future__ import annotations

from math import isinf

from thinwire.compress import Identity
from thinwire.privacy import Labels, SecureSum
from thinwire.privacy.defences import NoDefence
from thinwire.recipe import Recipe
from thinwire.schedule import CachedSteps, LocalSteps, Overlap
from thinwire.streams import ErrorFeedback, StreamSpec
from thinwire.transport.link import Link

__all__ = ["axes_of", "link_said"]

_ONCE = "every batch is exchanged, and learned from once"
_OVERLAPS = {
    Overlap.NONE: "",
    Overlap.DETERMINISTIC: ", taken while an embedding travels",
    Overlap.FILLING: ", as many as fit while an embedding travels",
    Overlap.AHEAD: ", taken while two embeddings travel",
}


def axes_of(recipe: Recipe, where: str) -> dict[str, str]:
    """What travels, when the parties talk, who sees what, where it runs."""
    return {"what travels": _what(recipe), "when": _when(recipe), "who sees": _who(recipe), "where": where}


def link_said(link: Link | None) -> str:
    """Where a simulated run runs."""
    if link is None:
        return "all parties simulated in one process, without a link's clock"
    rate = "a link without limit" if isinf(link.bandwidth_mbit) else f"a link of {link.bandwidth_mbit:g} Mbit/s"
    down = "" if link.down_bandwidth_mbit is None else f" up and {link.down_bandwidth_mbit:g} Mbit/s down"
    more = f", {len(link.parties)} parties with links of their own" if link.parties else ""
    return f"all parties simulated in one process, on {rate}{down}, {link.latency_ms:g} ms one way{more}"


def _what(recipe: Recipe) -> str:
    up = f"embeddings go up {_stream(recipe.uplink)}"
    scored = "" if isinstance(recipe.scoring, Identity) else f"; of rows that are only scored, by {recipe.scoring}"
    if recipe.labels is Labels.SHARED:
        return f"{up}{scored}; down go all parties' embeddings and the top model, {_stream(recipe.top)}"
    return f"{up}{scored}; derivatives come down {_stream(recipe.downlink)}"


def _stream(spec: StreamSpec) -> str:
    if isinstance(spec, ErrorFeedback):
        return f"with error feedback, by {spec.compressor}"
    return "as they are" if isinstance(spec.compressor, Identity) else f"by {spec.compressor}"


def _when(recipe: Recipe) -> str:
    match recipe.schedule:
        case CachedSteps(reuse=1, overlap=Overlap.AHEAD):
            return f"{_ONCE}; the next embedding leaves before this one's answer is here"
        case CachedSteps(reuse=1):
            return _ONCE
        case CachedSteps() as cached:
            xi = cached.xi_degrees
            weights = "" if xi is None else f", rows weighted by their cosine, up to {xi:g} degrees"
            return (
                f"the last {cached.capacity} exchanges are kept, each serves {cached.reuse} updates, {cached.steps} "
                f"local steps a round{_OVERLAPS[cached.overlap]}{weights}"
            )
        case LocalSteps(steps=1):
            return _ONCE
        case LocalSteps() as local:
            return f"every batch is exchanged, and learned from {local.steps} times"
    return _ONCE


def _who(recipe: Recipe) -> str:
    labels = "labels go to every party" if recipe.labels is Labels.SHARED else "labels stay with the label party"
    summed = "; it sees the sum of the embeddings alone" if isinstance(recipe.aggregation, SecureSum) else ""
    defence = "" if isinstance(recipe.defence, NoDefence) else f"; derivatives are guarded by {recipe.defence}"
    return labels + summed + defence
