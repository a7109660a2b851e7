"""Exact regressions over several parties: scikit-learn's coefficients, statsmodels' errors, on the joined table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge

import thinwire as tw
from thinwire.base.errors import BadColumn, BadInput, BadLabels, IncompatibleRecipe
from thinwire.engine.models.regression import DirectionSearch
from thinwire.privacy import LabelDP, MaxNorm
from thinwire.training.result import Result

ROWS = 600
Array = NDArray[Any]
Split = Callable[[Any], tuple[list[Array], Array | None]]
Losses = {"logistic": tw.losses.binary_cross_entropy, "linear": tw.losses.squared_error, "poisson": tw.losses.poisson}
SVFL = tw.methods.svfl()


def make_table(columns: int = 9) -> Any:
    """Correlated columns, one of them of another scale, one far from 0; as float32 holds them."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(ROWS, columns))
    table[:, 3:] += 0.7 * table[:, :-3]
    table[:, 4] *= 50
    table[:, 5] += 20
    return table.astype(np.float32).astype(np.float64)


TABLE = make_table()


def make_labels(kind: str) -> Any:
    rng = np.random.default_rng(1)
    effects = np.array([0.5, -0.3, 0.2, 0.4, 0.004, 0.1, -0.2, 0.3, 0.1])
    score = TABLE @ effects - 2
    if kind == "logistic":
        return (rng.random(ROWS) < 1 / (1 + np.exp(-score))).astype(np.int64)
    if kind == "poisson":
        return rng.poisson(np.exp(0.5 * score))
    return (score + rng.normal(size=ROWS)).astype(np.float32)


def make_job(
    tables: Sequence[Array],
    labels: Array,
    kind: str = "logistic",
    own: Array | None = None,
    inference: bool = False,
    l2: float = 0.0,
    **settings: Any,
) -> tw.Job:
    """`own` are the label party's columns."""

    def make_model(table: Array) -> tw.learners.Linear:
        return tw.learners.Linear(table.shape[1], l2=l2, inference=inference)

    held: dict[str, Any] = {} if own is None else {"features": own, "bottom": make_model(own)}
    top = tw.learners.RegressionTop(l2=l2)
    label_party = tw.LabelParty("clinic", labels, top, loss=settings.pop("loss", Losses[kind]), **held)
    parties = [tw.FeatureParty(f"bank{place}", table, make_model(table)) for place, table in enumerate(tables)]
    return tw.Job(parties, label_party, **{"recipe": SVFL, "epochs": 40, "metrics": [], **settings})


def run(*arguments: Any, **settings: Any) -> Result:
    return tw.train(make_job(*arguments, **settings), callbacks=[])


def coefficients(result: Result) -> Array:
    """Of all columns in order; the intercept last."""
    rows = [row for table in result.coefficients.values() for row in table.rows]
    columns = [row.coefficient for row in rows if row.column != "intercept"]
    return np.array([*columns, *(row.coefficient for row in rows if row.column == "intercept")])


def fit_centrally(kind: str, l2: float, table: Array, labels: Array) -> Array:
    """By scikit-learn; l2 / 2 |b|^2 stands beside the sum of losses, and squared errors are not halved there."""
    exact = {"tol": 1e-10, "max_iter": 10_000}
    models: dict[str, Callable[[], Any]] = {
        "logistic": lambda: LogisticRegression(C=1 / l2 if l2 else np.inf, solver="newton-cholesky", **exact),
        "linear": lambda: Ridge(alpha=l2 / 2, solver="svd") if l2 else LinearRegression(),
        "poisson": lambda: PoissonRegressor(alpha=l2 / len(labels), solver="newton-cholesky", **exact),
    }
    model = models[kind]().fit(table, labels)
    return np.array([*np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])])


