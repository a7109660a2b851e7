"""What a feature party's rows have cost so far: charged, and on record, before anything leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from thinwire.privacy.accounting import PrivacyLedger
from thinwire.types import Round

__all__ = ["EVALUATION", "PREDICTION", "TRAINING", "WARM_START", "Charges", "Releases", "Spending", "Unrecorded"]

# What one round may release: no two of them share noise or masks.
TRAINING, EVALUATION, WARM_START = "", "/evaluation", "/warm start"
PREDICTION = "/prediction"  # after the training: rounds are the numbers of the questions


class Releases(Protocol):
    """What a release of embeddings is charged to."""

    def release(self, round: Round, rows: Tensor, use: str) -> None:
        """Before the embeddings of these rows leave; raises BudgetExceeded where they must not."""

    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


class Charges(Protocol):
    """Where charges are written down for good."""

    def record(self, charge: str, spent: Callable[[], dict[str, Any]]) -> None:
        """On disk once this returns; a charge that is there already, in a replay, is not written again."""


class Unrecorded:
    """For parties in one process: what is sent there is seen by nobody else."""

    def record(self, charge: str, spent: Callable[[], dict[str, Any]]) -> None:
        """Nothing outlives the process but its checkpoints."""


class Spending:
    """One party's ledger: training rows first, test rows behind them."""

    def __init__(self, ledger: PrivacyLedger, rows: int, charges: Charges) -> None:
        self.ledger = ledger
        self._rows = rows
        self._charges = charges

    def release(self, round: Round, rows: Tensor, use: str) -> None:
        """Before the embeddings of these rows leave; raises BudgetExceeded where they must not."""
        behind = self._rows if use == EVALUATION else 0
        self.ledger.charge_release(rows.numpy() + behind)
        self._charges.record(f"release {round}{use}", self._figures)

    def step(self, round: Round, step: int, rows: Tensor) -> None:
        """Before a noisy gradient step from these rows."""
        self.ledger.charge_step(rows.numpy())
        self._charges.record(f"step {round} {step}", self._figures)

    def _figures(self) -> dict[str, Any]:
        """What the worst-off row has lost by now."""
        spent = self.ledger.spent()
        epsilons = {
            one["observer"]: [one["releases_epsilon"], one["end_to_end_epsilon"]] for one in spent["observers"]
        }
        return {**spent["most_uses_of_a_row"], "delta": spent["delta"], "epsilons": epsilons}

    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(counts) for name, counts in self.ledger.state().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.ledger.load({name: counts.numpy() for name, counts in tensors.items()})
