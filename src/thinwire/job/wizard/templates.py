"""One template a case: what a job is begun with before anything is known but its kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thinwire.data.prepare import Settings

_THIN = {"method": "thin", "reuse": 1}
_WHY = "few bytes both ways, private labels; a higher reuse sends fewer still, and learns small tables by heart"


@dataclass(frozen=True)
class Template:
    """Settings of a kind of job; numbers that follow from the files are filled in later."""

    title: str
    epochs: int
    recipe: dict[str, Any]
    why: str  # this recipe
    model: dict[str, Any]  # of tables
    label_model: dict[str, Any] | None = None  # of the label party's own columns; as the others' unless given
    job: dict[str, Any] = field(default_factory=dict)
    fusion: str = "sum"
    prepare: Settings = Settings()
    known: bool = False  # what is public about columns has to be said
    least: int = 1  # feature parties
    arrays: bool = False  # usual for it: test rows are arrays of their own, and rows stand in one order


_MLP = {"name": "mlp", "hidden": [64], "width": 16}
_TOWER = {"name": "deep_tower", "embedding_width": 8, "hidden": [64], "width": 16}

TEMPLATES: dict[str, Template] = {
    "tabular": Template(
        "companies with a table each",
        epochs=20,
        recipe=_THIN,
        why=_WHY,
        model=_MLP,
    ),
    "images": Template(
        "parties that hold parts or views of the same pictures",
        epochs=20,
        recipe=_THIN,
        why=_WHY,
        model=_MLP,
        arrays=True,
    ),
    "ctr": Template(
        "clicks: many categories with many values",
        epochs=3,
        recipe=_THIN,
        why=_WHY,
        model=_TOWER,
        label_model={**_TOWER, "name": "wide_and_deep"},
        fusion="concat",
        prepare=Settings(categories="codes", vocabulary=1000, buckets=1000),
    ),
    "series": Template(
        "time series of the same stays, machines or customers",
        epochs=10,
        recipe=_THIN,
        why=_WHY,
        model=_MLP,
        arrays=True,
    ),
    "private": Template(
        "with a guarantee for single rows of the feature parties",
        epochs=3,
        recipe={"method": "pbm", "trials": 16, "beta": 0.15},
        why="the label party sees noisy sums of embeddings alone; every use of a row costs, so few epochs and narrow "
        "embeddings",
        model={"name": "mlp", "hidden": [16], "width": 4, "out_activation": "tanh"},
        job={"training": {"name": "DPBottom", "clip": 1.0, "noise_multiplier": 4.0}},
        known=True,
        least=3,
    ),
}
