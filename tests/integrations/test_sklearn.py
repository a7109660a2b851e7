"""The estimators among scikit-learn's own tools, on real data."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import thinwire as tw
from thinwire import VerticalClassifier, VerticalRegressor
from thinwire.base.types import Kind
from thinwire.engine.privacy.defences import LabelDP
from thinwire.integrations.estimator_models import choose_models
from thinwire.integrations.sklearn import choose_validation_rows
from thinwire.job.registry import build_recipe
from thinwire.job.wizard.answers import TEMPLATES

PARTIES = {"hospital": list(range(15)), "laboratory": list(range(15, 30))}


@pytest.fixture(scope="module")
def cancer() -> tuple[Any, Any]:
    found = load_breast_cancer(as_frame=True)
    return found.data, found.target_names[found.target]


def test_fit_predict_and_score(cancer: tuple[Any, Any]) -> None:
    X, y = cancer
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    parties = {"hospital": list(X.columns[:15]), "laboratory": list(X.columns[15:])}
    model = VerticalClassifier(parties, label_party="laboratory", epochs=8).fit(X_train, y_train)
    chances = model.predict_proba(X_test)
    assert list(model.classes_) == ["benign", "malignant"]
    assert chances.shape == (len(X_test), 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert list(model.predict(X_test)) == list(model.classes_[chances.argmax(axis=1)])
    assert model.score(X_test, y_test) == np.mean(model.predict(X_test) == y_test) > 0.93
    assert model.result_.bytes.up > 0
    assert model.n_features_in_ == 30


def test_one_table_numbered_columns_and_tables_by_party_are_the_same_rows(cancer: tuple[Any, Any]) -> None:
    X, y = cancer[0].to_numpy(), cancer[1]
    settings: dict[str, Any] = {"label_party": "clinic", "epochs": 1, "recipe": "svfl"}
    one = VerticalClassifier(PARTIES, **settings).fit(X, y).predict_proba(X)
    slices = {"hospital": slice(15), "laboratory": slice(15, None)}
    two = VerticalClassifier(slices, **settings).fit(X, y).predict_proba(X)
    split = {"hospital": X[:, :15], "laboratory": pd.DataFrame(X[:, 15:])}
    three = VerticalClassifier(dict.fromkeys(PARTIES), **settings).fit(split, y).predict_proba(split)
    assert (one == two).all()
    assert (one == three).all()


def test_it_works_in_a_pipeline_a_cross_validation_and_a_grid_search(cancer: tuple[Any, Any]) -> None:
    X, y = cancer
    model = VerticalClassifier(PARTIES, label_party="laboratory", epochs=2)
    pipeline = Pipeline([("scale", StandardScaler()), ("model", model)])
    scores = cross_val_score(pipeline, X, y, cv=2)
    assert scores.mean() > 0.85
    search = GridSearchCV(model, {"epochs": [0.25, 3]}, cv=2).fit(X.to_numpy(), y)
    assert search.best_params_ == {"epochs": 3}


def test_parameters_can_be_read_set_and_cloned() -> None:
    recipe = tw.methods.celu(3, 3)
    model = VerticalClassifier(PARTIES, label_party="hospital", recipe=recipe, width=8)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert twin.set_params(width=4, random_state=7).get_params()["random_state"] == 7
    assert model.width == 8


def test_the_same_seed_gives_the_same_model_and_torch_keeps_its_generator(cancer: tuple[Any, Any]) -> None:
    import torch

    X, y = cancer[0].to_numpy(), cancer[1]
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    models = [VerticalClassifier(PARTIES, epochs=1, random_state=seed).fit(X, y) for seed in (0, 0, 1)]
    assert torch.rand(3).equal(wanted)
    chances = [model.predict_proba(X) for model in models]
    assert (chances[0] == chances[1]).all()
    assert (chances[0] != chances[2]).any()


def test_text_gaps_and_dates_are_prepared_at_each_party() -> None:
    rng = np.random.default_rng(0)
    job = rng.choice(["baker", "smith", "clerk"], 200)
    X = pd.DataFrame({"job": job, "age": rng.normal(40, 9, 200), "visits": rng.integers(0, 9, 200)})
    X.loc[::7, "age"] = np.nan
    y = job == "smith"
    model = VerticalClassifier({"bank": ["job", "age"], "shop": ["visits"]}, "shop", epochs=10).fit(X, y)
    assert model.score(X, y) == 1
    assert model.classes_.tolist() == [False, True]


def test_the_regressor_is_near_a_linear_one_where_the_truth_is_about_linear() -> None:
    X, y = load_diabetes(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    model = VerticalRegressor({"bank": [0, 1, 2, 3], "shop": [4, 5, 6, 7, 8, 9]}, epochs=10).fit(X_train, y_train)
    assert model.score(X_test, y_test) > LinearRegression().fit(X_train, y_train).score(X_test, y_test) - 0.1


X, Y = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2
TWO = {"bank": [0, 1], "shop": [2, 3]}


@pytest.mark.parametrize(
    ("parties", "x", "y", "said"),
    [
        ({}, X, Y, "map each party to its columns"),
        ({"bank": [0], "shop": [4]}, X, Y, "party 'shop': X is an array of 4 columns, so columns are numbers from 0"),
        ({"bank": ["age"]}, X, Y, "party 'bank': X is an array of 4 columns"),
        ({"bank": "age"}, pd.DataFrame(X), Y, "party 'bank': X has no column 'age'; the columns are 0, 1, 2, 3"),
        (
            {"bank": "Age"},
            pd.DataFrame({"age": X[:, 0], "job": X[:, 1]}),
            Y,
            "X has no column 'Age'; the columns are 'age', 'job'; did you mean 'age'?",
        ),
        ({"bank": None}, X, Y, "columns may be None only if X is given per party"),
        (TWO, {"bank": X}, Y, "X has tables of bank, and the parties are bank, shop"),
        ({"bank": None, "shop": None}, {"bank": X, "shop": X[1:]}, Y, "same rows in the same order: bank has 20"),
        (TWO, X, Y[1:], "X has 20 rows and y 19"),
        (TWO, X, np.zeros(20), "all 20 labels are"),
        (TWO, X, X[:, 0], "use VerticalRegressor"),
        (TWO, X, np.array(["a", 1] * 10, dtype=object), "y mixes labels of the types 'int', 'str'"),
        (TWO, X, None, "requires y to be passed"),
        (TWO, csr_array(X), Y, r"sparse data is not supported; give X\.toarray\(\)"),
        (TWO, {"bnak": X, "shop": X}, Y, "did you mean 'bank'"),
        (None, {"bank": pd.DataFrame(X, columns=list("abca"))}, Y, "party 'bank': X has 2 columns named 'a'"),
        (TWO, X, X, "y has shape"),
        ({"bank": [0, 1], "shop": []}, X, Y, "party 'shop' has no columns"),
        ({"labels": [0]}, X, Y, "at least one feature party"),
    ],
)
def test_wrong_input_is_refused_by_name(parties: Any, x: Any, y: Any, said: str) -> None:
    with pytest.raises(tw.errors.BadInput, match=said):
        VerticalClassifier(parties).fit(x, y)


@pytest.mark.parametrize(("model", "template"), [("mlp", "tabular"), ("boosted_trees", "trees")])
def test_the_recipe_is_that_of_init(model: str, template: str) -> None:
    kind = choose_models(model, (64,), 16)
    assert kind.recipe == build_recipe("recipe", TEMPLATES[template].recipe)
    assert kind.epochs == TEMPLATES[template].epochs


def test_wrong_recipes_and_unfitted_models_are_refused() -> None:
    with pytest.raises(tw.errors.BadParameter, match="did you mean 'thin'"):
        VerticalClassifier(TWO, recipe="thn").fit(X, Y)
    with pytest.raises(tw.errors.BadParameter, match=r"needs arguments: give a recipe, such as tw.methods.celu"):
        VerticalClassifier(TWO, recipe="celu").fit(X, Y)
    with pytest.raises(NotFittedError):
        VerticalClassifier(TWO).predict(X)
    model = VerticalRegressor(TWO, epochs=1).fit(X, X[:, 0])
    with pytest.raises(tw.errors.BadTable, match="X has 3 features, but VerticalRegressor is expecting 4 features"):
        model.predict(X[:, :3])


def test_without_parties_all_columns_are_one_partys_or_each_table_is() -> None:
    names = VerticalClassifier(epochs=1).fit(X, Y).result_.models.keys()
    assert names == {"features", "top"}
    model = VerticalClassifier(label_party="shop", epochs=1).fit({"bank": X[:, :2], "shop": X[:, 2:]}, Y)
    assert model.result_.models.keys() == {"bank", "shop", "top"}
    assert model.n_features_in_ == 4


@pytest.mark.parametrize(
    ("label_party", "near"),
    [("laboratry", "laboratory"), ("Laboratory", "laboratory"), ("bnak", "bank"), ("bank_oen", "bank_one")],
)
def test_a_label_party_that_is_almost_one_of_the_parties_is_a_slip(label_party: str, near: str) -> None:
    with pytest.raises(
        tw.errors.BadInput, match=f"label_party '{label_party}' is not one of .*; did you mean '{near}'"
    ):
        VerticalClassifier({near: [0, 1], "shop": [2, 3]}, label_party).fit(X, Y)


@pytest.mark.parametrize(
    ("first", "label_party"),
    [("bank_a", "bank_b"), ("shop1", "shop2"), ("partyA", "partyB"), ("lab", "labels"), ("bank", "registry")],
)
def test_a_label_party_of_another_name_is_one_more(first: str, label_party: str) -> None:
    model = VerticalClassifier({first: [0, 1, 2, 3]}, label_party, epochs=1, recipe="svfl").fit(X, Y)
    assert model.result_.label_party == label_party


def test_names_of_columns_are_kept_and_others_are_refused() -> None:
    frame = pd.DataFrame(X, columns=["age", "income", "visits", "basket"])
    model = VerticalClassifier({"bank": ["age", "income"], "shop": ["visits"]}, "shop", epochs=1).fit(frame, Y)
    assert model.feature_names_in_.tolist() == list(frame.columns)
    assert model.n_features_in_ == 4
    with pytest.raises(tw.errors.BadTable, match="Feature names unseen at fit time:\n- salary"):
        model.predict(frame.rename(columns={"income": "salary"}))


def test_a_weight_of_0_leaves_a_row_out_and_only_ratios_count() -> None:
    weights = np.where(np.arange(20) < 15, 2.0, 0.0)
    one = VerticalClassifier(TWO, epochs=2).fit(X, Y, sample_weight=weights).predict_proba(X)
    two = VerticalClassifier(TWO, epochs=2).fit(X[:15], Y[:15]).predict_proba(X)
    np.testing.assert_allclose(one, two, rtol=1e-5)
    skewed = VerticalClassifier(TWO, epochs=2).fit(X, Y, sample_weight=1 + 9.0 * Y).predict_proba(X)
    assert skewed[:, 1].mean() > VerticalClassifier(TWO, epochs=2).fit(X, Y).predict_proba(X)[:, 1].mean()
    values = VerticalRegressor(TWO, epochs=2).fit(X, Y, sample_weight=weights).predict(X)
    np.testing.assert_allclose(values, VerticalRegressor(TWO, epochs=2).fit(X[:15], Y[:15]).predict(X), rtol=1e-4)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (np.ones(19), r"sample_weight has shape \(19,\), expected \(20,\)"),
        (np.zeros(20), "sample_weight is zero for all rows"),
        (-np.ones(20), "sample_weight must be 0 or more"),
        (["heavy"] * 20, "sample_weight must hold one number per row"),
        (Y, "only 1 class; training needs at least two"),
    ],
)
def test_wrong_sample_weights_are_refused(weights: Any, said: str) -> None:
    with pytest.raises(tw.errors.BadInput, match=said):
        VerticalClassifier(TWO).fit(X, Y, sample_weight=weights)


def test_class_weights_are_row_weights_by_class() -> None:
    y = np.where(np.arange(20) < 15, "no", "yes")
    heavy = {"yes": 3.0}
    rows = np.where(y == "yes", 3.0, 1.0)
    settings: dict[str, Any] = {"parties": TWO, "epochs": 2}
    by_class = VerticalClassifier(**settings, class_weight=heavy).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(
        by_class, VerticalClassifier(**settings).fit(X, y, sample_weight=rows).predict_proba(X), rtol=1e-5
    )
    balanced = VerticalClassifier(**settings, class_weight="balanced").fit(X, y).predict_proba(X)
    np.testing.assert_allclose(balanced, by_class, rtol=1e-5)  # 15 : 5
    wrong: dict[str, Any] = {"'balanced'": "even", "did you mean 'yes'": {"yse": 1}, "not zero": {"no": 0, "yes": 0}}
    for said, given in wrong.items():
        with pytest.raises(tw.errors.BadParameter, match=said):
            VerticalClassifier(**settings, class_weight=given).fit(X, y)
    private = replace(tw.methods.thin(), defence=LabelDP(1.0))
    with pytest.raises(tw.errors.IncompatibleRecipe, match="uses the true labels"):
        VerticalClassifier(**settings, recipe=private, class_weight="balanced").fit(X, y)


def test_a_random_state_is_a_number_a_generator_or_none() -> None:
    def fit(random_state: Any) -> Any:
        return VerticalClassifier(TWO, epochs=1, random_state=random_state).fit(X, Y).predict_proba(X)

    assert (fit(np.random.RandomState(5)) == fit(np.random.RandomState(5))).all()
    assert (fit(np.int64(3)) == fit(3)).all()
    assert (fit(None) != fit(None)).any()
    for wrong in (-1, "seed"):
        with pytest.raises(tw.errors.BadParameter, match="random_state must be a number from 0"):
            fit(wrong)


def test_a_column_transformer_may_stand_in_front() -> None:
    frame = pd.DataFrame({"age": X[:, 0], "visits": X[:, 1], "town": ["York", "Bath"] * 10})
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["age", "visits"]), ("towns", OneHotEncoder(), ["town"])], sparse_threshold=0
    )
    model = VerticalClassifier({"bank": [0, 1], "shop": slice(2, None)}, "shop", epochs=5)
    pipeline = Pipeline([("columns", columns), ("model", model)])
    assert pipeline.fit(frame, Y).score(frame, Y) == 1
    weights = {"model__sample_weight": np.ones(20)}
    assert pipeline.fit(frame, Y, **weights).score(frame, Y) == 1
    with pytest.raises(tw.errors.BadTable, match="sparse_threshold=0"):
        pipeline.set_params(columns__sparse_threshold=1).fit(frame, Y)


class Frame:
    """A data frame of another library: columns by name, each of which numpy reads."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._held = columns
        self.columns = list(columns)
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name: str) -> Any:
        return tuple(self._held[name])


