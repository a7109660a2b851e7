"""The runs of a diagnosis: centralised, svfl, the recipe, and the recipe with one axis put back at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from thinwire.base.errors import BadInput, Diverged, IncompatibleRecipe
from thinwire.base.seeds import derive_seed
from thinwire.engine.compress import Identity
from thinwire.engine.methods import svfl
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.learners import BoostedTrees, TreeFitter
from thinwire.engine.models.optimizers import set_lr
from thinwire.engine.privacy import Labels, Plain, SecureSum
from thinwire.engine.privacy.accounting.ledger import TrainedOnRawRows
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.protocols.evaluation import HeldOut, begin_training, compute_outputs, embed_in_chunks
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps, EveryBatch, LocalSteps, OneWay, Overlap, Schedule
from thinwire.engine.streams import Direct, ErrorFeedback, StreamSpec
from thinwire.job.job import Job
from thinwire.lab.ablation.training_faults import (
    FinishedRun,
    TrainingFault,
    choose_chance,
    describe_regularisation,
    find_faults,
)
from thinwire.lab.runner import train_to_end
from thinwire.report.record import BaselineScore, Evaluation
from thinwire.training.baselines import score_baselines
from thinwire.training.result import Result, compute_scores, require_finite_loss

_EXACT = Direct(Identity())


@dataclass(frozen=True)
class Variant:
    """One axis as svfl has it."""

    axis: str  # its name in tables
    what: str  # the axis in words
    instead: str  # what svfl does there
    advice: str  # what to try where it costs too much
    recipe: dict[str, Any] = field(default_factory=dict)  # fields of the recipe
    job: dict[str, Any] = field(default_factory=dict)  # fields of the job

    def of(self, job: Job) -> Job:
        return replace(job, recipe=replace(job.recipe, **self.recipe), **self.job)


def list_variants(job: Job) -> list[Variant]:
    """Every axis on which the job differs from svfl, where it can be put back by itself."""
    found = [_up(job), _down(job.recipe), _when(job.recipe), _labels(job.recipe), _defence(job.recipe)]
    found += [_training(job), _budget(job)]
    return [variant for variant in found if variant is not None and _works(variant, job)]


def _works(variant: Variant, job: Job) -> bool:
    try:
        changed = variant.of(job)
        changed.limit_rounds(changed.check())
    except IncompatibleRecipe:
        return False
    return True


def _up(job: Job) -> Variant | None:
    recipe = job.recipe
    # Error feedback's own settings mean nothing without it.
    direct = {"uplink": _EXACT, "order": "exchange_first", "broadcast": "symbols", "warm_start": False}
    if isinstance(recipe.aggregation, SecureSum):
        return Variant(
            "sum",
            f"the secure sum with {recipe.uplink.compressor}",
            "exact embeddings, unprotected",
            "less noise: narrower embeddings, fewer epochs, or a larger epsilon; `thinwire privacy` says what is "
            "allowed",
            {**direct, "aggregation": Plain()},
            _without_budget(job) if recipe.is_noisy else {},
        )
    if recipe.uplink == _EXACT:
        return None
    feedback = "" if isinstance(recipe.uplink, ErrorFeedback) else "; efvfl corrects the compression error later"
    return Variant(
        "up",
        f"uplink compression ({_by(recipe, recipe.uplink)})",
        "exact embeddings",
        f"send slightly more up: {_finer(recipe, recipe.uplink, 'up_step')}" + feedback,
        direct,
    )


def _down(recipe: Recipe) -> Variant | None:
    if recipe.labels is Labels.SHARED:
        if recipe.top == _EXACT:
            return None
        advice = f"send a little more of the top model: {_finer(recipe, recipe.top, 'up_step')}"
        what = f"the top model on its way down ({recipe.top.compressor})"
        return Variant("down", what, "the exact top model", advice, {"top": _EXACT})
    if recipe.downlink == _EXACT:
        return None
    what = f"downlink compression ({_by(recipe, recipe.downlink)})"
    advice = f"send slightly more down: {_finer(recipe, recipe.downlink, 'down_step')}"
    return Variant("down", what, "exact derivatives (gradients)", advice, {"downlink": _EXACT})


def _by(recipe: Recipe, stream: StreamSpec) -> str:
    return "as thin rounds it" if recipe.name == "thin" else str(stream.compressor)


def _finer(recipe: Recipe, stream: StreamSpec, step: str) -> str:
    if recipe.name == "thin":
        return f"a smaller {step}"
    known = {"fraction": "a larger fraction than", "bits": "more bits than", "step": "a smaller step than"}
    found = [f"{said} {getattr(stream.compressor, name):g}" for name, said in known.items() if _has(stream, name)]
    return found[0] if found else "a finer compressor"


def _has(stream: StreamSpec, name: str) -> bool:
    return isinstance(getattr(stream.compressor, name, None), (int, float))


def _when(recipe: Recipe) -> Variant | None:
    once: Schedule = LocalSteps(1) if recipe.labels is Labels.SHARED else EveryBatch()
    cached = recipe.schedule if isinstance(recipe.schedule, CachedSteps) else None
    if cached is not None and cached.levels:  # precision is no matter of steps
        once = replace(cached, reuse=1, local_steps=None, overlap=Overlap.NONE)
    ahead = cached is not None and cached.overlap is Overlap.AHEAD
    if recipe.schedule == once or (cached is not None and cached.reuse == 1 and not ahead):
        return None
    if cached is not None and cached.reuse == 1:
        what = "sending each embedding before the previous answer has arrived"
        advice = "set overlap = false, so that embeddings come from the latest weights; or lower the learning rate"
        return Variant("when", what, "one embedding at a time", advice, {"schedule": once})
    return Variant(
        "when",
        "taking several steps per exchange",
        "one step per exchange",
        "fewer steps between exchanges: a smaller reuse, local_steps, xi_degrees or learning rate",
        {"schedule": once, "on_outage": "wait"},
    )


def _labels(recipe: Recipe) -> Variant | None:
    if recipe.labels is not Labels.SHARED or recipe.schedule != LocalSteps(1):
        return None  # more local steps need the labels
    changes = {"labels": Labels.PRIVATE, "schedule": EveryBatch(), "broadcast": "symbols"}
    what, instead = "labels shared with every party", "private labels, derivatives sent down"
    return Variant("labels", what, instead, 'labels = "private"', changes)


def _defence(recipe: Recipe) -> Variant | None:
    if isinstance(recipe.defence, NoDefence):
        return None
    advice = "a weaker label defence; `thinwire audit` shows what then leaks"
    what = f"the labels' defence ({type(recipe.defence).__name__})"
    return Variant("defence", what, "no defence", advice, {"defence": NoDefence()})


def _training(job: Job) -> Variant | None:
    if isinstance(job.training, TrainedOnRawRows):
        return None
    what = f"how bottom models are trained ({type(job.training).__name__})"
    advice = "frozen models: start from better ones; private training: less noise, a larger batch, fewer epochs"
    changes = {"training": TrainedOnRawRows(), **_without_budget(job)}
    return Variant("training", what, "trained on exact rows", advice, {}, changes)


def _without_budget(job: Job) -> dict[str, Any]:
    """Without noise nothing bounds the budget: as many rounds as it allowed, so that the noise alone differs."""
    if job.budget is None:
        return {}
    allowed = job.limit_rounds(job.check())
    return {"budget": None, "epochs": allowed.rounds / allowed.rounds_per_epoch}


def _budget(job: Job) -> Variant | None:
    if job.budget is None or job.limit_rounds(job.check()).rounds == job.divide_rows().rounds:
        return None
    what = "the privacy budget, which stops training early"
    advice = "a larger epsilon, or noise for which the budget suffices; `thinwire privacy` computes both"
    return Variant("budget", what, "all rounds", advice, {}, {"budget": None})


# Centralised training: plain torch on all columns, with the job's weights, batches and optimisers. It shares no code
# with the parties' protocols, so it can tell what they cost


def train_centrally(job: Job, on_round: Callable[[int], None] | None = None) -> dict[str, float]:
    """Trains the job's modules in place; the metrics at the end, on the rows that evaluations look at."""
    label, device = job.label_party, job.device
    holders = [party for party in job.everyone if party.bottom is not None]
    bottoms = [begin_training(bottom.to(device)) for party in holders if (bottom := party.bottom) is not None]
    top = begin_training(label.top.to(device))
    specs = [party.optimizer or job.optimizer for party in (*holders, label)]
    steps = [(spec, spec.build(module.parameters())) for spec, module in zip(specs, (*bottoms, top), strict=True)]
    features = [party.list_rows().to(device) for party in holders]
    fitters = [
        TreeFitter(bottom, x) if isinstance(bottom, BoostedTrees) else None
        for bottom, x in zip(bottoms, features, strict=True)
    ]
    labels, like = label.labels.to(device), next(top.parameters(), features[0])
    batches = job.divide_rows()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        for round in range(batches.rounds):
            rows = batches.rows(round).to(device)
            h = [bottom(x[rows]).to(like.dtype) for bottom, x in zip(bottoms, features, strict=True)]
            h = [part if fitter is None else part.requires_grad_() for part, fitter in zip(h, fitters, strict=True)]
            loss = label.loss(top(fuse(label.fusion, h)), labels[rows]).mean()
            require_finite_loss(loss.item())
            loss.backward()
            for party, bottom, part, fitter in zip(holders, bottoms, h, fitters, strict=True):
                if isinstance(bottom, BoostedTrees) and fitter is not None and part.grad is not None:
                    own = (part.grad * len(rows)).cpu().numpy()  # each row's, of the batch's mean
                    bends = bottom.find_curvature(own)
                    bottom.begin_products(own, bends, derive_seed(job.seed, party.name, "trees"))
                    bottom.add(fitter.fit(own, bends)[0])
            for spec, optimizer in steps:
                if optimizer is not None:
                    set_lr(optimizer, spec.lr_at(round, batches.rounds))
                    optimizer.step()
                    optimizer.zero_grad()
            if on_round is not None:
                on_round(round + 1)
    # The rows that an evaluation looks at: validation rows, test rows, or training rows where there are no others.
    kind = next((one for one in HeldOut if one in label.held_out), None)
    outputs = compute_job_outputs(job, [party.list_rows(kind) for party in holders])
    return compute_scores(outputs, label.labels if kind is None else label.held_out[kind], label.loss, job.metrics)


