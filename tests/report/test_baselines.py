"""Comparison with baselines in a report: the first figure, in words that are true, and importance."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from report.records import EVIL, Page, assert_our_script_alone, made_up, small_job
from thinwire.report.baseline_figures import (
    baseline_figure,
    describe_baselines,
    describe_importance,
    describe_run_baselines,
    importance_figures,
)
from thinwire.report.folder import read_run
from thinwire.report.record import (
    ALL_PARTIES,
    BaselineScore,
    ColumnGain,
    ColumnImportance,
    Importance,
    PartyImportance,
    Quality,
    RunRecord,
)
from thinwire.report.rendering import report_html


def scores(metric: str = "auc", evil: str = "", **values: float) -> list[BaselineScore]:
    """`own_boosted_trees=0.8` is the label party's, anything else on the joined table."""
    return [
        BaselineScore(
            name=name.removeprefix("own_"),
            columns=f"shop{evil}" if name.startswith("own_") else ALL_PARTIES,
            metric=metric,
            value=value,
            seconds=0.5,
        )
        for name, value in values.items()
    ]


def test_what_partners_add_is_said() -> None:
    found = scores(
        own_logistic_regression=0.83, own_boosted_trees=0.841, logistic_regression=0.921, boosted_trees=0.9
    )
    assert describe_baselines(found, 0.912, 1) == [
        "Together: AUC 0.9120, 0.0710 above what shop reaches alone (0.8410, boosted trees).",
        "Logistic regression on the joined table reaches AUC 0.9210: the federated model is 0.0090 below it.",
        "The baselines took 2 s.",
    ]


def test_a_model_that_is_no_better_than_one_party_says_so() -> None:
    (said, took) = describe_baselines(scores(own_class_prior=0.5), 0.45, 1)
    assert said == (
        "Together: AUC 0.4500, 0.0500 below what shop reaches alone (0.5000, the class prior): the partners' columns "
        "do not improve the model."
    )
    assert took == "The baselines took 0.5 s."


def test_where_no_baseline_is_better_they_are_named() -> None:
    said = describe_baselines(scores(own_boosted_trees=0.8, logistic_regression=0.9, boosted_trees=0.91), 0.91, 1)
    assert (
        said[1]
        == "No baseline on the joined table is better: logistic regression (0.9000) and boosted trees (0.9100)."
    )


def test_of_errors_the_lower_one_is_better() -> None:
    said = describe_baselines(scores("mae", own_boosted_trees=3.0, ridge_regression=1.0), 2.0, -1)
    assert said[:2] == [
        "Together: MAE 2.0000, 1.0000 lower (better) than what shop reaches alone (3.0000, boosted trees).",
        "Ridge regression on the joined table reaches MAE 1.0000: the federated model is 1.0000 higher (worse) than "
        "it.",
    ]


def test_nothing_is_said_without_a_score() -> None:
    assert describe_baselines([], 0.9, 1) == []
    assert describe_baselines(scores(own_boosted_trees=0.8), None, 1) == []
    none = BaselineScore(
        name="boosted_trees", columns="shop", metric="auc", value=None, seconds=1, note="not trained: no"
    )
    assert describe_baselines([none], 0.9, 1) == ["The baselines took 1 s (not trained: no)."]


def compared(evil: str = "", **changes: Any) -> RunRecord:
    run = made_up(evil=evil)
    metric = run.about.metric
    found = scores(metric, evil, own_boosted_trees=0.4, logistic_regression=0.7, boosted_trees=0.95)
    importance = Importance(
        metric=metric,
        value=0.85,
        parties=(
            PartyImportance(party=f"bank{evil}", lost=0.2, without=0.6, worth=0.25),
            PartyImportance(party=f"shop{evil}", lost=-0.01, without=0.86, worth=-0.01),
        ),
        columns=(ColumnImportance(party=f"bank{evil}", column=f"age{evil}", lost=0.1),),
    )
    return replace(run, baselines=tuple(found), importance=importance, **changes)


def measured(**changes: Any) -> RunRecord:
    run = compared()
    assert run.importance is not None
    return replace(run, importance=run.importance.model_copy(update=changes))


def test_it_is_the_first_figure_of_a_report() -> None:
    html = report_html([compared()])
    page = Page(html)
    figures = [attributes["id"] for tag, attributes in page.tags if tag == "figure"]
    assert figures[0] == "alone-against-together"
    assert html.index("Together: accuracy 0.8571, 0.4571 above what shop reaches alone") < html.index(
        "Training curves"
    )
    assert "Boosted trees on the joined table reach accuracy 0.9500: the federated model is 0.0929 below it" in html
    assert {"importance-by-party", "worth-by-party", "importance-by-column"} <= set(figures)


def test_several_runs_have_one_each() -> None:
    other = replace(compared(), name="other", about=compared().about.model_copy(update={"method": "svfl"}))
    assert report_html([compared(), other]).count('id="alone-against-together"') == 2


def test_names_are_text() -> None:
    html = report_html([compared(EVIL)])
    assert_our_script_alone(html)


