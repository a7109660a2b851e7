"""One run of an experiment as a folder that real parties can start from: data, job file and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from thinwire.base.errors import BadInput
from thinwire.job.toml_text import toml_text
from thinwire.lab.datasets.vertical import LABEL, VerticalData
from thinwire.lab.papers.building import with_categories
from thinwire.lab.papers.experiment import Curve, Experiment
from thinwire.net.pki import authority
from thinwire.storage import layout

_LABELS = "labels.npz"


def write_job_folder(
    folder: Path, experiment: Experiment, curve: Curve, seed: int, data: VerticalData, address: str
) -> Path:
    """The job file, for parties that meet at `address`; with the weights and batches of the simulated run."""
    if curve.settings.lr_factors:
        raise BadInput(f"{experiment.name}: lr_factors are in epochs; a job file has none")
    folder.mkdir(parents=True, exist_ok=True)
    held = dict(zip(data.names, zip(data.features, data.test_features, strict=True), strict=True))
    for name, (features, test_features) in held.items():
        np.savez(folder / f"{name}.npz", train=features.numpy(), test=test_features.numpy())
    np.savez(folder / _LABELS, train=data.labels.numpy(), test=data.test_labels.numpy())
    if data.label_features is not None and data.test_label_features is not None:
        own = data.label_features.numpy(), data.test_label_features.numpy()
        np.savez(folder / f"{LABEL}.npz", train=own[0], test=own[1])
    authority.issue(folder / "certs", [*held, LABEL], [address.rpartition(":")[0]], 30)
    document = {
        "job": _settings(curve, seed),
        "recipe": dict(curve.recipe),
        "optimizer": curve.settings.optimizer,
        "network": {"listen": address, "address": address, "certs": "certs"},
        "party": [_party(experiment, name, data) for name in held],
        "label_party": _label_party(experiment, data),
    }
    path = folder / layout.JOB
    path.write_text(toml_text(document))
    return path


def _settings(curve: Curve, seed: int) -> dict[str, Any]:
    settings = curve.settings
    asked = {
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "eval_every": settings.eval_every,
        "metrics": settings.metrics,
        "effort": settings.effort,
        "seed": seed,
    }
    return {key: value for key, value in asked.items() if value is not None}


def _party(experiment: Experiment, name: str, data: VerticalData) -> dict[str, Any]:
    model = with_categories(experiment.model.bottom, data.categories.get(name))
    return {"name": name, **_features(name), "model": model}


def _features(name: str) -> dict[str, Any]:
    file = f"{name}.npz"
    return {"features": {"file": file, "key": "train"}, "test_features": {"file": file, "key": "test"}}


def _label_party(experiment: Experiment, data: VerticalData) -> dict[str, Any]:
    model = experiment.model
    found: dict[str, Any] = {
        "name": LABEL,
        "labels": {"file": _LABELS, "key": "train"},
        "test_labels": {"file": _LABELS, "key": "test"},
        "top": model.top,
        "fusion": model.fusion,
        "loss": model.loss,
    }
    if model.class_weights is not None:
        found["class_weights"] = model.class_weights
    if data.label_features is not None and model.label_bottom is not None:
        found |= {**_features(LABEL), "model": with_categories(model.label_bottom, data.categories.get(LABEL))}
    return found
