"""From a job file to a job: read, overridden, validated, its data and models loaded."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from thinwire.data import Values, read_features, read_labels
from thinwire.errors import BadInput
from thinwire.job.calls import filled, optimizer_of, recipe_of
from thinwire.job.job import Job, embedding_width
from thinwire.job.judged import judge
from thinwire.job.messages import at, did_you_mean, said
from thinwire.job.modules import module_of, weight_seed
from thinwire.job.overrides import override
from thinwire.job.schema import JobFile, JobSection, LabelSection, LabelSource, LinkSection, PartySection, Source
from thinwire.job.toml_text import toml_text
from thinwire.methods import METHODS
from thinwire.models import LOSSES, OPTIMIZERS, fused_width, metric
from thinwire.party import FeatureParty, LabelParty
from thinwire.transport.link import Link

__all__ = ["load_job", "read_job_file", "resolved"]

_SOURCES = {"features", "test_features", "labels", "test_labels"}


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """The job of a file, with `key=value` settings on top; refuses whatever cannot run."""
    path = Path(path)
    with at(str(path)):
        return _Loading(read_job_file(path, overrides), path.resolve().parent).job()


def resolved(path: str | Path, overrides: Sequence[str] = ()) -> str:
    """The job file as it was meant: settings applied, defaults said, paths absolute; runs from anywhere."""
    path = Path(path)
    with at(str(path)):
        document = read_job_file(path, overrides).model_dump(exclude_none=True)
        recipe_of("recipe", document["recipe"])
        optimizer_of("optimizer", document["optimizer"])
    document["recipe"] = filled(document["recipe"], "method", METHODS)
    document["optimizer"] = filled(document["optimizer"], "name", OPTIMIZERS)
    for party in [*document["party"], document["label_party"]]:
        for field in _SOURCES & party.keys():
            party[field]["file"] = str(path.resolve().parent / party[field]["file"])
    return toml_text(document)


def read_job_file(path: Path, overrides: Sequence[str] = ()) -> JobFile:
    """The validated text; no data is read yet."""
    if path.is_dir():
        raise BadInput("a folder, not a job file")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadInput("there is no such job file") from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput("not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"not TOML: {error}") from None
    override(document, overrides)
    try:
        return JobFile.model_validate(document)
    except ValidationError as error:
        raise BadInput(said(error, document)) from None


@dataclass(frozen=True)
class _Loading:
    file: JobFile
    folder: Path

    def job(self) -> Job:
        file, settings = self.file, self.file.job
        recipe = recipe_of("recipe", file.recipe)
        optimizer = optimizer_of("optimizer", file.optimizer)
        _check(settings)
        parties = [self._party(section) for section in file.party]
        label_party = self._label_party(file.label_party, parties)
        rows = len(label_party.labels)
        if settings.batch_size is not None and settings.batch_size > rows:
            raise BadInput(
                f"job.batch_size is {settings.batch_size}, but there are {rows} training rows; "
                "leave it out for all rows"
            )
        job = Job(
            parties=parties,
            label_party=label_party,
            recipe=recipe,
            optimizer=optimizer,
            batch_size=settings.batch_size,
            batches=settings.batches,
            epochs=settings.epochs,
            seed=settings.seed,
            eval_every=settings.eval_every,
            metrics=settings.metrics,
            link=None if file.link is None else _link(file.link),
            target=None if settings.target is None else (settings.target.metric, settings.target.value),
            stop=settings.stop,
            byte_budget=settings.byte_budget,
            link_seconds_budget=settings.link_seconds_budget,
            diagnostics=settings.diagnostics,
            effort=settings.effort,
            device=settings.device,
        )
        judge(job)
        return job

    def _party(self, section: PartySection) -> FeatureParty:
        path = f"party.{section.name}"
        features = self._features(f"{path}.features", section.features)
        return FeatureParty(
            section.name,
            features.array,
            self._bottom(path, section, features),
            self._test_features(path, section, features),
            None if section.optimizer is None else optimizer_of(f"{path}.optimizer", section.optimizer),
        )

    def _label_party(self, section: LabelSection, parties: Sequence[FeatureParty]) -> LabelParty:
        path = "label_party"
        if section.loss not in LOSSES:
            hint = did_you_mean(section.loss, LOSSES)
            raise BadInput(f"{path}.loss must be one of {', '.join(LOSSES)}, got {section.loss!r}{hint}")
        features = None if section.features is None else self._features(f"{path}.features", section.features)
        _require_no_label_among(section, features)
        bottom = None if features is None else self._bottom(path, section, features)
        labels = self._labels(f"{path}.labels", section.labels)
        tests = None if section.test_labels is None else self._labels(f"{path}.test_labels", section.test_labels)
        widths = [embedding_width(f"party.{party.name}.model:", party.bottom, party.features) for party in parties]
        if bottom is not None and features is not None:
            widths.append(embedding_width(f"{path}.model:", bottom, torch.as_tensor(features.array)))
        with at(f"{path}.fusion"):
            width = fused_width(section.fusion, widths)
        top_seed = weight_seed(self.file.job.seed, section.name, "top")
        with at(path):
            return LabelParty(
                section.name,
                labels,
                module_of("top", section.top, [width], top_seed, self.folder),
                tests,
                None if features is None else features.array,
                None if features is None else self._test_features(path, section, features),
                bottom,
                fusion=section.fusion,
                loss=LOSSES[section.loss],
                class_weights=section.class_weights,
                optimizer=None if section.optimizer is None else optimizer_of("optimizer", section.optimizer),
            )

    def _bottom(self, path: str, section: PartySection | LabelSection, features: Values) -> nn.Module:
        if section.model is None:
            raise BadInput(f"{path}.model is missing: features need a bottom model")
        seed = weight_seed(self.file.job.seed, section.name, "bottom")
        return module_of(f"{path}.model", section.model, features.array.shape[1:], seed, self.folder)

    def _features(self, path: str, source: Source) -> Values:
        with at(path):
            return read_features(
                self.folder / source.file, source.key, source.columns, source.all_but or (), source.delimiter or ","
            )

    def _test_features(self, path: str, section: PartySection | LabelSection, training: Values) -> Any:
        if section.test_features is None:
            return None
        test = self._features(f"{path}.test_features", section.test_features)
        if test.columns != training.columns and None not in (test.columns, training.columns):
            missing = [name for name in training.columns or () if name not in (test.columns or ())]
            extra = [name for name in test.columns or () if name not in (training.columns or ())]
            what = f"lacks {missing}" if missing else f"has {extra} too" if extra else "has them in another order"
            raise BadInput(f"{path}.test_features {what}; name the same columns as in features")
        if test.array.shape[1:] != training.array.shape[1:]:
            raise BadInput(
                f"{path}.test_features has rows of shape {list(test.array.shape[1:])}, features "
                f"{list(training.array.shape[1:])}"
            )
        return test.array

    def _labels(self, path: str, source: LabelSource) -> Any:
        with at(path):
            return read_labels(self.folder / source.file, source.key, source.column, source.delimiter or ",")


def _require_no_label_among(section: LabelSection, features: Values | None) -> None:
    """A label among the features would be learned by heart."""
    if features is None or section.features is None or section.features.file != section.labels.file:
        return
    column = section.labels.column
    if column is not None and column in (features.columns or ()):
        raise BadInput(f"label_party.features holds the label {column!r}; write all_but = [{column!r}]")


def _check(settings: JobSection) -> None:
    with at("job.device"):
        _require_device(settings.device)
    with at("job.metrics"):
        for name in settings.metrics:
            metric(name)
    target = settings.target
    if target is not None and target.metric not in (*settings.metrics, "loss"):
        hint = did_you_mean(target.metric, settings.metrics)
        raise BadInput(f"job.target.metric {target.metric!r} is not among job.metrics, and not 'loss'{hint}")


def _require_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(f"{name!r} is not here: {str(error).splitlines()[0]}") from None


def _link(section: LinkSection) -> Link:
    given = section.model_dump(exclude_none=True, exclude={"parties"})
    return Link(**given, parties={name: _link(part) for name, part in (section.parties or {}).items()})
