"""What a reader must know before believing a score: overfitting, class imbalance, leakage, a better baseline."""

from __future__ import annotations

from thinwire.base.format import format_count, format_score, name_score
from thinwire.report.baseline_figures import describe_better_baselines, find_test_score
from thinwire.report.record import Evaluation, RunRecord

_FEW = 5  # evaluations: too few for a curve
_RISE = 0.05  # of the loss on held-out rows above its lowest
_RARE = 0.05  # of the rows: a class that accuracy hardly counts
_PERFECT = 0.999  # a score that is rarely earned
_BOUNDED = ("accuracy", "auc", "r2", "f1")  # at most 1


def list_warnings(run: RunRecord) -> list[str]:
    """One sentence each, the most serious first; none is good news."""
    found = (_warn_of_leakage(run), _warn_of_overfitting(run), *_warn_of_baselines(run), _warn_of_imbalance(run))
    return [one for one in found if one]


def _warn_of_leakage(run: RunRecord) -> str:
    score, metric = find_test_score(run), run.about.metric
    if score is None or metric not in _BOUNDED or score < _PERFECT:
        return ""
    return (
        f"Possible leakage: {name_score(metric)} {format_score(score)} on test rows is nearly perfect. Check that no "
        "column contains the label, or was recorded after it, and that no row is in both sets."
    )


def _warn_of_overfitting(run: RunRecord) -> str:
    """The delivered model may be an earlier one; the run says how far training went past it."""
    losses = [(one, loss) for one in run.events if (loss := _held_out_loss(one)) is not None]
    if len(losses) < _FEW:
        return ""
    (lowest, low), (last, high) = min(losses, key=lambda one: one[1]), losses[-1]
    before, after = lowest.train.get("loss"), last.train.get("loss")
    if high <= (1 + _RISE) * low or before is None or after is None or after >= before:
        return ""
    return (
        f"Overfitting: the loss on held-out rows rose from {low:.4g} at epoch {lowest.epoch:g} to {high:.4g} at "
        f"epoch {last.epoch:g}, while the training loss kept falling. Use early stopping (`patience`), weight decay, "
        "dropout or a smaller model."
    )


def _held_out_loss(event: Evaluation) -> float | None:
    return (event.validation or event.test).get("loss")


def _warn_of_baselines(run: RunRecord) -> list[str]:
    better = describe_better_baselines(
        run.baselines, find_test_score(run), run.about.better.get(run.about.metric, -1)
    )
    return [f"Better baseline: {one}" for one in better[:1]]


def _warn_of_imbalance(run: RunRecord) -> str:
    quality = run.quality
    if quality is None or run.about.metric != "accuracy" or not quality.class_counts:
        return ""
    count = min(quality.class_counts)
    if count >= _RARE * quality.rows:
        return ""
    place = quality.class_counts.index(count)
    name = repr(quality.classes[place]) if quality.classes else f"class {place}"
    return (
        f"Class imbalance: {format_count(count)} of {format_count(quality.rows)} test rows are {name}, so accuracy "
        "says little about that class. Look at precision and recall, or use AUC as the metric."
    )
