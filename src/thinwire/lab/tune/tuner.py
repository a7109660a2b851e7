"""From a job and a link to a recipe: measure, probe, propose, verify."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput, Diverged
from thinwire.base.types import PartyName
from thinwire.engine.channel.link import Link
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.privacy import SecureSum
from thinwire.engine.privacy.accounting.ledger import Frozen
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.streams import OwnedRows
from thinwire.job.job import Job
from thinwire.job.job_file import inline, read_job_file
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.messages import within
from thinwire.lab.tune.outcome import Candidate, TuningResult
from thinwire.lab.tune.probe import (
    Aim,
    Probe,
    ProbeResult,
    ProbeSettings,
    best_value,
    predict_cost,
    run_probe,
    time_rounds,
)
from thinwire.lab.tune.search import METHODS_TRIED, format_recipe, one_step, search
from thinwire.training.result import better

_REPEATS = 5  # at least
_ENOUGH_SECONDS = 0.5  # of one party's repeats
_MOST = 25


def measure_step_ms(job: Job) -> dict[PartyName, float]:
    """One update of each party on the first batch, forward, backward and optimiser: milliseconds of the fastest."""
    job = job.duplicate()
    rows, label = job.divide_rows().rows(0), job.label_party
    found: dict[PartyName, float] = {}
    embeddings: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        for party in job.parties:
            bottom = party.bottom.to(job.device).requires_grad_(not isinstance(job.training, Frozen))
            owned = OwnedRows(rows) if party.owners is None else party.owners.training.select(rows)
            x = party.features[owned.owners].to(job.device)
            embeddings.append(owned.expand(bottom(x).detach()).requires_grad_())
            found[party.name] = _fastest_ms(partial(bottom, x), party.optimizer or job.optimizer, [bottom])
        modules = [module.to(job.device) for module in (label.top, label.bottom) if module is not None]
        own = None if label.features is None else label.features[rows].to(job.device)
        y = label.labels[rows].to(job.device)

        def loss() -> Tensor:
            mine = [] if label.bottom is None else [label.bottom(own)]
            mean: Tensor = label.loss(label.top(fuse(label.fusion, [*embeddings, *mine])), y).mean()
            return mean

        found[label.name] = _fastest_ms(loss, label.optimizer or job.optimizer, modules)
    return found


def _fastest_ms(compute: Callable[[], Tensor], spec: OptimizerSpec, modules: Sequence[nn.Module]) -> float:
    """Of the step that computes, goes back, and moves the modules."""
    optimizer = spec.build(parameter for module in modules for parameter in module.parameters())

    def step() -> None:
        found = compute()
        if found.requires_grad:
            found.backward(torch.ones_like(found))
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    step()
    times: list[float] = []
    while len(times) < _REPEATS or (sum(times) < _ENOUGH_SECONDS and len(times) < _MOST):
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return 1e3 * min(times)  # what else this machine does is not the job's


def charge_link(link: Link, ms: Mapping[PartyName, float], label_party: PartyName) -> Link:
    """The link with what a step costs each party, so that its clock repeats; a `compute_ms` that is given stays."""
    if link.compute_ms is not None:
        return link
    parties = {}
    for name, own in ms.items():
        if name != label_party:
            one = replace(link.parties.get(name, link), parties={})
            parties[name] = replace(one, compute_ms=own if one.compute_ms is None else one.compute_ms)
    return replace(link, compute_ms=ms[label_party], parties=parties)


def compute_handling_ms(events: Sequence[Mapping[str, Any]], ms: Mapping[PartyName, float]) -> float:
    """What a round took beyond one step: compressing, encoding, framing, and the label party's own computing.

    `events` are of a run with one step per round over a link that costs nothing, its time as it really passed.
    """
    pairs = pairwise(events[1:])  # not from the start: the first rounds warm up
    rounds: list[float] = [(b["link_seconds"] - a["link_seconds"]) / (b["round"] - a["round"]) for a, b in pairs]
    # Steps of different parties run at the same time, so the slowest one counts.
    return max(0.0, 1e3 * min(rounds) - max(ms.values()))


# From a job and a link to a recipe --------------------------------------------------------------------------------


_MOST_ROUNDS = 300  # of a probe, unless asked for
_FEWEST_ROUNDS = 4
_TIMED_ROUNDS = 12
_FINALISTS = 3  # probed with a second seed
_ROOM = 2  # times the predicted rounds, for the run that verifies


@dataclass(frozen=True)
class TuningRequest:
    """What to tune, for which link, how hard."""

    job: Path
    settings: tuple[str, ...] = ()  # as --set takes them
    link: Link | None = None  # the job's own unless given
    aim: Aim | None = None  # the job's target, or what svfl reaches, unless given
    rounds: int | None = None  # maximum per probe; default: the job's own, or 300
    trials: int = 16
    jobs: int = 1
    seed: int | None = None  # of the probes and the search; the job's unless given


@dataclass(frozen=True)
class Watch:
    """Who is told how far it is."""

    stage: Callable[[str], None] = lambda _: None
    probed: Callable[[ProbeResult], None] = lambda _: None


def tune(asked: TuningRequest, watch: Watch = Watch()) -> TuningResult:
    """A recipe for the job on its link. Ctrl-C after svfl's own probes gives the best so far."""
    job, ground, aim_from = _prepared(asked)
    step, handling = _measured(job, ground, watch)
    plain = ground.link
    ground = replace(
        ground,
        link=charge_link(plain, step, job.label_party.name),
        handling_seconds={method: one / 1e3 for method, one in handling.items()},
    )
    watch.stage("svfl, the baseline")
    svfl, aim = _baseline(ground, watch)
    first = replace(ground, aim=aim, pace=svfl.probes[0].points)
    second = replace(first, seed=ground.seed + 1, pace=svfl.probes[1].points)
    watch.stage("probes")
    limit = max(one.seconds for one in svfl.probes)  # that a recipe must stay below to be of use
    probes, interrupted = search(first, asked.trials, asked.jobs, limit, watch.probed)
    candidates = [Candidate((one,)) for one in probes]
    if not interrupted:
        watch.stage("the best ones with another seed")
        candidates, interrupted = _with_second_seed(candidates, second, watch)
    tuned = TuningResult(
        link=plain,
        aim=aim,
        aim_from=aim_from,
        rounds=ground.rounds,
        step_ms=step,
        handling_ms=handling,
        svfl=svfl,
        candidates=candidates,
        proposal=_best([svfl, *candidates], seeds=1 if interrupted else len(svfl.probes)),
        interrupted=interrupted,
    )
    return (
        tuned
        if interrupted
        else _verified(tuned, replace(second, link=plain, handling_seconds={}), job.divide_rows().rounds, watch)
    )