def test_data_frames_of_other_libraries_work() -> None:
    columns = {"age": X[:, 0], "visits": X[:, 1]}
    parties = {"bank": ["age"], "shop": ["visits"]}
    one = VerticalClassifier(parties, "shop", epochs=1).fit(Frame(columns), Y).predict_proba(Frame(columns))
    frame = pd.DataFrame(columns)
    assert (one == VerticalClassifier(parties, "shop", epochs=1).fit(frame, Y).predict_proba(frame)).all()


def test_an_estimator_is_shown_in_a_line() -> None:
    assert repr(VerticalClassifier()) == "VerticalClassifier()"
    model = VerticalRegressor(PARTIES, "hospital", recipe=tw.methods.celu(3, 3), epochs=5)
    columns = "{'hospital': 15 columns, 'laboratory': 15 columns}"
    assert repr(model) == f"VerticalRegressor(epochs=5, label_party='hospital', parties={columns}, recipe=celu)"


def test_validation_rows_are_a_fraction_of_each_class() -> None:
    codes = np.repeat([0, 1, 2], [60, 30, 1])
    chosen = choose_validation_rows(codes, 0.1, 0)
    assert np.bincount(codes[chosen], minlength=3).tolist() == [6, 3, 0]
    assert (chosen == choose_validation_rows(codes, 0.1, 0)).all()
    assert (chosen != choose_validation_rows(codes, 0.1, 1)).any()
    assert choose_validation_rows(np.zeros(2), 0.9, 0).sum() == 1
    with pytest.raises(tw.errors.BadParameter, match="validation_fraction must be between 0 and 1, got 1"):
        choose_validation_rows(codes, 1, 0)


