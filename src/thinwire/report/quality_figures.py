"""Model quality in a report: its curves, its bars by decile, and its tables."""

from __future__ import annotations

from collections.abc import Callable

from thinwire.base.format import format_count, format_number, format_score, name_score
from thinwire.report.figures import Figure, of_lines
from thinwire.report.record import Quality
from thinwire.report.summary import Comparison, Tile
from thinwire.report.svg.bar_chart import Bar, Bars
from thinwire.report.svg.line_chart import HALF, Chart, Line, Point

_EXPLANATIONS = {
    "auc": "0.5 is chance level",
    "gini": "2 AUC - 1",
    "ks": "largest gap between true and false positive rate",
    "brier": "mean squared error of the probability; lower is better",
    "log_loss": "lower is better",
    "rmse": "lower is better",
    "mae": "lower is better",
    "r2": "1 is perfect, 0 no better than the mean",
}


def quality_tiles(quality: Quality) -> list[Tile]:
    """The figures to look at first."""
    found = [
        Tile(name_score(name), format_score(value), _EXPLANATIONS.get(name, ""))
        for name, value in quality.headline.items()
    ]
    if quality.threshold is None:
        return found
    chosen = quality.threshold.chosen_by
    best = f"best {name_score(chosen or '')} on validation rows"
    how = "the default: no validation rows chose it" if chosen is None else best
    return [*found, Tile("recommended threshold", format_number(quality.threshold.value), how)]


def answer_figures(quality: Quality) -> list[Figure]:
    """Those that the task has."""
    drawn: tuple[Callable[[Quality], Figure | None], ...] = (
        _roc,
        _gains,
        _lift,
        _precision_and_recall,
        _calibration,
        _residuals,
        _predictions,
        _error_by_decile,
    )
    return [figure for draw in drawn if (figure := draw(quality)) is not None]


def _roc(quality: Quality) -> Figure | None:
    if not quality.roc:
        return None
    line = Line("this model", [Point(*point) for point in quality.roc], 0)
    chance = Line("chance level", [Point(0, 0), Point(1, 1)], 6)
    area = "" if quality.auc is None else f"The area under the curve (AUC) is {quality.auc:.4f}."
    ks = "" if quality.ks is None else f" KS, its largest distance from the diagonal, is {quality.ks:.4f}."
    chart = Chart("ROC", "false positive rate", "true positive rate", [line, chance], size=HALF, warm_up=0)
    return of_lines("roc", chart, area + ks)


def _gains(quality: Quality) -> Figure | None:
    if not quality.lift:
        return None
    points, rows = [Point(0, 0)], 0
    for decile in quality.lift:
        rows += decile.rows
        points.append(Point(rows / quality.rows, decile.gain))
    chance = Line("chance level", [Point(0, 0), Point(1, 1)], 6)
    lines = [Line("this model", points, 0), chance]
    x_name, y_name = "share of rows, highest scores first", f"share of {_positive(quality)}"
    return of_lines("gains", Chart("Cumulative gains", x_name, y_name, lines, size=HALF, warm_up=0))


def _lift(quality: Quality) -> Figure | None:
    if not quality.lift:
        return None
    bars = [Bar(_name_decile(place), {"lift": one.lift}) for place, one in enumerate(quality.lift, 1)]
    base = quality.class_counts[1] / quality.rows
    drawn = Bars("Lift by decile", "lift", bars, "{:.2f}".format)
    rows = tuple(
        (_name_decile(place), format_count(one.rows), f"{one.rate:.4f}", f"{one.lift:.3f}", f"{one.gain:.4f}")
        for place, one in enumerate(quality.lift, 1)
    )
    note = (
        f"Rows by score, decile 1 the highest. {100 * base:.3g} % of all rows are {_positive(quality)}; "
        "a lift of 2 is twice that rate."
    )
    return Figure("lift", drawn.title, drawn.svg(), ("", "rows", "rate", "lift", "cumulative gain"), rows, note)


def _name_decile(place: int) -> str:
    return f"decile {place}"


def _precision_and_recall(quality: Quality) -> Figure | None:
    if not quality.thresholds or not quality.roc:
        return None
    lines = []
    for style, name in enumerate(("precision", "recall", "f1")):
        values = [(one.threshold, getattr(one, name)) for one in quality.thresholds]
        points = [Point(at, value) for at, value in values if value is not None]
        lines.append(Line(name_score(name), points, style))
    chart = Chart("Precision and recall by threshold", "threshold", "score", lines, size=HALF, warm_up=0)
    return of_lines("precision-recall", chart)


