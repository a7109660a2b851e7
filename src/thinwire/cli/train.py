"""`thinwire train`: a job in this process, its parties simulated."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from thinwire.cli.clean import clean_at_the_end
from thinwire.cli.progress import RunProgress
from thinwire.cli.shown import (
    AsJson,
    Fresh,
    From,
    JobPath,
    LogTo,
    Settings,
    WithOptimizers,
    beginning_of,
    bytes_shown,
    metrics_shown,
    prepared_shown,
    privacy_shown,
    seconds_shown,
)
from thinwire.errors import BadInput, ThinwireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from thinwire.job import Job, Result
    from thinwire.job.callbacks import Follower

__all__ = ["Failed", "new_folder", "train", "trained"]

INTERRUPTED = 130


class Failed(ThinwireError):
    """A run that had begun could not go on."""


def train(
    job: JobPath,
    *,
    settings: Settings = [],  # noqa: B006
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="DIR", help="The run's folder; runs/<job>-<time> unless given."),
    ] = None,
    seed: Annotated[Optional[int], typer.Option("--seed", help="Instead of the job's seed.")] = None,  # noqa: UP045
    device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--device", help="Where the models live: cpu, cuda, cuda:1."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    from_run: From = None,
    fresh: Fresh = [],  # noqa: B006
    with_optimizers: WithOptimizers = False,
    log_to: LogTo = None,
    as_json: AsJson = False,
) -> None:
    """Train a job in this process."""
    from rich.console import Console

    from thinwire.job.dry_run import describe_preparation
    from thinwire.job.job_loader import load_job, resolve_job
    from thinwire.job.job_snapshot import require_same_job, save_job

    if resume and out is None:
        raise BadInput("--resume needs --out DIR: the folder of the run to go on with")
    followers = _followers(log_to)
    overrides = [*settings]
    overrides += [] if seed is None else [f"job.seed={seed}"]
    overrides += [] if device is None else [f"job.device={json.dumps(device)}"]
    beginning = beginning_of(from_run, fresh, with_optimizers)
    loaded = load_job(job, overrides)
    if beginning is not None and not resume:  # a resumed run has weights of its own
        for line in loaded.start_from(beginning.folder, beginning.fresh, beginning.optimizers).said():
            typer.echo(f"  {line}", err=True)
    text = resolve_job(job, overrides)
    coding = loaded.label_party.coding
    for line in prepared_shown(describe_preparation(loaded), None if coding is None else coding.says):
        typer.echo(line, err=True)
    folder = out or new_folder(job.stem)
    (require_same_job if resume else save_job)(folder, text, loaded)
    again = ["thinwire", "train", str(job)]
    for override in overrides:
        again += ["--set", override]
    again += [] if log_to is None else ["--log-to", log_to]
    again = [*again, "--out", str(folder), "--resume"]
    try:
        result = trained(loaded, Console(stderr=True), loaded.recipe.name, folder, resume, followers)
    except KeyboardInterrupt:
        typer.echo(f"thinwire: stopped; go on from the last evaluation with\n  {shlex.join(again)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(result.summary()))
    else:
        _print(result.summary())
    if result.interrupted:
        typer.echo(f"thinwire: stopped; go on with\n  {shlex.join(again)}", err=True)
        raise typer.Exit(INTERRUPTED)
    clean_at_the_end(folder)


def _followers(names: str | None) -> Sequence[Follower]:
    """Writers are asked for before anything is read: one that is not installed is said at once."""
    if names is None:
        return ()
    from thinwire.integrations import writers_named

    return writers_named(names)


def trained(
    job: Job,
    console: Console,
    name: str,
    out: Path | None = None,
    resume: bool = False,
    followers: Sequence[Follower] = (),
) -> Result:
    """Trains with progress. What goes wrong after the start is a failure, not wrong input."""
    from thinwire.job import train as train_job

    planned, rounds = job.batching().rounds, job.limited_batching(job.check()).rounds
    if rounds < planned:
        console.print(f"the privacy budget allows {rounds} of {planned} rounds: the run ends there", style="yellow")
    with RunProgress(console, name, rounds) as progress:
        try:
            return train_job(job, callbacks=[progress, *followers], out=out, resume=resume, on_round=progress.round)
        except BadInput as error:
            if progress.begun:
                raise Failed(str(error)) from error
            raise


def new_folder(stem: str) -> Path:
    """runs/<stem>-<time>, which is not there yet."""
    name = f"{stem}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    folders = (Path("runs") / (name if count == 1 else f"{name}-{count}") for count in range(1, 1000))
    return next(folder for folder in folders if not folder.exists())


def _print(summary: dict[str, Any]) -> None:
    traffic, target = summary["bytes"], summary["target"]
    typer.echo(f"{summary['method']}: {summary['rounds']} rounds, {summary['epochs']:g} epochs")
    typer.echo(f"  {metrics_shown(summary)}; best {summary['best']['metric']} {summary['best']['value']:.4g}")
    typer.echo(
        f"  {bytes_shown(traffic['up'])} up, {bytes_shown(traffic['down'])} down, {summary['messages']} messages "
        f"(evaluation: {bytes_shown(traffic['evaluation'])} more)"
    )
    link = summary["link_seconds"]
    typer.echo(
        f"  {seconds_shown(summary['seconds'])} here"
        + ("" if link is None else f", {seconds_shown(link)} on the link")
    )
    if target is not None:
        reached = f"reached in round {target['reached_round']}, after {bytes_shown(target['bytes'] or 0)}"
        typer.echo(
            f"  target {target['metric']} {target['value']:g} "
            + (reached if target["reached_round"] is not None else "not reached")
        )
    for line in privacy_shown(summary["privacy"]):
        typer.echo(f"  {line}")
    typer.echo(f"  run: {summary['run_dir']}")
    typer.echo(f"  report: {Path(summary['run_dir']) / 'report.html'}")
