"""What scores mean to people: by the loss, and in the labels' own names and units where a table was prepared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from thinwire.at_rest import files_of, layout
from thinwire.models.losses import Outputs
from thinwire.prepare import LabelCoding
from thinwire.types import PartyName

__all__ = ["Answers"]


@dataclass(frozen=True)
class Answers:
    """`coding` is how labels were made numbers; None where they were numbers."""

    outputs: Outputs
    coding: LabelCoding | None = None

    @classmethod
    def of(cls, outputs: Outputs, run: Path, label_party: PartyName) -> Answers:
        """As the run's folder keeps them."""
        file = layout.kept_file(run, label_party, "labels")
        return cls(outputs, LabelCoding.from_json(files_of(run).read(file)) if file.exists() else None)

    def columns(self, width: int) -> tuple[str, ...]:
        classes = () if self.coding is None else self.coding.classes
        if self.outputs is Outputs.CLASSES and len(classes) == width:
            return tuple(f"probability_{name}" for name in classes)
        if self.outputs is Outputs.PROBABILITY and len(classes) == 2:
            return (f"probability_{classes[1]}",)
        return self.outputs.columns(width)

    def shown(self, outputs: Tensor) -> Tensor:
        """Probabilities or values, [rows, columns]; row by row."""
        table = self.outputs.shown(outputs)
        if self.outputs is Outputs.VALUE and self.coding is not None:
            return self.coding.in_units(table)
        return table
