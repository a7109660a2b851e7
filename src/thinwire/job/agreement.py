"""What all parties of a job must read alike, field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thinwire.engine.models import MODELS
from thinwire.engine.recipe import Recipe
from thinwire.job.disclosure import Participants
from thinwire.job.registry import fill_defaults
from thinwire.job.schema import JobSection, LabelEntry

# Targets, budgets and metrics are the label party's to judge, devices and diagnostics everyone's own matter.
_SETTINGS = ("epochs", "batch_size", "batches", "seed", "eval_every", "effort", "training", "budget", "split")


def agreement(recipe: Recipe, settings: JobSection, roster: Participants, top: LabelEntry | None) -> dict[str, str]:
    """Every shared field by its dotted path; `top` under shared labels, where every party builds the top model.

    "recipe" is the recipe's digest; the fields below it only serve to name a difference.
    """
    found = {"recipe": recipe.digest()}
    found |= _leaves("recipe", {key: part for key, part in recipe.describe().items() if key != "is"})
    given = settings.model_dump()
    for field in _SETTINGS:
        found[f"job.{field}"] = _text(given[field])
    found["parties"] = ", ".join(roster.feature_parties)
    found["label_party"] = roster.label_party
    if top is not None:
        found["label_party.fusion"] = top.fusion
        found["label_party.loss"] = top.loss
        found["label_party.class_weights"] = _text(top.class_weights)
        found |= _leaves("label_party.top", fill_defaults(top.top or {}, "name", MODELS))
    return found


def _leaves(path: str, value: Any) -> dict[str, str]:
    """The kind of a part stands under the part's own path."""
    if not isinstance(value, Mapping):
        return {path: _text(value)}
    found: dict[str, str] = {}
    for key, part in value.items():
        found |= _leaves(path if key == "is" else f"{path}.{key}", part)
    return found


def _text(value: Any) -> str:
    """Canonical: 2 and 2.0 epochs are as many."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value, sort_keys=True)
