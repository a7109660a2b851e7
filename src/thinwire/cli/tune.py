"""`thinwire tune`: a recipe for a link."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from thinwire.base.errors import BadInput
from thinwire.base.format import format_bytes, format_seconds
from thinwire.cli.output import build_table, print_plain, print_result, say, stop_with
from thinwire.report.progress import ProgressLine

if TYPE_CHECKING:
    from rich.table import Table

    from thinwire.lab.tune import Prediction, ProbeResult, TuningRequest, TuningResult


def _require_networks(asked: TuningRequest) -> None:
    from thinwire.job.job_file import read_job_file

    file = read_job_file(asked.job, asked.settings)
    if any(section.has_encoder for section in (*file.party, file.label_party)):
        raise BadInput(
            f"{asked.job}: tune searches recipes for networks that train; use `thinwire sweep` for bins or "
            "bits_per_row"
        )
    if file.has_trees:
        raise BadInput(
            f"{asked.job}: tune searches recipes for networks, and boosted trees have only one recipe, boosting; "
            "search leaves, shrinkage and down_step with `thinwire sweep`, or write a job for a network with "
            "`thinwire init --model mlp`"
        )


def tune(
    job: Path,
    *,
    link: str | None = None,
    target: str | None = None,
    trials: int = 16,
    rounds: int | None = None,
    jobs: int = 1,
    seed: int | None = None,
    out: Path | None = None,
    settings: list[str] = [],
    as_json: bool = False,
) -> None:
    """Propose a recipe for a job on a link: compressors, cached steps and overlap, with predicted bytes and time."""
    from thinwire.lab.tune import Aim, TuningRequest, parse_link

    asked = TuningRequest(
        job=job,
        settings=tuple(settings),
        link=None if link is None else parse_link(link),
        aim=None if target is None else Aim.parse(target),
        rounds=rounds,
        trials=trials,
        jobs=jobs,
        seed=seed,
    )
    if out is not None:
        _require_new(out)
    _require_networks(asked)
    try:
        tuned = _run(asked)
    except KeyboardInterrupt:
        raise stop_with(
            "stopped before the probes of svfl, the baseline, were done; there is nothing to propose yet"
        ) from None
    written = None if tuned.proposal is None or tuned.refutation is not None else out
    if written is not None:
        written.write_text(_build_job_text(asked, tuned), encoding="utf-8")
    facts = {**tuned.to_dict(), "out": None if written is None else str(written)}
    print_result(facts, as_json, lambda: _print(asked, tuned, out))
    if tuned.interrupted:
        raise stop_with("stopped; this is the best recipe so far, not verified")
    if tuned.proposal is None:
        aim = f"{tuned.aim.metric} {tuned.aim.value:g}"
        say(
            f"no recipe reached {aim} in {tuned.rounds} rounds; use more --rounds (and --set job.epochs=N), or an "
            "easier --target"
        )
        raise typer.Exit(1)
    if tuned.refutation is not None:
        nothing = "no recipe is proposed" if out is None else f"{out} is not written"
        say(f"the verification run does not confirm the proposal: {tuned.refutation}; {nothing}; use more --rounds")
        raise typer.Exit(1)


def _require_new(out: Path) -> None:
    if out.exists():
        raise BadInput(f"--out {out}: the file already exists; choose another name")
    if not out.parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {out.parent}")


def _run(asked: TuningRequest) -> TuningResult:
    """With a bar on a terminal, and a line for every probe."""
    from thinwire.lab.tune import Watch
    from thinwire.lab.tune import tune as tune_job

    with ProgressLine("starting", asked.trials + 1) as progress:
        return tune_job(asked, Watch(progress.stage, lambda one: progress.advance(_format_probe(one))))


def _format_probe(one: ProbeResult) -> str:
    from thinwire.lab.tune.search import format_recipe

    given_up = ", given up" if one.ended == "pruned" else ""
    cost = "" if one.prediction is None else f": {format_bytes(one.prediction.total)}, {_format_time(one.prediction)}"
    return f"{format_recipe(one.recipe)}: {_format_evidence(one)}{given_up}{cost}"


def _build_job_text(asked: TuningRequest, tuned: TuningResult) -> str:
    from thinwire.lab.tune.outcome import format_link
    from thinwire.lab.tune.tuner import resolve_tuned_job

    head = f"# Proposed by thinwire tune for {format_link(tuned.link)}; target {_format_aim(tuned)}.\n"
    said = None if tuned.proposal is None else tuned.proposal.prediction
    if said is not None:
        head += f"# Predicted: {_format_cost(said)}.\n"
    return f"{head}\n{resolve_tuned_job(asked, tuned)}"


def _format_aim(tuned: TuningResult) -> str:
    return f"{tuned.aim.metric} {tuned.aim.value:.4g} (from {tuned.aim_from})"


def _format_cost(said: Prediction) -> str:
    return f"{said.rounds} rounds, {format_bytes(said.total)}, {_format_time(said)}"


def _format_time(said: Prediction) -> str:
    return f"{format_seconds(said.seconds)} on the link"


# What is printed ------------------------------------------------------------------------------------------


def _print(asked: TuningRequest, tuned: TuningResult, out: Path | None) -> None:
    from thinwire.job.job_file import toml_text
    from thinwire.lab.tune.outcome import format_link
    from thinwire.lab.tune.tuner import build_proposal, list_overrides

    print_plain(
        f"link: {format_link(tuned.link)}; target: {_format_aim(tuned)}; probes of at most {tuned.rounds} rounds",
        f"measured on this machine, time per step: {_format_times(tuned.step_ms)}",
        f"measured on this machine, overhead per round: {_format_times(tuned.handling_ms)}",
        _build_candidates(tuned),
        "Rounds and bytes were counted in probes of this job. Seconds are predicted by the link clock from these "
        "bytes and the measured compute time. Extrapolated figures assume the convergence rate of svfl.",
    )
    if tuned.proposal is None:
        return
    print_plain(_format_verdict(tuned))
    _print_verification(tuned)
    if tuned.refutation is not None:
        return
    words = ["thinwire", "train", str(out or asked.job)]
    for override in list_overrides(asked, tuned) if out is None else ():
        words += ["--set", override]
    print_plain(
        "\n" + toml_text({"recipe": build_proposal(asked, tuned)}).rstrip(),
        ("\n" if out is None else f"\nwritten: {out}; ") + f"train it with\n  {shlex.join(words)}",
    )


def _format_times(ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g} ms" for name, value in ms.items())


def _build_candidates(tuned: TuningResult) -> Table:
    from thinwire.lab.tune.search import format_recipe

    title = "cost to the target: svfl, the finalists, and the best of the other methods"
    table = build_table(title, ["recipe"], ("rounds", "up", "down", "seconds"), wrapped=["recipe"])
    table.add_column("source")
    for one in tuned.list_best():
        said, known = one.prediction, "; ".join(_format_evidence(probe) for probe in one.probes)
        figures = ("-",) * 4
        if said is not None:
            figures = str(said.rounds), format_bytes(said.up), format_bytes(said.down), format_seconds(said.seconds)
        table.add_row(format_recipe(one.recipe), *figures, known)
    return table


def _format_evidence(probe: ProbeResult) -> str:
    """In a few words, of one seed."""
    made = probe.points[-1].round if probe.points else 0
    if probe.error is not None:
        return f"seed {probe.seed} failed: {probe.error}"
    if probe.prediction is None:
        return f"seed {probe.seed}: not reached in {made} rounds"
    if probe.prediction.extrapolated:
        return f"seed {probe.seed}: {probe.prediction.rounds} rounds, extrapolated from {made}"
    return f"seed {probe.seed}: {made} rounds"


def _format_verdict(tuned: TuningResult) -> str:
    from thinwire.lab.tune.search import format_recipe

    best, base = tuned.proposal, tuned.svfl.prediction
    said = None if best is None else best.prediction
    if best is None or said is None:
        return ""
    if not tuned.beats_svfl:
        return "None of the recipes tried is faster than svfl on this link: use svfl."
    name = format_recipe(best.recipe)
    if base is None:
        return f"Proposed: {name}. svfl did not reach the target in {tuned.rounds} rounds with both seeds."
    fewer, faster = base.total / said.total, base.seconds / said.seconds
    return f"Proposed: {name}: predicted {faster:.3g} times faster than svfl, with {fewer:.3g} times fewer bytes."


def _print_verification(tuned: TuningResult) -> None:
    run = tuned.verified
    said = None if tuned.proposal is None else tuned.proposal.prediction
    if run is None or said is None:
        return
    title = f"one verification run with seed {run.seed}, with its measured compute time"
    if run.prediction is None:
        print_plain(f"{title}: {_format_evidence(run)}; {_format_cost(said)} were predicted")
        return
    was = run.prediction
    table = build_table(title, [""], ["predicted", "measured"])
    table.add_row("rounds", str(said.rounds), str(was.rounds))
    table.add_row("bytes", format_bytes(said.total), format_bytes(was.total))
    table.add_row("seconds on the link", format_seconds(said.seconds), format_seconds(was.seconds))
    print_plain(table)