SPLITS: dict[str, Split] = {
    "two parties": lambda table: ([table[:, :5], table[:, 5:]], None),
    "three parties, one with the labels": lambda table: ([table[:, :3], table[:, 3:6]], table[:, 6:]),
    "columns in turn": lambda table: ([table[:, place::3] for place in range(3)], None),
    "all at one party": lambda table: ([table], None),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", Losses)
@pytest.mark.parametrize("l2", [0.0, 5.0])
def test_coefficients_are_scikit_learns(split: str, kind: str, l2: float) -> None:
    labels = make_labels(kind)
    tables, own = SPLITS[split](TABLE)
    result = run(tables, labels, kind, own=own, l2=l2)
    found = coefficients(result)
    wanted = fit_centrally(kind, l2, TABLE if split != "columns in turn" else np.hstack(tables), labels)
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)
    # It ends by itself: a direction an exchange spans the columns, and one exchange shows that nothing is left.
    widest = max(table.shape[1] for table in [*tables, *([] if own is None else [own])])
    assert result.summary()["rounds"] <= widest + 1
    assert all("still changing" not in table.note for table in result.coefficients.values())


@pytest.mark.parametrize("split", ["two parties", "three parties, one with the labels"])
@pytest.mark.parametrize("kind", Losses)
def test_standard_errors_and_p_values_are_statsmodels(split: str, kind: str) -> None:
    labels = make_labels(kind)
    tables, own = SPLITS[split](TABLE)
    result = run(tables, labels, kind, own=own, inference=True)
    models: dict[str, Callable[..., Any]] = {
        "logistic": lambda y, x: sm.Logit(y, x).fit(disp=0, tol=1e-12),
        "linear": lambda y, x: sm.OLS(y, x).fit(),
        "poisson": lambda y, x: sm.GLM(y, x, sm.families.Poisson()).fit(tol=1e-12),
    }
    wanted = models[kind](labels, np.column_stack([TABLE, np.ones(ROWS)]))
    rows: list[Any] = [row for table in result.coefficients.values() for row in table.rows]
    rows.sort(key=lambda row: row.column == "intercept")
    np.testing.assert_allclose([row.error for row in rows], wanted.bse, rtol=1e-4)
    np.testing.assert_allclose([row.z for row in rows], wanted.tvalues, rtol=1e-4)
    np.testing.assert_allclose([row.p for row in rows], wanted.pvalues, atol=1e-4)
    np.testing.assert_allclose([(row.low, row.high) for row in rows], wanted.conf_int(), rtol=1e-3, atol=1e-5)
    if kind == "linear":
        assert {row.ratio for row in rows} == {None}
    else:
        np.testing.assert_allclose([row.ratio for row in rows], np.exp(wanted.params), rtol=1e-4)
    inference = result.ledger.total(kinds={tw.types.Kind.INFERENCE})
    assert 0 < inference.bytes <= result.bytes.evaluation
    assert inference.bytes < result.bytes.total  # directions that were sent in training are not sent again


def test_errors_cost_nothing_where_nobody_asks() -> None:
    result = run([TABLE[:, :5], TABLE[:, 5:]], make_labels("logistic"))
    assert result.ledger.total(kinds={tw.types.Kind.INFERENCE}).bytes == 4 * (36 + 8)  # no, and no
    (row, *_) = result.coefficients["bank0"].rows
    assert (row.error, row.z, row.p) == (None, None, None)
    assert result.coefficients["bank0"].note == "standard errors were not requested (inference = true)"


def test_a_party_that_declines_keeps_its_columns_and_everybody_is_told() -> None:
    job = make_job([TABLE[:, :5], TABLE[:, 5:]], make_labels("logistic"), inference=True)
    setattr(job.parties[1].bottom, "inference", False)  # noqa: B010
    result = tw.train(job, callbacks=[])
    assert result.ledger.total(kinds={tw.types.Kind.INFERENCE}).bytes == 4 * (36 + 8)
    assert result.coefficients["bank0"].note == "no standard errors: not every party offers inference = true"
    assert result.coefficients["bank0"].rows[0].error is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"l2": 1.0}, "they belong to coefficients without a penalty"),
        ({"epochs": 2}, "coefficients were still changing in the last round; raise epochs; no standard errors"),
        ({"loss": tw.models.with_class_weights(Losses["logistic"], [1, 2])}, "rows are weighted"),
        ({"recipe": replace(SVFL, defence=LabelDP(2.0))}, "a defence has changed the labels"),
    ],
)
def test_no_error_is_claimed_where_none_is_right(settings: dict[str, Any], why: str) -> None:
    result = run([TABLE[:, :5], TABLE[:, 5:]], make_labels("logistic"), inference=True, **settings)
    for table in result.coefficients.values():
        assert why in table.note
        assert {row.error for row in table.rows} == {None}


