"""A party's own coefficients of a regression: in its columns' names and units, with what is known of their errors."""

from __future__ import annotations

from collections.abc import Iterator
from math import erfc, exp, sqrt

from thinwire.engine.models.losses import name_loss, squared_error
from thinwire.engine.models.regression import REGRESSION_LOSSES, Facts, Linear, Outcome, RegressionTop
from thinwire.engine.models.scorecard import Scorecard
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.report.record import Coefficient, CoefficientTable
from thinwire.training.scorecards import format_scorecard, list_scorecard

_LARGEST_EXPONENT = 700.0
_LEFT_OUT = "left out: constant, or a linear combination of earlier columns"
_NOT_IDENTIFIED = "not identified: a combination of other parties' columns gives the same outputs"
_UNSETTLED = "coefficients were still changing in the last round; raise epochs"
_WHY_NO_ERRORS = {
    Outcome.NOT_ASKED: "standard errors were not requested (inference = true)",
    Outcome.DECLINED: "no standard errors: not every party offers inference = true",
    Outcome.PENALISED: "no standard errors: they belong to coefficients without a penalty, and l2 is above 0",
    Outcome.WEIGHTED: "no standard errors: rows are weighted",
    Outcome.UNSETTLED: "no standard errors",
    Outcome.DISTURBED: "no standard errors: a defence has changed the labels",
}


def collect_fit(party: FeatureParty | LabelParty) -> dict[str, str]:
    """What a party keeps of its part of a regression beside the weights, by name."""
    table, rows = list_coefficients(party), list_scorecard(party)
    found = {} if table is None else {"coefficients": table.model_dump_json()}
    return found | ({"scorecard.csv": format_scorecard(rows)} if rows else {})


def list_coefficients(party: FeatureParty | LabelParty) -> CoefficientTable | None:
    """None where the party has no part in a regression, or nothing was fitted."""
    top = party.top if isinstance(party, LabelParty) else None
    models = [one for one in (top, party.bottom) if isinstance(one, Linear | RegressionTop)]
    facts = Facts(*models[0].facts.tolist()) if models else Facts()
    if not facts.loss:
        return None
    loss = REGRESSION_LOSSES[int(facts.loss) - 1]
    rows = tuple(row for model in models for row in _list_rows(model, party, facts, loss is not squared_error))
    notes = ["" if facts.settled else _UNSETTLED, _WHY_NO_ERRORS.get(Outcome(int(facts.outcome)), "")]
    return CoefficientTable(party=party.name, loss=name_loss(loss), rows=rows, note="; ".join(filter(None, notes)))


def _list_rows(
    model: Linear | RegressionTop, party: FeatureParty | LabelParty, facts: Facts, has_ratio: bool
) -> Iterator[Coefficient]:
    if isinstance(model, RegressionTop):
        yield _describe("intercept", float(model.intercept), float(model.error), facts, has_ratio)
        return
    unnamed: list[tuple[str, float | None]] = [(f"column {place}", 1.0) for place in range(model.in_features)]
    slopes = unnamed if party.preparation is None else party.preparation.slopes
    notes = _note_information(model) if isinstance(model, Scorecard) else [""] * model.in_features
    columns = zip(slopes, model.coefficients.tolist(), model.errors.tolist(), notes, strict=True)
    for (name, slope), value, error, note in columns:
        row = _describe(name, value, error, facts, has_ratio)
        if isinstance(model, Scorecard):  # of the weight of evidence, which has no unit
            yield row.model_copy(update={"note": note})
        else:
            yield row.model_copy(update={"in_units": None if slope is None else value * slope})


def _note_information(model: Scorecard) -> Iterator[str]:
    """A column's information value, and whether its coefficient has the wrong sign: more WoE means fewer bad rows."""
    for value, coefficient in zip(model.find_information().tolist(), model.coefficients.tolist(), strict=True):
        says = f"information value {value:.3f}"
        if value < model.min_iv:
            yield f"{says}: left out, under min_iv"
        else:
            yield f"{says}; points run against the bins' odds, as correlated columns do" if coefficient > 0 else says


def _describe(name: str, value: float, error: float, facts: Facts, has_ratio: bool) -> Coefficient:
    ratio = exp(value) if has_ratio and abs(value) < _LARGEST_EXPONENT else None
    if not error:
        note = _LEFT_OUT if value == 0 else _NOT_IDENTIFIED if facts.outcome == Outcome.KNOWN else ""
        return Coefficient(column=name, coefficient=value, ratio=ratio, note=note)
    z = value / error
    p, reach = _judge(z, facts.freedom)
    low, high = value - reach * error, value + reach * error
    return Coefficient(column=name, coefficient=value, error=error, z=z, p=p, low=low, high=high, ratio=ratio)


def _judge(z: float, freedom: float) -> tuple[float, float]:
    """The chance of as large a z without an effect, and how many errors a 95 % interval reaches."""
    if not freedom:
        return erfc(abs(z) / sqrt(2)), 1.959963984540054
    from scipy.stats import t

    return 2 * float(t.sf(abs(z), freedom)), float(t.ppf(0.975, freedom))