def test_bars_are_in_the_order_of_the_question_and_the_table_has_all() -> None:
    figure = baseline_figure(compared())
    assert figure is not None
    places = [
        figure.svg.index(name) for name in ("shop alone", "together, fed", "logistic regression", "boosted trees, j")
    ]
    assert places == sorted(places)
    assert [row[:2] for row in figure.rows] == [
        ("together, federated", "0.8571"),
        ("boosted trees, shop", "0.4000"),
        ("logistic regression, all parties", "0.7000"),
        ("boosted trees, all parties", "0.9500"),
    ]


def test_a_run_without_baselines_has_no_such_figure() -> None:
    assert baseline_figure(made_up()) is None
    assert describe_run_baselines(made_up()) == []
    assert "alone-against-together" not in report_html([made_up()])


def test_importance_in_words_and_bars() -> None:
    found = compared().importance
    assert found is not None
    assert describe_importance(found) == [
        "Value of each party's data, in accuracy: bank 0.2500 (without it 0.6000), shop -0.0100 (without it 0.8600)."
    ]
    assert [figure.rows[0][:2] for figure in importance_figures(compared())] == [
        ("bank", "0.2000"),
        ("bank", "0.2500"),
        ("age (bank)", "0.1000"),
    ]


def test_columns_have_the_colour_of_their_party_and_the_table_has_the_rest() -> None:
    columns = [ColumnImportance(party="bank" if k % 2 else "shop", column=f"x{k}", lost=0.1) for k in range(20)]
    figure = importance_figures(measured(columns=columns))[-1]
    assert set(re.findall(r'fill c(\d)"[^>]*><title>x\d+, (\w+):', figure.svg)) == {("0", "shop"), ("1", "bank")}
    assert ("x11" in figure.svg, "x12" in figure.svg, len(figure.rows)) == (True, False, 20)
    assert figure.note.endswith("The table has 8 more.")
    assert figure.rows[0] == ("x0 (shop)", "0.1000", "0.7500")


def test_a_lower_score_rises_when_a_column_is_permuted() -> None:
    run = measured(metric="loss", value=0.3)
    lower = replace(run, about=run.about.model_copy(update={"metrics": ()}))
    assert importance_figures(lower)[-1].rows == (("age (bank)", "0.1000", "0.4000"),)


def test_a_feature_party_knows_its_columns_alone() -> None:
    """Neither the score nor what is left of it, nor anything by party."""
    (figure,) = importance_figures(measured(value=None, parties=()))
    assert (figure.key, figure.rows) == ("importance-by-column", (("age (bank)", "0.1000", ""),))


def test_a_feature_party_reads_of_its_own_columns_alone() -> None:
    columns = tuple(ColumnImportance(party="bank", column=name, lost=0.1) for name in ("age", "income"))
    found = Importance(metric="auc", columns=columns)
    assert describe_importance(found) == ["AUC lost when a column is permuted: age 0.1000, income 0.1000."]
    assert [figure.key for figure in importance_figures(measured(value=None, parties=(), columns=columns))] == [
        "importance-by-column"
    ]
    assert describe_importance(Importance(metric="auc", note="none")) == []
    shares = {"age": 0.75, "income": 0.25}
    gains = tuple(ColumnGain(party="bank", column=name, share=share) for name, share in shares.items())
    assert describe_importance(Importance(metric="", gains=gains)) == [
        "Gain of the splits of bank's trees: age 75%, income 25%."
    ]
    (figure,) = importance_figures(measured(value=None, parties=(), columns=(), gains=gains))
    assert figure.rows == (("age (bank)", "75.0%"), ("income (bank)", "25.0%"))
    html = report_html([replace(made_up(), importance=Importance(metric="auc", note="Columns are not measured."))])
    assert '<p class="muted">Columns are not measured.</p>' in html


def test_a_folder_of_an_older_version_is_still_read(tmp_path: Path) -> None:
    """quality.json and result.json as they were before these figures existed."""
    tw.train(small_job(), callbacks=[], out=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    for key in ("quality", "baselines", "importance"):
        del result[key]
    (tmp_path / "result.json").write_text(json.dumps(result))
    old = {"task", "rows", "round", "confusion", "classes", "calibration", "calibration_error", "roc", "auc"}
    quality = json.loads((tmp_path / "quality.json").read_text())
    (tmp_path / "quality.json").write_text(json.dumps({key: quality[key] for key in old}))
    html = report_html([read_run(tmp_path)])
    assert "Model quality" in html
    assert "Comparison with baselines" not in html


@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
def test_model_quality_has_its_figures_and_tables(task: str) -> None:
    import torch

    from thinwire.training.quality import count_quality

    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % (3 if task == "classes" else 2)
    outputs = torch.randn(200, 3, generator=rng) if task == "classes" else torch.randn(200, generator=rng) + labels
    quality = count_quality(outputs, labels + 0.5 if task == "regression" else labels, 1)
    assert isinstance(quality, Quality)
    assert quality.task == task
    html = report_html([replace(made_up(), quality=quality)])
    wanted = {
        "binary": [
            "Gini",
            "KS",
            "Cumulative gains",
            "Lift by decile",
            "Precision and recall",
            "specificity",
            "Brier",
        ],
        "classes": ["Confusion matrix", "By class", "macro average", "Calibration"],
        "regression": ["Residuals", "Error by decile of prediction", "RMSE", "R²"],
    }
    assert [one for one in wanted[task] if one not in html] == []
    if task == "binary":
        assert "the default: no validation rows chose it" in html