def test_noise_on_derivatives_costs_exchanges_and_not_exactness() -> None:
    labels = make_labels("logistic")
    result = run([TABLE[:, :5], TABLE[:, 5:]], labels, recipe=replace(SVFL, defence=MaxNorm()))
    np.testing.assert_allclose(coefficients(result), fit_centrally("logistic", 0.0, TABLE, labels), atol=1e-5)


def test_columns_that_follow_from_earlier_ones_are_left_out_and_said() -> None:
    labels = make_labels("logistic")
    more = np.column_stack([TABLE[:, :3], np.full(ROWS, 7.0), TABLE[:, 0] - 2 * TABLE[:, 1]])
    result = run([more, TABLE[:, 5:]], labels, inference=True)
    wanted = fit_centrally("logistic", 0.0, np.hstack([TABLE[:, :3], TABLE[:, 5:]]), labels)
    found = coefficients(result)
    np.testing.assert_allclose(np.delete(found, [3, 4]), wanted, atol=1e-5)
    left_out = result.coefficients["bank0"].rows[3:]
    assert [(row.coefficient, row.error) for row in left_out] == [(0.0, None)] * 2
    assert {row.note for row in left_out} == {"left out: constant, or a linear combination of earlier columns"}


def test_columns_that_two_parties_share_are_not_identified_and_all_others_are() -> None:
    labels = make_labels("logistic")
    both = np.column_stack([TABLE[:, 0], TABLE[:, 5:]])
    result = run([TABLE[:, :5], both], labels, inference=True)
    alone = run([TABLE[:, :5], TABLE[:, 5:]], labels, inference=True)
    rows, others = (
        [row for name in ("bank0", "bank1") for row in one.coefficients[name].rows] for one in (result, alone)
    )
    assert [place for place, row in enumerate(rows) if row.error is None] == [0, 5]
    assert {rows[0].note, rows[5].note} == {
        "not identified: a combination of other parties' columns gives the same outputs"
    }
    identified: list[Any] = [row for row in rows if row.error is not None]
    np.testing.assert_allclose([row.p for row in identified], [float(row.p or 0) for row in others[1:]], atol=1e-5)
    shared = rows[0].coefficient + rows[5].coefficient
    np.testing.assert_allclose(shared, others[0].coefficient, atol=1e-5)  # together they are what one of them was


def test_separated_classes_are_refused_and_a_penalty_is_the_way_out() -> None:
    labels = (TABLE[:, 0] > 0).astype(np.int64)
    with pytest.raises(BadInput, match=r"no finite optimum.*l2 above 0"):
        run([TABLE[:, :5], TABLE[:, 5:]], labels)
    result = run([TABLE[:, :5], TABLE[:, 5:]], labels, l2=1.0)
    np.testing.assert_allclose(coefficients(result), fit_centrally("logistic", 1.0, TABLE, labels), atol=1e-4)


def test_a_group_of_one_class_is_refused_too() -> None:
    labels, group = make_labels("logistic"), TABLE[:, 0] > 1
    labels[group] = 1
    with pytest.raises(BadInput, match="separate some rows perfectly"):
        run([np.column_stack([group, TABLE[:, 1:5]]), TABLE[:, 5:]], labels)


def test_one_class_is_refused() -> None:
    with pytest.raises(BadLabels, match="training needs at least two"):
        run([TABLE], np.ones(ROWS, np.int64))


