"""`thinwire tune`: a recipe for a link."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from thinwire.cli.shown import AsJson, JobPath, Settings, bytes_shown, seconds_shown
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from thinwire.tuning import Asked, Prediction, Probed, Tuned

__all__ = ["tune"]

INTERRUPTED = 130


def tune(
    job: JobPath,
    *,
    link: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--link",
            metavar="RATE,RTT",
            help="Bits a second both ways, and the round trip: 100mbit,40ms. The job's own link unless given.",
        ),
    ] = None,
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--target", metavar="METRIC=VALUE", help="Instead of the job's; without one, what svfl reaches."
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Recipes to probe.")] = 16,
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--rounds", min=1, help="Of a probe, at most; the job's own number, or 300."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes that probe at the same time.")] = 1,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--seed", min=0, help="Of search and probes, instead of the job's; the next two check it."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="TUNED.toml", help="Write the job with this recipe, for `thinwire train`."),
    ] = None,
    settings: Settings = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Propose a recipe for a job on a link: compressors, cached steps and overlap, with predicted bytes and time."""
    from rich.console import Console

    from thinwire.tuning import Aim, Asked, parsed_link

    asked = Asked(
        job=job,
        settings=tuple(settings),
        link=None if link is None else parsed_link(link),
        aim=None if target is None else Aim.parse(target),
        rounds=rounds,
        trials=trials,
        jobs=jobs,
        seed=seed,
    )
    if out is not None:
        _require_new(out)
    try:
        tuned = _run(asked, Console(stderr=True))
    except KeyboardInterrupt:
        typer.echo("thinwire: stopped before svfl's own probes were done; there is nothing to propose yet", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if out is not None and tuned.proposal is not None:
        out.write_text(_job_text(asked, tuned), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({**tuned.described(), "out": None if out is None else str(out)}))
    else:
        _print(Console(), asked, tuned, out)
    if tuned.interrupted:
        typer.echo("thinwire: stopped; this is the best so far, and it was not verified", err=True)
        raise typer.Exit(INTERRUPTED)
    if tuned.proposal is None:
        aim = f"{tuned.aim.metric} {tuned.aim.value:g}"
        typer.echo(
            f"thinwire: nothing reached {aim} in {tuned.rounds} rounds; give more --rounds (and --set job.epochs=N), "
            "or a --target nearer by",
            err=True,
        )
        raise typer.Exit(1)


def _require_new(out: Path) -> None:
    if out.exists():
        raise BadInput(f"--out {out}: there is a file of that name; give another")
    if not out.parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {out.parent}")


def _run(asked: Asked, console: Console) -> Tuned:
    """With a bar on a terminal, and a line for every probe."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from thinwire.tuning import Watch
    from thinwire.tuning import tune as tune_job

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as live:
        task = live.add_task("starting", total=asked.trials + 1)

        def stage(said: str) -> None:
            live.update(task, description=said)
            if not console.is_terminal:
                console.print(said, markup=False, highlight=False, soft_wrap=True)

        def probed(one: Probed) -> None:
            live.advance(task)
            live.console.print(_probe_said(one), markup=False, highlight=False, soft_wrap=True)

        return tune_job(asked, Watch(stage, probed))


def _probe_said(one: Probed) -> str:
    from thinwire.tuning.space import recipe_said

    given_up = ", given up" if one.ended == "pruned" else ""
    cost = "" if one.prediction is None else f": {bytes_shown(one.prediction.total)}, {_on_link(one.prediction)}"
    return f"{recipe_said(one.recipe)}: {_known(one)}{given_up}{cost}"


def _job_text(asked: Asked, tuned: Tuned) -> str:
    from thinwire.tuning.link_text import link_said
    from thinwire.tuning.proposal import tuned_job

    head = f"# Proposed by thinwire tune for {link_said(tuned.link)}; target {_aim_said(tuned)}.\n"
    said = None if tuned.proposal is None else tuned.proposal.prediction
    if said is not None:
        head += f"# Predicted: {_cost_said(said)}.\n"
    return f"{head}\n{tuned_job(asked, tuned)}"


def _aim_said(tuned: Tuned) -> str:
    return f"{tuned.aim.metric} {tuned.aim.value:.4g} (from {tuned.aim_from})"


def _cost_said(said: Prediction) -> str:
    return f"{said.rounds} rounds, {bytes_shown(said.total)}, {_on_link(said)}"


def _on_link(said: Prediction) -> str:
    return f"{seconds_shown(said.seconds)} on the link"


# What is printed ------------------------------------------------------------------------------------------


def _print(console: Console, asked: Asked, tuned: Tuned, out: Path | None) -> None:
    from thinwire.job.toml_text import toml_text
    from thinwire.tuning.link_text import link_said
    from thinwire.tuning.proposal import overrides, proposed_recipe

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say(f"link: {link_said(tuned.link)}; target: {_aim_said(tuned)}; probes of {tuned.rounds} rounds at most")
    say(f"measured here, a step: {_ms_said(tuned.step_ms)}")
    say(f"measured here, a round beyond its step: {_ms_said(tuned.handling_ms)}")
    _print_table(console, tuned)
    say(
        "Rounds and bytes were counted in probes of this job; seconds are predicted, by the link's clock, from those "
        "bytes and the measured computing. What is extrapolated was stretched by svfl's own pace to the target."
    )
    if tuned.proposal is None:
        return
    say(_verdict(tuned))
    _print_verified(console, tuned)
    say("\n" + toml_text({"recipe": proposed_recipe(asked, tuned)}).rstrip())
    words = ["thinwire", "train", str(out or asked.job)]
    for override in overrides(asked, tuned) if out is None else ():
        words += ["--set", override]
    say(("\n" if out is None else f"\nwritten: {out}; ") + f"train it with\n  {shlex.join(words)}")


def _ms_said(ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g} ms" for name, value in ms.items())


def _print_table(console: Console, tuned: Tuned) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from thinwire.tuning.space import recipe_said

    table = Table(title="to the target: svfl, the finalists, and the best of other methods", box=SIMPLE_HEAD)
    table.add_column("recipe")
    for heading in ("rounds", "up", "down", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how it is known")
    for one in tuned.shown():
        said, known = one.prediction, "; ".join(_known(probe) for probe in one.probes)
        figures = ("-",) * 4
        if said is not None:
            figures = str(said.rounds), bytes_shown(said.up), bytes_shown(said.down), seconds_shown(said.seconds)
        table.add_row(recipe_said(one.recipe), *figures, known)
    console.print(table)


def _known(probe: Probed) -> str:
    """In a few words, of one seed."""
    made = probe.points[-1].round if probe.points else 0
    if probe.error is not None:
        return f"seed {probe.seed} failed: {probe.error}"
    if probe.prediction is None:
        return f"seed {probe.seed} not in {made} rounds"
    if probe.prediction.extrapolated:
        return f"seed {probe.seed} in {probe.prediction.rounds} rounds, extrapolated from {made}"
    return f"seed {probe.seed} in {made} rounds"


def _verdict(tuned: Tuned) -> str:
    from thinwire.tuning.space import recipe_said

    best, base = tuned.proposal, tuned.svfl.prediction
    said = None if best is None else best.prediction
    if best is None or said is None:
        return ""
    if not tuned.beats_svfl:
        return "No recipe that was tried is faster than svfl on this link: keep svfl."
    name = recipe_said(best.recipe)
    if base is None:
        return f"Proposed: {name}. svfl did not reach the target in {tuned.rounds} rounds with both seeds."
    fewer, faster = base.total / said.total, base.seconds / said.seconds
    return f"Proposed: {name}: predicted {faster:.3g} times faster than svfl, with {fewer:.3g} times fewer bytes."


def _print_verified(console: Console, tuned: Tuned) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    run = tuned.verified
    said = None if tuned.proposal is None else tuned.proposal.prediction
    if run is None or said is None:
        return
    title = f"one run of it with seed {run.seed}, its computing charged as it really took"
    if run.prediction is None:
        console.print(f"{title}: {_known(run)}; {_cost_said(said)} were predicted", highlight=False, soft_wrap=True)
        return
    was = run.prediction
    table = Table("", title=title, box=SIMPLE_HEAD)
    for heading in ("predicted", "measured"):
        table.add_column(heading, justify="right")
    table.add_row("rounds", str(said.rounds), str(was.rounds))
    table.add_row("bytes", bytes_shown(said.total), bytes_shown(was.total))
    table.add_row("seconds on the link", seconds_shown(said.seconds), seconds_shown(was.seconds))
    console.print(table)
