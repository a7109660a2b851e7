"""One run of an experiment as a job: its data among the parties, models by name, a curve's recipe and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.engine.models import LOSSES, MODELS, fusion_width
from thinwire.engine.models.optimizers import OptimizerSpec, StepMilestones
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.programs.program import Batches
from thinwire.job.checks import find_embedding_width
from thinwire.job.job import Job
from thinwire.job.job_loader import build_link
from thinwire.job.messages import within
from thinwire.job.own_code import CodeSources
from thinwire.job.registry import (
    build_module,
    build_optimizer,
    build_recipe,
    call,
    derive_weight_seed,
    list_parameters,
    look_up,
)
from thinwire.lab.datasets import DATA_SETS, load_split
from thinwire.lab.datasets.vertical import LABEL, SPLITS, Split, VerticalData
from thinwire.lab.papers.experiment import Curve, Experiment, SettingsSection


def load_data(experiment: Experiment, folder: str | None) -> VerticalData:
    """The rows of this size, the same for every seed; a missing file is said with where to get it."""
    if experiment.about.data not in DATA_SETS:
        raise BadInput(
            f"{experiment.name}: there is no reader for its data set, {experiment.about.data}, so the file only "
            "records the settings; docs/data.md explains how to add a reader"
        )
    return load_split(
        experiment.about.data,
        build_split(experiment.about.split),
        None if folder is None else Path(folder),
        rows=experiment.rows,
        test_rows=experiment.test_rows,
    )


def is_here(name: str, folder: str | None) -> bool:
    """Are the data set's files in the folder?"""
    return find_missing_data(name, folder) is None


def find_missing_data(name: str, folder: str | None) -> str | None:
    """Why the data set cannot be read, in one line, or None; a few rows are read to see."""
    if name not in DATA_SETS:
        return f"there is no reader for {name}"
    try:
        load_split(name, None, None if folder is None else Path(folder), rows=20, test_rows=20)
    except BadInput as error:
        return " ".join(str(error).split())
    return None


def build_split(given: str | Mapping[str, Any] | None) -> Split | None:
    """A split by its name, or a table of the name and its arguments; None is the data set's usual one."""
    if given is None:
        return None
    table = {"name": given} if isinstance(given, str) else given
    name, arguments = look_up("experiment.split", table, "name", SPLITS)
    return call("experiment.split", SPLITS[name], name, arguments)


# One run of an experiment as a job: the data's parties, the models by name, a curve's recipe and settings ---------


def build_job(experiment: Experiment, curve: Curve, seed: int, data: VerticalData) -> Job:
    """The job of one curve and seed; first weights follow from the seed, and are the same for every curve."""
    with within(f"{experiment.name}, curve {curve.name!r}"):
        settings = curve.settings
        recipe = build_recipe("recipe", curve.recipe)
        parties = [
            FeatureParty(name, x, _build_bottom("model.bottom", experiment.model.bottom, seed, data, name, x), test)
            for name, x, test in zip(data.names, data.features, data.test_features, strict=True)
        ]
        job = Job(
            parties=parties,
            label_party=_label_party(experiment, parties, seed, data),
            recipe=recipe,
            optimizer=_optimizer(settings, len(data.labels)),
            batch_size=None if settings.batch_size is None else min(settings.batch_size, len(data.labels)),
            seed=seed,
            link=None if settings.link is None else build_link(settings.link, data.names),
            **settings.model_dump(include=_AS_IN_A_JOB, exclude_none=True),
        )
        _require_widths(experiment, job)
        return job


_AS_IN_A_JOB = {"epochs", "eval_every", "metrics", "diagnostics", "effort"}


def _build_bottom(
    place: str, table: Mapping[str, Any], seed: int, data: VerticalData, name: str, features: Tensor
) -> nn.Module:
    table, shape = add_categories(table, data.categories.get(name)), tuple(features.shape[1:])
    return build_module(place, table, shape, derive_weight_seed(seed, name, "bottom"), CodeSources())


def _label_party(
    experiment: Experiment, parties: Sequence[FeatureParty], seed: int, data: VerticalData
) -> LabelParty:
    model = experiment.model
    widths = [find_embedding_width(f"party {party.name!r}:", party.bottom, party.features) for party in parties]
    bottom = None
    if data.label_features is not None:
        if model.label_bottom is None:
            raise BadInput("model.label_bottom is missing: the label party of this split holds features")
        bottom = _build_bottom("model.label_bottom", model.label_bottom, seed, data, LABEL, data.label_features)
        widths.append(find_embedding_width("model.label_bottom:", bottom, data.label_features))
    fused = fusion_width(model.fusion, widths)
    if model.loss not in LOSSES:
        raise BadInput(f"model.loss must be one of {', '.join(LOSSES)}, got {model.loss!r}")
    return LabelParty(
        LABEL,
        data.labels,
        build_module("model.top", model.top, (fused,), derive_weight_seed(seed, LABEL, "top"), CodeSources()),
        data.test_labels,
        features=data.label_features,
        test_features=data.test_label_features,
        bottom=bottom,
        fusion=model.fusion,
        loss=LOSSES[model.loss],
        class_weights=model.class_weights,
    )


def add_categories(table: Mapping[str, Any], sizes: Sequence[int] | None) -> Mapping[str, Any]:
    """Vocabularies follow from the data."""
    model: Callable[..., Any] | None = MODELS.get(str(table.get("name", "")).lower())
    if model is None or "fields_vocab" not in list_parameters(model):
        return table
    return {"fields_vocab": list(sizes or ()), **table}


def _optimizer(settings: SettingsSection, rows: int) -> OptimizerSpec:
    """With the learning rate's factors at rounds: files say epochs."""
    table = dict(settings.optimizer or {"name": "sgd", "lr": 0.1})
    spec = build_optimizer("optimizer", table)
    if not settings.lr_factors:
        return spec
    if not isinstance(spec.lr, float):
        raise BadInput("lr_factors: the optimizer's lr must be a number")
    size = None if settings.batch_size is None else min(settings.batch_size, rows)
    rounds = Batches(rows, size, 1.0, 0).rounds_per_epoch
    factors = tuple((round(epoch * rounds), factor) for epoch, factor in settings.lr_factors)
    table["lr"] = StepMilestones(spec.lr, factors)
    return type(spec)(**{key: value for key, value in table.items() if key != "name"})


def _require_widths(experiment: Experiment, job: Job) -> None:
    """The embeddings are as wide as the file says."""
    said = {party.name: experiment.about.width for party in job.parties}
    if job.label_party.features is not None and experiment.about.label_width is not None:
        said[job.label_party.name] = experiment.about.label_width
    found = job.check()
    for name, width in said.items():
        if found[name] != width:
            raise BadInput(f"the file says embeddings of width {width}, party {name!r} has {found[name]}")
