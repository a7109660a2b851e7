"""The answers of `thinwire privacy` as plain data: what parameters cost, and which parameters a budget needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from thinwire.privacy.accounting.exposure import BottomModel, Exposure, PoissonBinomialRelease
from thinwire.privacy.accounting.figures import conditions, figures, not_protected
from thinwire.privacy.accounting.parameters import delta_value, whole
from thinwire.privacy.accounting.planner import Aim, Plan, plan
from thinwire.privacy.accounting.usefulness import usefulness

__all__ = ["cost_report", "plan_report"]


def cost_report(exposure: Exposure, epochs: int, delta: float) -> dict[str, Any]:
    """What so many epochs cost, to each observer."""
    return {
        "epochs": whole("epochs", epochs, 0),
        "delta": delta_value("delta", delta),
        "observers": _observers(exposure, epochs, delta),
        "not_protected": not_protected(exposure),
        "holds_only_if": conditions(exposure),
    }


def plan_report(aim: Aim, bottom: BottomModel) -> dict[str, Any]:
    """The parameters that keep a budget, and what they give a bottom model that is really treated so."""

    def exposure(found: Plan) -> Exposure:
        return Exposure(PoissonBinomialRelease(found.trials, found.beta, aim.width), aim.parties, bottom)

    def described(found: Plan) -> dict[str, Any]:
        return {**asdict(found), "observers": _observers(exposure(found), aim.epochs, aim.budget.delta)}

    plans = plan(aim)
    best = plans.least_noise
    return {
        "epsilon": aim.budget.epsilon,
        "delta": aim.budget.delta,
        "observer": str(aim.budget.observer),
        "epochs": aim.epochs,
        "least_noise": described(best),
        "fewest_bits": described(plans.fewest_bits),
        "usefulness": asdict(usefulness(aim, best)),
        "not_protected": not_protected(exposure(best)),
        "holds_only_if": conditions(exposure(best)),
    }


def _observers(exposure: Exposure, epochs: int, delta: float) -> list[dict[str, Any]]:
    return [figure.plain() for figure in figures(exposure, [exposure.epochs(epochs)], delta)]