REFUSED: dict[str, tuple[type[Exception], str, Callable[[], tw.Job]]] = {
    "constant columns": (
        BadColumn,
        "bank0.*nothing to fit",
        lambda: make_job([TABLE * 0 + 1], make_labels("logistic")),
    ),
    "batches": (
        IncompatibleRecipe,
        "all rows at once; remove batch_size",
        lambda: make_job([TABLE], make_labels("logistic"), batch_size=32),
    ),
    "another method": (
        IncompatibleRecipe,
        "does not work with fedbcd; use svfl",
        lambda: make_job([TABLE], make_labels("logistic"), recipe=tw.methods.fedbcd(2)),
    ),
    "frozen": (
        IncompatibleRecipe,
        "leave training out",
        lambda: make_job([TABLE], make_labels("logistic"), training=tw.privacy.Frozen()),
    ),
    "another loss": (
        BadInput,
        "one of the losses binary_cross_entropy, squared_error, poisson",
        lambda: make_job([TABLE], make_labels("logistic"), loss=tw.losses.cross_entropy),
    ),
    "negative counts": (
        BadInput,
        "counts, 0 or more",
        lambda: make_job([TABLE], -1 - make_labels("poisson"), "poisson"),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_exact_is_refused_before_anything_starts(what: str) -> None:
    error, says, build = REFUSED[what]
    with pytest.raises(error, match=says):
        build().check()


def test_the_parts_of_a_regression_belong_together() -> None:
    job = make_job([TABLE[:, :5], TABLE[:, 5:]], make_labels("logistic"))
    setattr(job.parties[1].bottom, "l2", 1.0)  # noqa: B010
    with pytest.raises(BadInput, match="'bank1': l2 is 1, and 0 in the top model"):
        job.check()
    job.parties[1].bottom = torch.nn.Linear(4, 1)
    with pytest.raises(BadInput, match=r"'bank1': Linear and RegressionTop belong together.*got Linear under"):
        job.check()


def test_validation_rows_need_the_last_model() -> None:
    labels = make_labels("logistic")
    party = tw.FeatureParty("bank", TABLE[50:], tw.learners.Linear(9), validation_features=TABLE[:50])
    clinic = tw.LabelParty(
        "clinic", labels[50:], tw.learners.RegressionTop(), loss=Losses["logistic"], validation_labels=labels[:50]
    )
    job = tw.Job([party], clinic, SVFL, epochs=30, metrics=["auc"])
    with pytest.raises(IncompatibleRecipe, match='set deliver = "last"'):
        job.check()
    job.deliver = "last"
    result = tw.train(job, callbacks=[])
    wanted = fit_centrally("logistic", 0.0, TABLE[50:], labels[50:])
    np.testing.assert_allclose(coefficients(result), wanted, atol=1e-5)


def test_a_run_that_was_stopped_goes_on_to_the_same_bit(tmp_path: Path) -> None:
    def build(epochs: int = 40) -> tw.Job:
        return make_job(
            [TABLE[:, :5], TABLE[:, 5:7]],
            make_labels("poisson"),
            "poisson",
            own=TABLE[:, 7:],
            inference=True,
            epochs=epochs,
        )

    whole = tw.train(build(), callbacks=[])
    for stop in (1, 3):
        out = tmp_path / str(stop)
        tw.train(build(stop), callbacks=[], out=out)
        resumed = tw.train(build(), callbacks=[], out=out, resume=True)
        assert resumed.coefficients == whole.coefficients
        assert resumed.bytes == whole.bytes


def test_counts_are_predicted_and_scored_in_their_own_scale() -> None:
    labels = make_labels("poisson")
    party = tw.FeatureParty("bank", TABLE[100:], tw.learners.Linear(9), TABLE[:100])
    clinic = tw.LabelParty(
        "clinic", labels[100:], tw.learners.RegressionTop(), loss=tw.losses.poisson, test_labels=labels[:100]
    )
    result = tw.train(tw.Job([party], clinic, SVFL, epochs=30, metrics=["mae"], baselines=True), callbacks=[])
    wanted = PoissonRegressor(alpha=0, tol=1e-10, max_iter=10_000).fit(TABLE[100:], labels[100:])
    expected = np.abs(wanted.predict(TABLE[:100]) - labels[:100]).mean()
    assert result.summary()["test"]["mae"] == pytest.approx(expected, rel=1e-4)
    assert result.quality is not None
    assert result.quality.errors["mae"] == pytest.approx(expected, rel=1e-4)
    ridge = next(one for one in result.baselines if one.name == "ridge_regression")
    assert ridge.value is not None
    assert 0.5 * expected < ridge.value < 2 * expected


def test_directions_are_orthogonal_and_span_what_is_kept() -> None:
    search = DirectionSearch(torch.from_numpy(TABLE).float(), 0.0)
    rng = np.random.default_rng(3)
    for _ in range(12):
        search.find_next(torch.from_numpy(rng.normal(size=ROWS)), torch.ones(ROWS).double())
    assert search.found.shape == (9, 9)
    assert not search.is_new
    assert not search.embed_next().any()
    torch.testing.assert_close(search.found.T @ search.found, torch.eye(9).double(), rtol=0, atol=1e-10)
