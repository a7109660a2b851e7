"""One party's own models of a run over the network, in formats that others read; no other party is needed.

A feature party has its bottom model; the label party its top model, and a bottom model where it holds features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.errors import BadInput
from thinwire.job.job_loader import find_loss
from thinwire.job.party_view import LabelData, PartyView, read_party_view
from thinwire.job.schema import LabelEntry
from thinwire.models.fusion import fused_width
from thinwire.models.losses import Outputs
from thinwire.party import FeatureParty
from thinwire.predict.exporting import exported, several
from thinwire.predict.model_files import load_model
from thinwire.predict.run_folder import RunFolder
from thinwire.runs import RunFacts, read_facts
from thinwire.types import PartyName

__all__ = ["export_own", "owner_of"]

_LOOKED_AT = 8  # rows that an export is checked on


def owner_of(folder: Path) -> PartyName | None:
    """The party whose part of a run over the network lies there; None for a whole run."""
    facts = read_facts(folder)
    return None if facts is None else facts.party


def export_own(folder: Path, to: str, out: Path) -> dict[str, Path]:
    """The files by model, as for a whole run; `export.json` says how all parties' would meet, as far as known."""
    run, facts = RunFolder(folder), read_facts(folder)
    if facts is None or facts.party is None:
        raise BadInput(f"{folder} is no party's part of a run over the network; thinwire.load_run exports whole runs")
    own = read_party_view(run.job, facts.party)
    if own.is_label_party:
        models, shape = _of_label_party(own, own.load_label_data(), facts)
    else:
        models, shape = _of_feature_party(own, own.load_features(), facts)
    for name, module in models.items():
        load_model(folder, name, module)
        module.eval()
    return exported(folder, models, shape, to, out)


@dataclass(frozen=True, eq=False)
class _OwnShape:
    """A few rows for each of its models, and how they belong to the others'."""

    rows: Mapping[str, Tensor]
    said: Mapping[str, Any]

    def inputs(self, models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        return {name: several(rows) for name, rows in self.rows.items()}

    def about(self) -> dict[str, Any]:
        return dict(self.said)


def _of_feature_party(own: PartyView, party: FeatureParty, facts: RunFacts) -> tuple[dict[str, nn.Module], _OwnShape]:
    rows = torch.as_tensor(party.features[:_LOOKED_AT])
    said = {"party": own.me, "fusion": {"how": facts.fusion, "order": list(facts.widths)}, "outputs": None}
    return {own.me: party.bottom}, _OwnShape({own.me: rows}, said)


def _of_label_party(own: PartyView, data: LabelData, facts: RunFacts) -> tuple[dict[str, nn.Module], _OwnShape]:
    if not isinstance(own.section, LabelEntry):
        raise BadInput(f"{own.me!r} is no label party")
    widths = {name: width for name, width in facts.widths.items() if name != own.me}
    party = own.label_party_of(data, widths)
    models, rows = {"top": party.top}, {"top": _made_up(fused_width(party.fusion, list(facts.widths.values())))}
    if data.bottom is not None and data.features is not None:
        models[own.me], rows[own.me] = data.bottom, data.features[:_LOOKED_AT]
    said = {
        "party": own.me,
        "fusion": {"how": party.fusion, "order": list(facts.widths)},
        "outputs": Outputs.of(find_loss(own.section)).value,
    }
    return models, _OwnShape(rows, said)


def _made_up(width: int) -> Tensor:
    """Embeddings of others are not here; the top model is compared on some of their shape."""
    return torch.randn(_LOOKED_AT, width, generator=torch.Generator().manual_seed(0))
