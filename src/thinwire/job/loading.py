"""From a job file to a job: read, overridden, validated, its data and models loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thinwire.job.aligned import RowsOf, require_one_alignment, require_same_rows
from thinwire.job.calls import optimizer_of, recipe_of, training_of
from thinwire.job.job import Job, embedding_width
from thinwire.job.judged import budget_of, judge, judge_batch_size, judge_settings, storage_of
from thinwire.job.messages import at
from thinwire.job.reading import read_job_file, read_text
from thinwire.job.resolving import resolved_document
from thinwire.job.schema import JobFile, LinkSection
from thinwire.job.sections import Sections
from thinwire.job.toml_text import toml_text
from thinwire.transport.link import Link

__all__ = ["load_job", "read_job_file", "resolved"]


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """The job of a file, with `key=value` settings on top; refuses whatever cannot run."""
    path = Path(path)
    with at(str(path)):
        text = read_text(path, overrides)
    with text.located():
        return _job(text.validated(JobFile), path.resolve().parent)


def resolved(path: str | Path, overrides: Sequence[str] = ()) -> str:
    """The job file as it was meant: settings applied, defaults said, paths absolute; runs from anywhere."""
    path = Path(path)
    with at(str(path)):
        text = read_text(path, overrides)
    with text.located():
        file = text.validated(JobFile)
        recipe_of("recipe", file.recipe)
        optimizer_of("optimizer", file.optimizer)
    return toml_text(resolved_document(file, path.resolve().parent))


def _job(file: JobFile, folder: Path) -> Job:
    settings = file.job
    recipe = recipe_of("recipe", file.recipe)
    optimizer = optimizer_of("optimizer", file.optimizer)
    judge_settings(settings)
    _require_one_alignment(file, folder)
    sections = Sections(folder, settings.seed, settings.split)
    parties = [sections.feature_party(section) for section in file.party]
    data = sections.label_data(file.label_party)
    widths = [embedding_width(f"party.{party.name}.model:", party.bottom, party.features) for party in parties]
    label_party = sections.label_party(file.label_party, data, widths)
    judge_batch_size(settings, len(label_party.labels))
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
        storage=storage_of(settings, folder),
        encryption_key=None if file.encryption is None else folder / file.encryption.key,
        training=training_of("job.training", settings.training),
        budget=budget_of(settings),
    )
    judge(job)
    return job


def _require_one_alignment(file: JobFile, folder: Path) -> None:
    sections = [(f"party.{party.name}", party) for party in file.party] + [("label_party", file.label_party)]
    for kind in (RowsOf.training, RowsOf.test):
        every = [kind(path, section) for path, section in sections]
        require_one_alignment({f"{rows.path}.{rows.prefix}alignment": rows.read(folder) for rows in every})
        require_same_rows(every, folder)


def _link(section: LinkSection) -> Link:
    given = section.model_dump(exclude_none=True, exclude={"parties"})
    return Link(**given, parties={name: _link(part) for name, part in (section.parties or {}).items()})
