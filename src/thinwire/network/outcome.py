"""What a party's run leaves to say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Outcome", "state_digest"]


@dataclass(frozen=True)
class Outcome:
    """The summary that `thinwire party --json` prints."""

    summary: dict[str, Any]
    interrupted: bool


def state_digest(tensors: Mapping[str, Tensor], ledger: list[dict[str, Any]]) -> str:
    """SHA-256 over every tensor of a party's state, and over its messages; the same after any failure."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    digest.update(json.dumps(ledger, sort_keys=True).encode())
    return digest.hexdigest()
