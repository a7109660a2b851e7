"""`thinwire train`: a job in this process, its parties simulated."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.format import format_bytes, format_seconds
from thinwire.cli.clean import apply_retention
from thinwire.cli.options import parse_init_from, parse_trackers
from thinwire.cli.output import (
    format_baselines,
    format_preparation,
    format_privacy,
    format_quality,
    print_result,
    stop_with,
)
from thinwire.report.progress import ProgressLine, RunProgress, format_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from thinwire.job.job import Job
    from thinwire.training.callbacks import Follower
    from thinwire.training.result import Result


class Failed(ThinwireError):
    """A run that had begun could not go on."""


def train(
    job: Path,
    *,
    settings: list[str] = [],
    out: Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    epochs: float | None = None,
    resume: bool = False,
    from_run: Path | None = None,
    fresh: list[str] = [],
    with_optimizers: bool = False,
    log_to: str | None = None,
    code: list[str] = [],
    as_json: bool = False,
) -> None:
    """Train a job in this process, with all parties simulated."""
    from thinwire.job.job_loader import JobSource
    from thinwire.job.job_snapshot import require_same_job, save_job
    from thinwire.job.own_code import CodeSources
    from thinwire.training.dry_run import describe_preparation

    if resume and out is None:
        raise BadInput("--resume needs --out DIR, the folder of the run to resume")
    followers = parse_trackers(log_to)
    overrides = [*settings]
    overrides += [] if seed is None else [f"job.seed={seed}"]
    overrides += [] if device is None else [f"job.device={json.dumps(device)}"]
    overrides += [] if epochs is None else [f"job.epochs={epochs}"]
    beginning = parse_init_from(from_run, fresh, with_optimizers)
    source = JobSource(job, overrides, CodeSources.beside(job, code))
    with ProgressLine("reading the tables", 0) as progress:
        loaded = source.load(progress.follower)
    if beginning is not None and not resume:  # a resumed run has weights of its own
        for line in loaded.start_from(beginning.folder, beginning.fresh, beginning.optimizers).describe():
            typer.echo(f"  {line}", err=True)
    coding = loaded.label_party.coding
    for line in format_preparation(describe_preparation(loaded), None if coding is None else coding.says):
        typer.echo(line, err=True)
    folder = out or new_folder(job.stem)
    (require_same_job if resume else save_job)(folder, source.resolve(), loaded)
    again = ["thinwire", "train", str(job)]
    for override in overrides:
        again += ["--set", override]
    for one in code:
        again += ["--code", one]
    again += [] if log_to is None else ["--log-to", log_to]
    again = [*again, "--out", str(folder), "--resume"]
    try:
        result = run_job(loaded, folder, resume, followers)
    except KeyboardInterrupt:
        raise stop_with(f"stopped; resume from the last evaluation with\n  {shlex.join(again)}") from None
    summary = result.summary()
    print_result(summary, as_json, _format_summary(summary))
    if result.interrupted:
        raise stop_with(f"stopped; resume with\n  {shlex.join(again)}")
    apply_retention(folder)


def run_job(job: Job, out: Path | None = None, resume: bool = False, followers: Sequence[Follower] = ()) -> Result:
    """Trains with progress. What goes wrong after the start is a failure, not wrong input."""
    from thinwire.training.train import train as train_job

    planned, rounds = job.divide_rows().rounds, job.limit_rounds(job.check()).rounds
    with RunProgress(job.recipe.name, rounds) as progress:
        if rounds < planned:
            progress.note(f"the privacy budget allows {rounds} of {planned} rounds, so the run ends there")
        try:
            return train_job(job, callbacks=[progress, *followers], out=out, resume=resume, on_round=progress.move)
        except BadInput as error:
            if progress.begun:
                raise Failed(str(error)) from error
            raise


def new_folder(stem: str) -> Path:
    """runs/<stem>-<time>, which is not there yet."""
    name = f"{stem}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    folders = (Path("runs") / (name if count == 1 else f"{name}-{count}") for count in range(1, 1000))
    return next(folder for folder in folders if not folder.exists())


def _format_summary(summary: dict[str, Any]) -> Iterator[str]:
    traffic, target, link = summary["bytes"], summary["target"], summary["link_seconds"]
    yield f"{summary['method']}: {summary['rounds']} rounds, {summary['epochs']:g} epochs"
    yield f"  {format_metrics(summary)}"
    if summary["validation"]:
        yield f"  test rows, evaluated once: {format_quality(summary['test']) or 'none'}"
        yield f"  delivered: the model after round {summary['delivered']['round']}, the best on validation rows"
    yield (
        f"  {format_bytes(traffic['all'])} in total: training {format_bytes(traffic['up'])} up and "
        f"{format_bytes(traffic['down'])} down in {summary['messages']} messages, evaluation "
        f"{format_bytes(traffic['evaluation'])}"
    )
    if summary["quality"]:
        yield f"  test rows: {format_quality(summary['quality'])}"
    for line in format_baselines(summary):
        yield f"  {line}"
    on_link = "" if link is None else f", {format_seconds(link)} on the link"
    yield f"  {format_seconds(summary['seconds'])} here{on_link}"
    if target is not None:
        reached = f"reached in round {target['reached_round']}, after {format_bytes(target['bytes'] or 0)}"
        reached = "not reached" if target["reached_round"] is None else reached
        yield f"  target {target['metric']} {target['value']:g} {reached}"
    for line in format_privacy(summary["privacy"]):
        yield f"  {line}"
    yield f"  run: {summary['run_dir']}"
    yield f"  report: {Path(summary['run_dir']) / 'report.html'}"