@pytest.mark.parametrize("kind", ["mlp", "boosted_trees"])
@pytest.mark.parametrize("duplicate", [lambda model: pickle.loads(pickle.dumps(model)), deepcopy])  # noqa: S301
def test_a_fitted_estimator_is_pickled_and_copied(cancer: tuple[Any, Any], duplicate: Any, kind: str) -> None:
    X, y = cancer
    model = VerticalClassifier(PARTIES, label_party="laboratory", model=kind, epochs=1).fit(X.to_numpy(), y)
    other = duplicate(model)
    assert np.array_equal(other.predict_proba(X.to_numpy()), model.predict_proba(X.to_numpy()))
    assert other.result_.bytes == model.result_.bytes
    other.result_.ledger.add("hospital", "laboratory", Kind.EMBEDDING, 1)
    assert other.result_.bytes.up == model.result_.bytes.up + 1


# Boosted trees ------------------------------------------------------------------------------------------------------


def test_trees_are_a_word_away(cancer: tuple[Any, Any]) -> None:
    X, y = cancer
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    parties = {"hospital": list(X.columns[:15]), "laboratory": list(X.columns[15:])}
    model = VerticalClassifier(parties, "laboratory", model="boosted_trees").fit(X_train, y_train)
    assert model.score(X_test, y_test) > 0.93
    assert model.predict_proba(X_test).shape == (len(X_test), 2)
    assert model.result_.history[-1]["round"] <= 40
    assert list(model.feature_names_in_) == list(X.columns)
    (trees,) = {type(model.models_[name]) for name in parties}
    assert trees is tw.learners.BoostedTrees