def _prepared(asked: TuningRequest) -> tuple[Job, ProbeSettings, str]:
    """The job, what its probes share, and where the target comes from; refuses what cannot be tuned."""
    job = load_job(asked.job, asked.settings)
    _require_tunable(job)
    if asked.link is None and job.link is None:
        raise BadInput("--link is missing, and the job has no [link]: write it as in --link 100mbit,40ms")
    link = asked.link or job.link or Link()
    if job.link is not None:
        link = replace(link, compute_ms=job.link.compute_ms)
    aim, aim_from = asked.aim, "--target"
    if aim is None and job.target is not None:
        aim, aim_from = Aim(*job.target), "the job"
    if aim is not None and aim.metric not in (*job.metrics, "loss"):
        raise BadInput(
            f"--target: {aim.metric!r} is not among the job's metrics {', '.join(job.metrics)}, and not loss"
        )
    rounds = min(asked.rounds or _MOST_ROUNDS, job.divide_rows().rounds)
    if rounds < _FEWEST_ROUNDS:
        raise BadInput(
            f"--rounds: a probe of {rounds} rounds is too short; it needs at least {_FEWEST_ROUNDS}, and the job "
            f"has {job.divide_rows().rounds}: use more with --set job.epochs=10"
        )
    metric = next(iter(job.metrics), "loss") if aim is None else aim.metric
    seed = job.seed if asked.seed is None else asked.seed
    ground = ProbeSettings(asked.job, asked.settings, seed, rounds, link, metric, aim, beside=_beside(asked))
    return job, ground, "what svfl reaches" if aim is None else aim_from


def _require_tunable(job: Job) -> None:
    """No recipe is proposed that protects less than the job's own."""
    protected = [
        ("recipe", isinstance(job.recipe.aggregation, SecureSum), "a secure sum"),
        ("recipe", job.recipe.uplink.compressor.protects_alone, "noise of each party's own"),
        ("job.training", isinstance(job.training, DPBottom), "privately trained bottom models"),
        ("job.budget", job.budget is not None, "a privacy budget"),
    ]
    for field, here, what in protected:
        if here:
            raise BadInput(
                f"{field}: the job has {what}, but tune optimises time, not privacy: its proposal would protect "
                "less. Use thinwire privacy, which plans for a given epsilon"
            )


def _beside(asked: TuningRequest) -> dict[str, Any]:
    """What the job asks of its recipe whatever the method."""
    with within(str(asked.job)):
        recipe = read_job_file(asked.job, asked.settings).recipe
    return {"defence": recipe["defence"]} if "defence" in recipe else {}