def compute_job_outputs(job: Job, tables: Sequence[Tensor]) -> Tensor:
    """Of rows of every party that has a bottom model, in order; without compression."""
    bottoms = [party.bottom for party in job.everyone if party.bottom is not None]
    found = [embed_in_chunks(bottom, x.to(job.device)) for bottom, x in zip(bottoms, tables, strict=True)]
    return compute_outputs(job.label_party.top, job.label_party.fusion, found)


# The runs of a diagnosis: centralised, svfl, the recipe, and the recipe with one axis put back at a time ----------


CENTRALISED, SVFL, RECIPE = "centralised", "svfl", "recipe"


@dataclass(frozen=True, eq=False)
class AblationRun:
    """One run to make: a name, or the axis that it puts back."""

    name: str
    seed: int
    job: Job
    variant: Variant | None = None


@dataclass(frozen=True)
class AblationResult:
    """Where one run ended."""

    name: str
    seed: int
    value: float | None  # of the first metric, at the last evaluation; None where the run diverged
    earlier: float | None = None  # three quarters of the way
    bytes: int | None = None
    error: str | None = None
    findings: tuple[TrainingFault, ...] = ()  # of the recipe's own training


def plan_runs(job: Job, seed: int) -> list[AblationRun]:
    """Without targets and byte budgets, which would end some runs earlier than others."""
    if isinstance(job.recipe.schedule, OneWay):
        raise BadInput(
            f"diagnose compares a recipe with split learning axis by axis, and bottom models do not learn under "
            f"{job.recipe.name}. The report has baselines; try more bits_per_row or bins, or thin with warm_passes"
        )
    job = replace(job.duplicate(), target=None, byte_budget=None, link_seconds_budget=None, diagnostics=False)
    plain = replace(job, recipe=svfl(), training=TrainedOnRawRows(), budget=None)
    runs = [AblationRun(CENTRALISED, seed, plain), AblationRun(SVFL, seed, plain), AblationRun(RECIPE, seed, job)]
    return runs + [AblationRun(variant.axis, seed, variant.of(job), variant) for variant in list_variants(job)]


