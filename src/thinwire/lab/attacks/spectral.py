"""Labels from the main axis of derivatives (Sun et al., 2022, "Label leakage and protection from forward embedding").

Two classes that lie apart stretch the cloud of all rows along the line between them: the top singular vector of the
centred rows. The rare class lies farther from the common mean, and that tells the axis' sign. No row need be known.
The paper attacks embeddings so; derivatives, which say more of labels, are attacked here.
"""

from __future__ import annotations

import torch
from torch import Tensor


def spectral_scores(rows: Tensor) -> Tensor:
    """Each row of [N, E] along the main axis, towards the rare side."""
    centred = rows.detach().double()
    centred = centred - centred.mean(dim=0)
    # Of the small [E, E] matrix, not of the tall one.
    _, axes = torch.linalg.eigh(centred.T @ centred)
    along = centred @ axes[:, -1]
    # A few far rows on one side, many near ones on the other: the third moment has the sign of the few.
    scores: Tensor = along * torch.sign(along.pow(3).sum())
    return scores
