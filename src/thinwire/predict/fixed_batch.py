"""Models row by row: what a row comes to does not depend on the rows it is computed with.

A matrix product rounds by how many rows there are, and by where a row lies in memory. So rows are computed in blocks
of one size, short ones filled up, and row r always lies at place r mod BLOCK: whoever asks, alone or with others,
gets the same floats to the bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.engine.protocols.evaluation import evaluation_mode
from thinwire.engine.streams import Rows

BLOCK = 16


def run_in_blocks(module: nn.Module, values: Tensor, rows: Rows) -> Tensor:
    """module(values) where values[i] belongs to row rows[i]; row by row the same, whatever else is asked for."""
    slots, blocks = _slots(rows)
    like = next(module.parameters(), values)
    values = values.to(like.device)
    if values.is_floating_point() and like.is_floating_point():
        values = values.to(like.dtype)
    # Filled up with copies of a row that is there: nothing a model might choke on.
    source = torch.zeros(blocks * BLOCK, dtype=torch.long)
    source[slots] = torch.arange(len(rows))
    filled = values[source.to(values.device)]
    with evaluation_mode(module):
        parts = [module(filled[start : start + BLOCK]) for start in range(0, len(filled), BLOCK)]
    for part in parts:
        if len(part) != BLOCK:
            raise BadInput(f"a model gives {len(part)} rows for {BLOCK}; it must give one for each")
    return torch.cat(parts)[slots.to(parts[0].device)]


def _slots(rows: Rows) -> tuple[Tensor, int]:
    """Where each row goes, and how many blocks that takes."""
    places = rows.numpy() % BLOCK
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.searchsorted(ordered, ordered)  # of the rows with the same place
    block = np.empty(len(places), np.int64)
    block[order] = np.arange(len(places)) - first
    return torch.from_numpy(block * BLOCK + places), int(block.max()) + 1