def run_ablation(run: AblationRun, on_round: Callable[[int], None] | None = None) -> AblationResult:
    """Makes the run; the weights that the job was given stay as they are. Ctrl-C raises."""
    job = run.job.duplicate()
    metric = next(iter(job.metrics), "loss")
    try:
        if run.name == CENTRALISED:
            return AblationResult(run.name, run.seed, train_centrally(job, on_round)[metric])
        result = train_to_end(job, on_round=on_round)
    except Diverged as error:
        return AblationResult(run.name, run.seed, None, error=str(error))
    values = [value for one in result.evaluations if (value := one.scores[metric]) is not None]
    findings = find_faults(_collect_run(job, result)) if run.name == RECIPE else []
    earlier = _before_the_end(result.evaluations, values)
    return AblationResult(run.name, run.seed, values[-1], earlier, result.bytes.total, findings=tuple(findings))


def _collect_run(job: Job, result: Result) -> FinishedRun:
    """With what is not in the evaluations: the score on training rows, and baselines where the job asks for them."""
    label, metric = job.label_party, next(iter(job.metrics), "loss")
    if label.test_labels is None:
        return FinishedRun(result.evaluations, metric)
    holders = [party for party in job.everyone if party.bottom is not None]
    trained = compute_job_outputs(job, [party.list_rows() for party in holders])
    score = compute_scores(trained, label.labels, label.loss, job.metrics)[metric]
    margin = _estimate_margin(job, metric, score)
    baselines: Sequence[BaselineScore] = ()
    if job.baselines and result.quality is not None:
        baselines = score_baselines(job, result.quality.task, trained)
    return FinishedRun(result.evaluations, metric, score, margin, describe_regularisation(job), baselines)


def _estimate_margin(job: Job, metric: str, score: float) -> float:
    chance = choose_chance(job, metric)
    return 0.0 if chance is None else chance(score)


def _before_the_end(evaluations: Sequence[Evaluation], values: Sequence[float]) -> float | None:
    """At the evaluation three quarters of the way, where there are enough of them to tell."""
    if len(values) < 5:
        return None
    most = 0.75 * evaluations[-1].round
    return [value for one, value in zip(evaluations, values, strict=True) if one.round <= most][-1]