def _calibration(quality: Quality) -> Figure | None:
    if not quality.calibration:
        return None
    line = Line("this model", [Point(said, so) for said, so, _ in quality.calibration], 0)
    even = Line("perfectly calibrated", [Point(0, 0), Point(1, 1)], 6)
    what = (
        f"probability of {_positive(quality)}" if quality.task == "binary" else "probability of the predicted class"
    )
    error = quality.calibration_error or 0.0
    note = f"Expected calibration error {error:.3f}, over {format_count(quality.rows)} test rows."
    return of_lines(
        "calibration", Chart("Calibration", what, "observed frequency", [line, even], size=HALF, warm_up=0), note
    )


def _residuals(quality: Quality) -> Figure | None:
    if not quality.residuals:
        return None
    line = Line("test rows", [Point((a + b) / 2, n) for a, b, n in quality.residuals], 0)
    chart = Chart("Residuals", "label minus prediction", "test rows", [line], size=HALF, warm_up=0)
    return of_lines("residuals", chart, "The outermost 0.5 % on either side is drawn at the edge.")


def _predictions(quality: Quality) -> Figure | None:
    if not quality.predicted:
        return None
    ends = [value for said, so, _ in quality.predicted for value in (said, so)]
    even = Line("perfect predictions", [Point(min(ends), min(ends)), Point(max(ends), max(ends))], 6)
    line = Line("this model", [Point(said, so) for said, so, _ in quality.predicted], 0)
    errors = ", ".join(f"{name_score(name)} {format_number(value)}" for name, value in quality.errors.items())
    chart = Chart(
        "Predictions and labels", "mean prediction, by twentieths", "mean label", [line, even], size=HALF, warm_up=0
    )
    return of_lines("predicted", chart, errors)


def _error_by_decile(quality: Quality) -> Figure | None:
    if not quality.deciles:
        return None
    bars = [Bar(_name_decile(place), {"RMSE": one.rmse}) for place, one in enumerate(quality.deciles, 1)]
    drawn = Bars("Error by decile of prediction", "RMSE", bars)
    rows = tuple(
        (_name_decile(place), *map(format_number, (one.rows, one.prediction, one.label, one.rmse, one.mae)))
        for place, one in enumerate(quality.deciles, 1)
    )
    heads = ("", "rows", "mean prediction", "mean label", "RMSE", "MAE")
    return Figure("error-by-decile", drawn.title, drawn.svg(), heads, rows, "Decile 1 has the lowest predictions.")


def _positive(quality: Quality) -> str:
    """The second of two classes, by its name where it has one."""
    return repr(quality.classes[1]) if len(quality.classes) == 2 else "class 1"


# Tables -----------------------------------------------------------------------------------------------------------


def quality_tables(quality: Quality) -> list[Comparison]:
    """Those that are shown without being asked for."""
    found = [_threshold_table(quality)] if quality.thresholds else []
    return [*found, _class_table(quality)] if quality.class_counts else found


def _threshold_table(quality: Quality) -> Comparison:
    chosen = None if quality.threshold is None else quality.threshold.value
    rows = tuple(
        (
            format_number(one.threshold) + (" (recommended)" if one.threshold == chosen else ""),
            f"{100 * one.flagged:.1f} %",
            *map(_share, (one.precision, one.recall, one.f1, one.specificity)),
        )
        for one in quality.thresholds
    )
    heads = ("threshold", "flagged", "precision", "recall", "F1", "specificity")
    return Comparison(f"Rows flagged as {_positive(quality)} above a threshold", heads, rows)


def _class_table(quality: Quality) -> Comparison:
    names = quality.classes or tuple(map(str, range(len(quality.class_counts))))
    counts = [
        (name, format_count(count), f"{100 * count / quality.rows:.1f} %")
        for name, count in zip(names, quality.class_counts, strict=True)
    ]
    if not quality.per_class:
        return Comparison("Class balance", ("class", "test rows", "share"), tuple(counts))
    scores = [(one.precision, one.recall, one.f1) for one in quality.per_class]
    rows = [(*count, *map(_share, score)) for count, score in zip(counts, scores, strict=True)]
    macro = (quality.macro.get(f"macro_{name}") for name in ("precision", "recall", "f1"))
    rows.append(("macro average", format_count(quality.rows), "", *map(_share, macro)))
    return Comparison("By class", ("class", "test rows", "share", "precision", "recall", "F1"), tuple(rows))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def confusion_rows(quality: Quality) -> list[list[tuple[int, float]]]:
    """Rows of (count, share of the label's rows)."""
    return [[(count, count / max(1, sum(row))) for count in row] for row in quality.confusion]