def test_trees_take_gaps_text_dates_and_many_classes_and_forget_no_setting() -> None:
    rng = np.random.default_rng(0)
    rows = 300
    town, age = rng.choice(["Bern", "Basel", "Chur"], rows), rng.normal(40, 10, rows)
    seen = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D")
    y = np.where(town == "Bern", "south", np.where(age > 42, "old", "young"))
    X = pd.DataFrame({"town": town, "age": np.where(rng.random(rows) < 0.1, np.nan, age), "seen": seen})
    like = tw.learners.BoostedTrees(leaves=4, shrinkage=0.5)
    model = VerticalClassifier({"a": ["town", "seen"], "b": "age"}, model=like, epochs=12)
    assert clone(model).model.leaves == 4
    model.fit(X, y)
    assert model.score(X, y) > 0.9
    fitted = model.models_["a"]
    assert isinstance(fitted, tw.learners.BoostedTrees)
    assert (fitted.leaves, fitted.shrinkage, fitted.width, fitted.fields_vocab) == (4, 0.5, 3, (4,))
    assert not like.count, "the trees that were given are a model for others"
    strange = pd.DataFrame({"town": ["Rome", None], "age": [None, 1e40], "seen": [None, pd.Timestamp("2030-01-01")]})
    assert np.isfinite(model.predict_proba(strange)).all()