def _measured(job: Job, ground: ProbeSettings, watch: Watch) -> tuple[dict[PartyName, float], dict[str, float]]:
    """Milliseconds: a step by party, a round beyond its step by method; not where the link has compute_ms."""
    methods = ("svfl", *METHODS_TRIED)
    given = ground.link.compute_ms
    if given is not None:
        names = [*(party.name for party in job.parties), job.label_party.name]
        return dict.fromkeys(names, given), dict.fromkeys(methods, 0.0)
    watch.stage("measuring a step of each party")
    step = measure_step_ms(job)
    rounds = min(_TIMED_ROUNDS, ground.rounds)
    handling = {}
    for method in methods:
        watch.stage(f"measuring the overhead per round of {method}")
        events = time_rounds(ground, {**one_step(method), **ground.beside}, rounds, rounds // _FEWEST_ROUNDS)
        handling[method] = compute_handling_ms(events, step)
    return step, handling


def _baseline(ground: ProbeSettings, watch: Watch) -> tuple[Candidate, Aim]:
    """svfl with two seeds, and the target: what was asked for, or what both of them reach."""
    probes = []
    for seed in (ground.seed, ground.seed + 1):
        svfl = run_probe(Probe(replace(ground, seed=seed), {"method": "svfl", **ground.beside}))
        if svfl.ended == "stopped":
            raise KeyboardInterrupt
        if svfl.error is not None:
            raise Diverged(f"svfl, the baseline, failed: {svfl.error}")
        probes.append(svfl)
    metric = ground.metric
    reached = [better(metric) * best_value(one.points, metric) for one in probes]
    aim = ground.aim or Aim(metric, better(metric) * min(reached))
    known = tuple(replace(one, prediction=predict_cost(one.points, aim, one.points)) for one in probes)
    for one in known:
        watch.probed(one)
    return Candidate(known), aim


def _with_second_seed(
    candidates: Sequence[Candidate], second: ProbeSettings, watch: Watch
) -> tuple[list[Candidate], bool]:
    """The few that promise most, probed once more: a target may be met early by luck. And whether Ctrl-C came."""
    promising = sorted((one for one in candidates if one.seconds < inf), key=lambda one: one.seconds)
    found = list(candidates)
    for one in promising[:_FINALISTS]:
        again = run_probe(Probe(second, one.recipe))
        if again.ended == "stopped":
            return found, True
        watch.probed(again)
        found[found.index(one)] = Candidate((*one.probes, again))
    return found, False


def _best(candidates: Sequence[Candidate], seeds: int) -> Candidate | None:
    """The fewest seconds to the target, of those with so many seeds; the first of them where they are alike."""
    promising = (one for one in candidates if one.seconds < inf and len(one.probes) >= seeds)
    return min(promising, key=lambda one: one.seconds, default=None)


def _verified(tuned: TuningResult, ground: ProbeSettings, most_rounds: int, watch: Watch) -> TuningResult:
    """With one run of the proposal: another seed again, and the time that computing really takes."""
    best = tuned.proposal
    if best is None or best.prediction is None:
        return tuned
    watch.stage(f"verifying {format_recipe(best.recipe)}")
    rounds = min(most_rounds, max(ground.rounds, _ROOM * best.prediction.rounds))
    run = run_probe(Probe(replace(ground, seed=ground.seed + 1, rounds=rounds, pace=()), best.recipe))
    if run.ended == "stopped":
        return replace(tuned, interrupted=True)
    return replace(tuned, verified=run)


# The proposal as a job file that `thinwire train` takes -----------------------------------------------------------


def build_proposal(asked: TuningRequest, tuned: TuningResult) -> dict[str, Any]:
    """The proposal, and what the job says of scoring, and of outages where cached steps can follow it."""
    recipe = {} if tuned.proposal is None else dict(tuned.proposal.recipe)
    own = read_job_file(asked.job, asked.settings).recipe
    if "on_outage" in own and recipe.get("reuse", 1) > 1:
        recipe["on_outage"] = own["on_outage"]
    if "scoring" in own:
        recipe["scoring"] = own["scoring"]
    return recipe


def list_overrides(asked: TuningRequest, tuned: TuningResult) -> list[str]:
    """What turns the job into the proposed one, as --set takes it."""
    found = [*asked.settings, f"recipe={inline(build_proposal(asked, tuned))}"]
    if asked.link is not None:
        link = {"bandwidth_mbit": tuned.link.bandwidth_mbit, "latency_ms": tuned.link.latency_ms}
        link |= {} if tuned.link.compute_ms is None else {"compute_ms": tuned.link.compute_ms}
        found.append(f"link={inline(link)}")
    return [*found, f"job.target={inline({'metric': tuned.aim.metric, 'value': tuned.aim.value})}"]


def resolve_tuned_job(asked: TuningRequest, tuned: TuningResult) -> str:
    """The whole job file, its paths absolute."""
    return resolve_job(asked.job, list_overrides(asked, tuned))
