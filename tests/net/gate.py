"""A bottom model that stops in the middle of training until a file lets it go on."""

from __future__ import annotations

from pathlib import Path

# Written beside a job as gate.py; `closed` is a file whose presence holds the model at its fourth batch.
GATE = """
from pathlib import Path
from time import monotonic, sleep

from torch import nn


class Gate(nn.Sequential):
    def __init__(self, in_features: int, width: int, closed: str) -> None:
        super().__init__(nn.Linear(in_features, width), nn.Tanh())
        self.closed = Path(closed)
        self.batches = 0

    def forward(self, x):
        if self.training:
            self.batches += 1
        if self.training and self.batches == 4 and self.closed.exists():
            self.closed.with_name("reached").touch()
            deadline = monotonic() + 300
            while self.closed.exists() and monotonic() < deadline:
                sleep(0.01)
        return super().forward(x)
"""


def write_gate(folder: Path) -> dict[str, str | int]:
    """The module beside the job; gives the model's table."""
    (folder / "gate.py").write_text(GATE)
    return {"module": "gate:Gate", "width": 4, "closed": str(folder / "closed")}
