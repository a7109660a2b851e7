"""PhysioNet/Computing in Cardiology Challenge 2012: 48 hours in intensive care; did the patient die in hospital?

37 measurements and 5 facts of admission. It stands in for MIMIC-III, which needs a signed agreement: four
parties as C-VFL cuts that, or bedside and laboratory (`VITALS_AND_LABS`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from thinwire.data.finding import Source, find, missing
from thinwire.data.sampling import chosen
from thinwire.data.sets.fields import Field, Labels, divided_fields
from thinwire.data.sets.physionet_files import STATIC, Stays, compact_stays, official_stays
from thinwire.data.sets.request import Request
from thinwire.data.sets.series import HOURS, forward_filled
from thinwire.data.splits import ColumnsByCount, ColumnsByName, Split
from thinwire.data.standardising import standardised
from thinwire.data.vertical import VerticalData

__all__ = ["VITALS_AND_LABS", "PhysioNet2012"]

VITALS = (
    *("DiasABP", "FiO2", "GCS", "HR", "MAP", "MechVent", "NIDiasABP", "NIMAP", "NISysABP", "RespRate", "SaO2"),
    *("SysABP", "Temp", "Urine", "Weight"),
)
LABS = (
    *("ALP", "ALT", "AST", "Albumin", "BUN", "Bilirubin", "Cholesterol", "Creatinine", "Glucose", "HCO3", "HCT", "K"),
    *("Lactate", "Mg", "Na", "PaCO2", "PaO2", "Platelets", "TroponinI", "TroponinT", "WBC", "pH"),
)
VITALS_AND_LABS = ColumnsByName((("bedside", VITALS), ("laboratory", (*LABS, *STATIC))))

_COMPACT = "icu/physionet2012_48h_ab.npz"
_RARE = (0.1, 99.9)  # percentiles: beyond them are slips of the pen, such as a pH of 735

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class PhysioNet2012:
    """physionet2012/set-a and set-b with Outcomes-a.txt and Outcomes-b.txt, or the compact NPZ file."""

    masks: bool = False  # a second column for each measurement: 1 where it was measured in that hour
    name: str = "physionet2012"
    default_split: Split = ColumnsByCount((11, 11, 10, 10))
    source: Source = Source(
        "PhysioNet 2012",
        "https://physionet.org/content/challenge-2012/1.0.0/",
        tuple(f"physionet2012/{name}" for name in ("Outcomes-a.txt", "Outcomes-b.txt", "set-a/", "set-b/")),
        "it is patients' data, to be fetched by those who will use it",
    )

    def load(self, split: Split, request: Request) -> VerticalData:
        stays = self._stays(request.folder)
        subset = request.subset
        a, b = np.flatnonzero(~stays.test), np.flatnonzero(stays.test)
        train = a[chosen(stays.died[a], subset.rows, subset.seed)]
        test = b[chosen(stays.died[b], subset.test_rows, subset.seed, "test_rows")]
        fields = [*self._measured(stays, train, test), *_static(stays, train, test)]
        about = (
            "PhysioNet 2012, set-a for training and set-b for testing, gaps filled from the hour before"
            f"{', with masks' if self.masks else ''}, standardised by the training rows, clipped at their "
            f"percentiles {_RARE[0]} and {_RARE[1]}, 0 where never measured"
        )
        return divided_fields(self.name, fields, Labels(stays.died[train], stays.died[test]), split, about)

    def _stays(self, folder: Path) -> Stays:
        for root in ("physionet2012", "."):
            if (folder / root / "Outcomes-a.txt").exists():
                return official_stays(folder / root)
        found = find(folder, [_COMPACT])
        if found is None:
            raise missing(self.source, folder, ["physionet2012/Outcomes-a.txt", _COMPACT])
        return compact_stays(found)

    def _measured(self, stays: Stays, train: NDArray[np.int64], test: NDArray[np.int64]) -> list[Field]:
        fields = []
        for k, name in enumerate(stays.channels):
            raw, raw_test = stays.x[train, :, k : k + 1], stays.x[test, :, k : k + 1]
            if name == "MechVent":  # written down only while it is on: the gaps say something
                values, values_test = (np.nan_to_num(forward_filled(part)) for part in (raw, raw_test))
            else:
                values, values_test = _scaled(raw, raw_test)
            if self.masks:
                values, values_test = (
                    np.concatenate([filled, (~np.isnan(part)).astype(np.float32)], axis=2)
                    for filled, part in ((values, raw), (values_test, raw_test))
                )
            fields.append(Field(name, values, values_test))
        return fields


def _scaled(raw: Floats, raw_test: Floats) -> tuple[Floats, Floats]:
    """Fitted on what was measured, then filled: a long gap does not count many times."""
    there = raw[~np.isnan(raw)]
    low, high = np.percentile(there, _RARE).astype(np.float32) if there.size else (np.float32(0), np.float32(0))
    scaled = standardised(np.clip(raw, low, high), np.clip(raw_test, low, high))
    train, test = (np.nan_to_num(forward_filled(part)) for part in scaled)
    return train, test


def _static(stays: Stays, train: NDArray[np.int64], test: NDArray[np.int64]) -> list[Field]:
    """The facts of admission, the same in every hour."""
    fields = []
    for k, name in enumerate(STATIC):
        own, own_test = _scaled(stays.static[train, None, k : k + 1], stays.static[test, None, k : k + 1])
        fields.append(Field(name, np.repeat(own, HOURS, axis=1), np.repeat(own_test, HOURS, axis=1)))
    return fields
