"""How good the answers are: who is taken for whom, is a probability what it says, how far off is a number."""

from __future__ import annotations

from thinwire.charts.lines import HALF, Chart, Line, Point
from thinwire.charts.numbers import count_shown, number_shown
from thinwire.report.figures import Figure, of_lines
from thinwire.report.record import Quality

__all__ = ["answer_figures", "confusion_rows"]

_EVEN = Line("where it should be", [Point(0, 0), Point(1, 1)], 6)


def answer_figures(quality: Quality) -> list[Figure]:
    found = []
    if quality.roc:
        line = Line("this model", [Point(*point) for point in quality.roc], 0)
        chance = Line("by chance", [Point(0, 0), Point(1, 1)], 6)
        said = "" if quality.auc is None else f"The area below it is {quality.auc:.4f}."
        chart = Chart("ROC", "false positive rate", "true positive rate", [line, chance], size=HALF)
        found.append(of_lines("roc", chart, said))
    if quality.calibration:
        line = Line("this model", [Point(said, so) for said, so, _ in quality.calibration], 0)
        what = f"probability of {_positive(quality)}" if quality.task == "binary" else "confidence in the answer"
        error = quality.calibration_error or 0.0
        note = f"Expected calibration error {error:.3f}, over {count_shown(quality.rows)} test rows."
        chart = Chart("Calibration", what, "share that was so", [line, _EVEN], size=HALF)
        found.append(of_lines("calibration", chart, note))
    if quality.residuals:
        line = Line("test rows", [Point((a + b) / 2, n) for a, b, n in quality.residuals], 0)
        chart = Chart("Residuals", "label minus answer", "test rows", [line], size=HALF)
        found.append(of_lines("residuals", chart, "The outermost half percent on either side is drawn at the edge."))
    if quality.predicted:
        ends = [value for said, so, _ in quality.predicted for value in (said, so)]
        even = Line("where it should be", [Point(min(ends), min(ends)), Point(max(ends), max(ends))], 6)
        line = Line("this model", [Point(said, so) for said, so, _ in quality.predicted], 0)
        errors = ", ".join(f"{name} {number_shown(value)}" for name, value in quality.errors.items())
        chart = Chart("Answers and labels", "answer, mean of a twentieth", "label, mean", [line, even], size=HALF)
        found.append(of_lines("predicted", chart, errors))
    return found


def _positive(quality: Quality) -> str:
    """The second of two classes, by its name where it has one."""
    return repr(quality.classes[1]) if len(quality.classes) == 2 else "class 1"


def confusion_rows(quality: Quality) -> list[list[tuple[int, float]]]:
    """Rows of (count, share of the label's rows)."""
    return [[(count, count / max(1, sum(row))) for count in row] for row in quality.confusion]