def test_trees_for_values_weights_and_covered_labels() -> None:
    X, y = load_diabetes(return_X_y=True)
    parties = {"a": slice(5), "b": slice(5, None)}
    model = VerticalRegressor(parties, "b", model="boosted_trees").fit(X, y, sample_weight=np.arange(len(y)) % 3)
    assert model.score(X, y) > 0.4
    assert model.models_["a"].curvature == 2.0
    covered = replace(tw.methods.boosting(), defence=LabelDP(3.0))
    binary = VerticalClassifier(parties, "b", model="boosted_trees", epochs=5)
    weighted = clone(binary).set_params(class_weight="balanced").fit(X, y > 200)
    safe = clone(binary).set_params(recipe=covered).fit(X, y > 200)
    assert [one.models_["a"].curvature for one in (binary.fit(X, y > 200), weighted, safe)] == ["derived", 0.25, 0.25]
    with pytest.raises(tw.errors.BadParameter, match="model must be 'mlp', 'boosted_trees', 'linear', a"):
        VerticalClassifier(model="tree").fit(X, y > 200)


# An exact regression ------------------------------------------------------------------------------------------------


def test_linear_is_scikit_learns_logistic_regression_of_all_columns(cancer: tuple[Any, Any]) -> None:
    X, y = cancer[0].iloc[:, :8], cancer[1]
    parties = {"hospital": list(X.columns[:5]), "laboratory": list(X.columns[5:])}
    model = VerticalClassifier(parties, "laboratory", model="linear").fit(X, y)
    joined = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=1000)).fit(X, y)
    found = {row.column: row.coefficient for table in model.coefficients_.values() for row in table.rows}
    assert list(found) == [*X.columns[:5], "intercept", *X.columns[5:]]
    np.testing.assert_allclose([found[name] for name in X.columns], joined[-1].coef_[0], atol=1e-4)
    np.testing.assert_allclose(model.predict_proba(X), joined.predict_proba(X), atol=1e-4)
    assert model.result_.history[-1]["round"] <= 6  # it ends by itself


