"""How embeddings meet at the label party: sum, mean or concat, always in party order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.base.errors import BadParameter, BadTensor

FUSIONS = ("sum", "mean", "concat")


def check_fusion(kind: str, widths: Sequence[int]) -> None:
    """Refuses embedding widths that this fusion cannot combine.

    Args:
        kind: "sum", "mean" or "concat".
        widths: embedding width of each party.

    Raises:
        BadParameter: an unknown fusion, no party, or different widths under "sum" or "mean".

    Examples:
        >>> tw.models.check_fusion("concat", [8, 16])
    """
    if kind not in FUSIONS:
        raise BadParameter(f"fusion must be one of {', '.join(map(repr, FUSIONS))}, got {kind!r}")
    if not widths:
        raise BadParameter("fusion needs the embedding of at least one party, got none")
    if kind != "concat" and len(set(widths)) > 1:
        raise BadParameter(
            f"fusion {kind!r} adds embeddings, but their widths differ: {', '.join(map(str, widths))}; "
            "use fusion='concat', or give every bottom model the same width"
        )


def fusion_width(kind: str, widths: Sequence[int]) -> int:
    """Width of the top model's input.

    Args:
        kind: "sum", "mean" or "concat".
        widths: embedding width of each party.

    Raises:
        BadParameter: widths that cannot be fused.

    Examples:
        >>> tw.models.fusion_width("concat", [8, 16])
        24
    """
    check_fusion(kind, widths)
    return sum(widths) if kind == "concat" else widths[0]


def fuse(kind: str, embeddings: Sequence[Tensor]) -> Tensor:
    """Fuses the parties' embeddings into the top model's input [B, E].

    Args:
        kind: "sum", "mean" or "concat".
        embeddings: h_1..h_K, each [B, E_k].

    Raises:
        BadTensor: the embeddings' rows differ.
        BadParameter: widths that cannot be fused.

    Examples:
        >>> import torch
        >>> tw.models.fuse("sum", [torch.ones(1, 2), torch.ones(1, 2)])
        tensor([[2., 2.]])
    """
    if any(h.dim() != 2 or len(h) != len(embeddings[0]) for h in embeddings):
        shapes = ", ".join(str(tuple(h.shape)) for h in embeddings)
        raise BadTensor(f"fusion needs embeddings [B, E] with the same rows, got {shapes}")
    check_fusion(kind, [h.shape[1] for h in embeddings])
    if kind == "concat":
        return torch.cat(list(embeddings), dim=1)
    # Left to right: floating-point sums depend on their order, and both ends must agree to the bit.
    total = embeddings[0]
    for h in embeddings[1:]:
        total = total + h
    return total / len(embeddings) if kind == "mean" else total
