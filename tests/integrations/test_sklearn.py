"""The estimators among scikit-learn's own tools, on real data."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import thinwire as tw
from thinwire import VerticalClassifier, VerticalRegressor
from thinwire.base.types import Kind

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
    assert twin.set_params(width=4, seed=7).get_params()["seed"] == 7
    assert model.width == 8


def test_the_same_seed_gives_the_same_model_and_torch_keeps_its_generator(cancer: tuple[Any, Any]) -> None:
    import torch

    X, y = cancer[0].to_numpy(), cancer[1]
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    models = [VerticalClassifier(PARTIES, epochs=1, seed=seed).fit(X, y) for seed in (0, 0, 1)]
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
        ({}, X, Y, "whose columns are whose"),
        ({"bank": [0], "shop": [4]}, X, Y, "party 'shop': X is an array of 4 columns, so columns are numbers from 0"),
        ({"bank": ["age"]}, X, Y, "party 'bank': X is an array of 4 columns"),
        ({"bank": "age"}, pd.DataFrame(X), Y, "party 'bank': X has no column 'age', it has 0, 1, 2, 3"),
        (
            {"bank": "Age"},
            pd.DataFrame({"age": X[:, 0], "job": X[:, 1]}),
            Y,
            "X has no column 'Age', it has 'age', 'job'; did you mean 'age'?",
        ),
        ({"bank": None}, X, Y, "columns of None are for X by party"),
        (TWO, {"bank": X}, Y, "X has tables of bank, and the parties are bank, shop"),
        ({"bank": None, "shop": None}, {"bank": X, "shop": X[1:]}, Y, "same rows in the same order: bank has 20"),
        (TWO, X, Y[1:], "X has 20 rows and y 19"),
        (TWO, X, np.zeros(20), "all 20 labels are"),
        (TWO, X, X[:, 0], "use VerticalRegressor"),
        (TWO, X, X, "y has shape"),
        ({"bank": [0, 1], "shop": []}, X, Y, "party 'shop' has no columns"),
        ({"labels": [0]}, X, Y, "one feature party at least"),
    ],
)
def test_wrong_input_is_refused_by_name(parties: Any, x: Any, y: Any, said: str) -> None:
    with pytest.raises(tw.errors.BadInput, match=said):
        VerticalClassifier(parties).fit(x, y)


def test_wrong_recipes_and_unfitted_models_are_refused() -> None:
    with pytest.raises(tw.errors.BadParameter, match="did you mean 'thin'"):
        VerticalClassifier(TWO, recipe="thn").fit(X, Y)
    with pytest.raises(tw.errors.BadParameter, match=r"needs arguments: give a recipe, such as tw.methods.celu"):
        VerticalClassifier(TWO, recipe="celu").fit(X, Y)
    with pytest.raises(NotFittedError):
        VerticalClassifier(TWO).predict(X)
    model = VerticalRegressor(TWO, epochs=1).fit(X, X[:, 0])
    with pytest.raises(tw.errors.BadInput, match="party 'shop': X is an array of 3 columns"):
        model.predict(X[:, :3])


@pytest.mark.parametrize("duplicate", [lambda model: pickle.loads(pickle.dumps(model)), deepcopy])  # noqa: S301
def test_a_fitted_estimator_is_pickled_and_copied(cancer: tuple[Any, Any], duplicate: Any) -> None:
    X, y = cancer
    model = VerticalClassifier(PARTIES, label_party="laboratory", epochs=1).fit(X.to_numpy(), y)
    other = duplicate(model)
    assert np.array_equal(other.predict_proba(X.to_numpy()), model.predict_proba(X.to_numpy()))
    assert other.result_.bytes == model.result_.bytes
    other.result_.ledger.add("hospital", "laboratory", Kind.EMBEDDING, 1)
    assert other.result_.bytes.up == model.result_.bytes.up + 1
