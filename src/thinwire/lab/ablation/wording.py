"""A diagnosis in plain words. What cannot be told from chance is said to be so, and nothing is built on it."""

from __future__ import annotations

from math import isinf
from typing import TYPE_CHECKING

from thinwire.lab.ablation.differences import Difference
from thinwire.lab.ablation.running import CENTRALISED, RECIPE, SVFL

if TYPE_CHECKING:
    from thinwire.lab.ablation.diagnosis import Diagnosis, Line

_RISING = 0.25  # of the gap, gained over the last quarter of the rounds: more of them would help


def sentences(found: Diagnosis) -> list[str]:
    lines = [*_gap(found), *_splitting(found)]
    axes = [line for line in found.lines if line.variant is not None]
    axes.sort(key=lambda line: -line.against_recipe.mean if line.against_recipe is not None else 0.0)
    lines += [_axis(line) for line in axes]
    return [*lines, *_together(found, axes), *_chance(found), *_next(found, axes)]


def _gap(found: Diagnosis) -> list[str]:
    ours, central = found.line(RECIPE), found.line(CENTRALISED)
    if ours is None or central is None:
        return ["Not enough runs were made to say anything."]
    if ours.value is None:
        return [f"The recipe ({found.method}) diverged: its loss left the floats."]
    if found.gap is None or central.value is None:
        return ["Centralised training itself diverged: use a smaller step size."]
    said = f"{found.metric}: {central.value:.4f} centralised, {ours.value:.4f} with your recipe ({found.method})"
    if not found.gap.is_clear:
        return [f"{said}. The difference, {_size(found.gap)}, cannot be told from chance."]
    if found.gap.mean < 0:
        return [f"{said}. Your recipe is better, by {_size(found.gap)}: there is no cost to explain."]
    return [f"{said}. Your recipe is worse, by {_size(found.gap)}."]


def _splitting(found: Diagnosis) -> list[str]:
    plain = found.line(SVFL)
    if found.splitting is None or plain is None or plain.value is None:
        return []
    if found.splitting.is_clear:
        more = "costs" if found.splitting.mean > 0 else "gains"
        return [
            f"Splitting the network between parties, without compression (svfl), {more} {_size(found.splitting)}. "
            "Where models draw at random, as dropout does, each party draws for itself."
        ]
    return [f"Splitting the network between parties costs nothing that shows: svfl ends at {plain.value:.4f}."]


def _axis(line: Line) -> str:
    if line.variant is None:
        return ""
    what = line.variant.what[0].upper() + line.variant.what[1:]
    if line.value is None:
        return f"{what}: without it ({line.variant.instead}) the run diverged."
    change = line.against_recipe
    if change is None:
        return f"{what}: without it ({line.variant.instead}) the run ends at {line.value:.4f}, and does not diverge."
    if not change.is_clear:
        return f"{what}: no cost that can be told from chance ({_signed(change)} with {line.variant.instead})."
    if change.mean > 0:
        return f"{what} costs {_size(change)}: with {line.variant.instead} the run ends at {line.value:.4f}."
    return f"{what} helps, by {_size(change)}: with {line.variant.instead} the run ends at {line.value:.4f}."


def _together(found: Diagnosis, axes: list[Line]) -> list[str]:
    """Axes put back one at a time need not add up."""
    plain = found.line(SVFL)
    costs = [line.against_recipe.mean for line in axes if line.against_recipe and line.against_recipe.is_clear]
    whole = None if plain is None else plain.against_recipe
    if whole is None or not whole.is_clear or whole.mean <= 0 or len(axes) < 2:
        return []
    if not costs:
        return ["No single axis stands out: it is what they do together, or the number of seeds is too small."]
    return [
        f"All axes together cost {whole.mean:.4f}; those that are clear by themselves add up to {sum(costs):.4f}."
    ]


def _chance(found: Diagnosis) -> list[str]:
    if found.seeds > 1:
        return [f"Intervals are 95 % over {found.seeds} seeds; they say nothing about other test rows."]
    if found.gap is None or isinf(found.gap.margin):
        return ["One seed says nothing about chance for this metric: give --seeds 0,1,2."]
    return [
        f"One seed: differences below about {found.gap.margin:.4f} may be the chance of these test rows, and how "
        "much seeds differ is not known. --seeds 0,1,2 tells more."
    ]


def _next(found: Diagnosis, axes: list[Line]) -> list[str]:
    gap = found.gap
    if gap is None or not gap.is_clear or gap.mean <= 0:
        if found.gap is not None:
            return [
                "Next: to get better, change the models, the columns or the step size; the recipe is not in the way."
            ]
        return []
    tried = []
    costly = next((line for line in axes if line.against_recipe and line.against_recipe.is_clear), None)
    if costly is not None and costly.variant is not None and costly.against_recipe and costly.against_recipe.mean > 0:
        tried.append(costly.variant.advice)
    if found.still_rising is not None and found.still_rising > _RISING * gap.mean:
        tried.append("more epochs: the recipe was still getting better at the end")
    if not tried:
        tried.append("more seeds, for a clearer answer; or svfl, if bytes do not matter")
    return [f"Next: {'; or '.join(tried)}."]


def _size(change: Difference) -> str:
    return f"{abs(change.mean):.4f}" + _interval(abs(change.mean), change)


def _signed(change: Difference) -> str:
    return f"{change.mean:+.4f}" + _interval(change.mean, change)


def _interval(mean: float, change: Difference) -> str:
    if isinf(change.margin):
        return ""
    return f" ({mean - change.margin:.4f} to {mean + change.margin:.4f})"
