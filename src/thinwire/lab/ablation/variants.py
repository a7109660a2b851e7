"""A job's recipe with one axis at a time put back to svfl's: everything else stays as it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from thinwire.base.errors import IncompatibleRecipe
from thinwire.engine.compress import Identity
from thinwire.engine.privacy import Labels, Plain, SecureSum
from thinwire.engine.privacy.accounting.exposure import TrainedOnRawRows
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import CachedSteps, EveryBatch, LocalSteps, Overlap, Schedule
from thinwire.engine.streams import Direct, ErrorFeedback, StreamSpec
from thinwire.job.checks import is_noisy
from thinwire.job.job import Job

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
        changes: dict[str, Any] = {}
        if job.budget is not None and is_noisy(recipe):
            # Without noise nothing bounds the budget: as many rounds as it allowed, so that the noise alone differs.
            allowed = job.limit_rounds(job.check())
            changes = {"budget": None, "epochs": allowed.rounds / allowed.rounds_per_epoch}
        return Variant(
            "sum",
            f"the secure sum with {recipe.uplink.compressor}",
            "embeddings as they are, in the clear",
            "less noise: narrower embeddings, fewer epochs, or a larger epsilon; `thinwire privacy` says what is "
            "allowed",
            {**direct, "aggregation": Plain()},
            changes,
        )
    if recipe.uplink == _EXACT:
        return None
    feedback = "" if isinstance(recipe.uplink, ErrorFeedback) else "; efvfl makes good later what is lost now"
    return Variant(
        "up",
        f"what travels up ({_by(recipe, recipe.uplink)})",
        "embeddings as they are",
        f"send a little more up: {_finer(recipe, recipe.uplink, 'up_step')}" + feedback,
        direct,
    )


def _down(recipe: Recipe) -> Variant | None:
    if recipe.labels is Labels.SHARED:
        if recipe.top == _EXACT:
            return None
        advice = f"send a little more of the top model: {_finer(recipe, recipe.top, 'up_step')}"
        what = f"the top model on its way down ({recipe.top.compressor})"
        return Variant("down", what, "the top model as it is", advice, {"top": _EXACT})
    if recipe.downlink == _EXACT:
        return None
    what = f"what travels down ({_by(recipe, recipe.downlink)})"
    advice = f"send a little more down: {_finer(recipe, recipe.downlink, 'down_step')}"
    return Variant("down", what, "derivatives as they are", advice, {"downlink": _EXACT})


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
    ahead = cached is not None and cached.overlap is Overlap.AHEAD
    if recipe.schedule == once or (cached is not None and cached.reuse == 1 and not ahead):
        return None
    if cached is not None and cached.reuse == 1:
        what = "sending each embedding before the answer to the last"
        advice = "overlap = false: embeddings are then of the newest weights; or a smaller step size"
        return Variant("when", what, "one embedding at a time", advice, {"schedule": once})
    return Variant(
        "when",
        "taking several steps an exchange",
        "one step an exchange",
        "fewer steps between exchanges: a smaller reuse or local_steps, a smaller xi_degrees; or a smaller step size",
        {"schedule": once, "on_outage": "wait"},
    )


def _labels(recipe: Recipe) -> Variant | None:
    if recipe.labels is not Labels.SHARED or recipe.schedule != LocalSteps(1):
        return None  # more local steps need the labels
    changes = {"labels": Labels.PRIVATE, "schedule": EveryBatch(), "broadcast": "symbols"}
    what, instead = "labels shared with every party", "labels with the label party, derivatives down"
    return Variant("labels", what, instead, 'labels = "private"', changes)


def _defence(recipe: Recipe) -> Variant | None:
    if isinstance(recipe.defence, NoDefence):
        return None
    advice = "a weaker defence of the labels; `thinwire audit` puts what then leaks beside what is gained"
    what = f"the labels' defence ({type(recipe.defence).__name__})"
    return Variant("defence", what, "no defence", advice, {"defence": NoDefence()})


def _training(job: Job) -> Variant | None:
    if isinstance(job.training, TrainedOnRawRows):
        return None
    what = f"how bottom models are trained ({type(job.training).__name__})"
    advice = "frozen models: better ones to begin with; private training: less noise, a larger batch, fewer epochs"
    changes: dict[str, Any] = {"training": TrainedOnRawRows()}
    if job.budget is not None:
        allowed = job.limit_rounds(job.check())
        changes |= {"budget": None, "epochs": allowed.rounds / allowed.rounds_per_epoch}
    return Variant("training", what, "trained on the rows as they are", advice, {}, changes)


def _budget(job: Job) -> Variant | None:
    if job.budget is None or job.limit_rounds(job.check()).rounds == job.divide_rows().rounds:
        return None
    what = "the privacy budget, which ends the training early"
    advice = "a larger epsilon, or noise that lets the budget last; `thinwire privacy` computes both"
    return Variant("budget", what, "all rounds", advice, {}, {"budget": None})