def test_linear_for_values_is_in_their_units() -> None:
    X, y = load_diabetes(return_X_y=True)
    like = tw.learners.Linear(1, inference=True)
    model = VerticalRegressor({"a": slice(5), "b": slice(5, None)}, "b", model=like).fit(X, y)
    joined = LinearRegression().fit(X, y)
    rows: list[Any] = [row for table in model.coefficients_.values() for row in table.rows]
    np.testing.assert_allclose([row.in_units for row in rows if row.column != "intercept"], joined.coef_, rtol=1e-4)
    (intercept,) = [row.coefficient for row in rows if row.column == "intercept"]
    assert intercept == pytest.approx(y.mean())  # where all columns have their means
    assert all(row.error > 0 and row.low < row.coefficient < row.high for row in rows)
    np.testing.assert_allclose(model.predict(X), joined.predict(X), rtol=1e-5)


def test_linear_says_what_it_does_not_do(cancer: tuple[Any, Any]) -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(tw.errors.BadLabels, match=r"y has 3 classes; .*OneVsRestClassifier"):
        VerticalClassifier(model="linear").fit(X, y)
    assert OneVsRestClassifier(VerticalClassifier(model="linear")).fit(X, y).score(X, y) > 0.9
    with pytest.warns(ConvergenceWarning, match="use more epochs"):
        VerticalClassifier(model="linear", epochs=2).fit(*cancer)
    with pytest.raises(tw.errors.BadInput, match="no finite optimum"):
        VerticalClassifier(model=tw.learners.Linear(1)).fit(X[:100], y[:100])
