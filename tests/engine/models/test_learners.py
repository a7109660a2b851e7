"""Boosted trees as a bottom model: the library's own boosting, a naive twin, unseen rows, bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.errors import BadInput, BadParameter, BadState, IncompatibleRecipe, NotFinite
from thinwire.engine.models import BiasTop, InteractionTop
from thinwire.engine.models.learners import BoostedTrees, TreeFitter
from thinwire.engine.models.losses import choose_curvature, poisson
from thinwire.training.dry_run import run_dry

ROWS, ROUNDS = 600, 12


class Bias(nn.Module):
    """Adds a number to a logit."""

    def __init__(self, start: float, learned: bool = False) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([start]), requires_grad=learned)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.bias


def make_table(rows: int = ROWS, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Six columns: a category of 40 codes, numbers with gaps, a column of one value; and labels that need them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 6)).astype(np.float32)
    x[:, 0] = rng.integers(0, 40, rows)
    x[:, 5] = 3.0
    noise = 0.5 * rng.standard_normal(rows)
    y = (x[:, 1] * x[:, 2] + x[:, 3] + 1.5 * (x[:, 0] % 3 == 1) + noise > 0.4).astype(np.int64)
    x[:, 1:5][rng.random((rows, 4)) < 0.05] = np.nan
    return x, y


def make_job(parties: dict[str, Any], y: Any, top: nn.Module, recipe: tw.Recipe, **settings: Any) -> tw.Job:
    """Parties by name: (features, trees); that of the label party is called shop."""
    own = parties.pop("shop", None)
    features, bottom = own or (None, None)
    label = tw.LabelParty(
        "shop", y, top, features=features, bottom=bottom, loss=settings.pop("loss", tw.losses.binary_cross_entropy)
    )
    held = [tw.FeatureParty(name, *part) for name, part in parties.items()]
    return tw.Job(held, label, recipe, epochs=settings.pop("epochs", ROUNDS), metrics=["auc"], **settings)


def base_rate(y: NDArray[np.int64]) -> float:
    return float(np.log(y.mean() / (1 - y.mean())))


def sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-z))


# What it is ----------------------------------------------------------------------------------------------------


def test_one_party_with_all_columns_is_the_library_s_own_boosting() -> None:
    x, y = make_table()
    trees = BoostedTrees(leaves=8, shrinkage=0.2, min_rows=10, l2=0.5, least_curvature=0.0, fields_vocab=(40,))
    top = Bias(base_rate(y))
    tw.train(make_job({"bank": (x, trees)}, y, top, tw.methods.svfl()), callbacks=[])
    settings = {
        "objective": "binary", "learning_rate": 0.2, "num_leaves": 8, "min_data_in_leaf": 10, "lambda_l2": 0.5,
        "deterministic": True, "force_col_wise": True, "feature_pre_filter": False, "num_threads": 1, "verbosity": -1,
    }  # fmt: skip
    theirs = lightgbm.train(settings, lightgbm.Dataset(x, y, categorical_feature=[0]), ROUNDS)
    ours = sigmoid(top(trees(torch.from_numpy(x))).double().detach().numpy()[:, 0])
    assert np.abs(ours - theirs.predict(x)).max() < 1e-5
    assert trees.count == ROUNDS


def fit_naively(table: NDArray[np.float32], gradient: NDArray[np.float64], curvature: NDArray[np.float64]) -> Any:
    """One tree of the library's, by its public training loop; its outputs of the table."""
    settings = {
        "objective": lambda _, __: (gradient.astype(np.float32), curvature.astype(np.float32)),
        "learning_rate": 0.3, "num_leaves": 6, "min_data_in_leaf": 20, "lambda_l2": 1.0, "deterministic": True,
        "force_col_wise": True, "feature_pre_filter": False, "num_threads": 1, "verbosity": -1,
    }  # fmt: skip
    return lightgbm.train(settings, lightgbm.Dataset(table, np.zeros(len(table))), 1).predict(table, raw_score=True)


def test_two_parties_and_the_label_party_s_own_columns_equal_a_naive_twin() -> None:
    x, y = make_table()
    tables = {"bank": x[:, 1:3], "telecom": x[:, 3:4], "shop": x[:, 4:6]}
    trees = {name: BoostedTrees(leaves=6, shrinkage=0.3, l2=1.0) for name in tables}
    top = Bias(base_rate(y))
    parties = {name: (table, trees[name]) for name, table in tables.items()}
    tw.train(make_job(parties, y, top, tw.methods.svfl(), epochs=6), callbacks=[])
    outputs = {name: np.zeros(ROWS) for name in tables}
    for _ in range(6):
        gradient = sigmoid(base_rate(y) + np.sum(list(outputs.values()), axis=0)) - y
        curvature = np.maximum(np.abs(gradient) * (1 - np.abs(gradient)), 0.05)
        added = {name: fit_naively(table, gradient, curvature) for name, table in tables.items()}
        outputs = {name: outputs[name] + added[name] for name in tables}
    for name, table in tables.items():
        assert np.abs(trees[name](torch.from_numpy(table)).numpy()[:, 0] - outputs[name]).max() < 1e-5


@pytest.mark.parametrize("trees", [1, 3])
def test_rows_are_scored_as_they_were_in_training(trees: int) -> None:
    """Gaps, categories and all: the arrays and the library agree on every training row, to the bit."""
    x, y = make_table(2000)
    model = BoostedTrees(leaves=31, trees=trees, fields_vocab=(40,))
    fitter, outputs = TreeFitter(model, torch.from_numpy(x)), np.zeros((2000, 1))
    for _ in range(4):
        gradient = (sigmoid(outputs) - y[:, None]).astype(np.float32)
        nodes, added = fitter.fit(gradient, model.derive_curvature(gradient))
        model.add(nodes)
        outputs = outputs + added
    assert np.array_equal(model(torch.from_numpy(x)).numpy(), outputs.astype(np.float32))
    assert (model.nodes.categories >= 0).any()
    alone = torch.cat([model(torch.from_numpy(x[row : row + 1])) for row in range(50)])
    assert np.array_equal(alone.numpy(), outputs[:50].astype(np.float32)), "a row's score depends on its company"


def test_sparse_columns_that_meet_in_a_row_are_scored_as_they_were_fitted() -> None:
    """LightGBM would bundle columns that are hardly ever filled together, and lose a value where they are."""
    rng = np.random.default_rng(1)
    x = np.zeros((40_000, 3), np.float32)
    x[np.arange(40_000), rng.integers(0, 3, 40_000)] = rng.integers(1, 9, 40_000)
    x[:2] = [3.0, 7.0, 2.0]
    y = ((x[:, 0] > 4) | (x[:, 2] > 6)).astype(np.float32)[:, None]
    model = BoostedTrees(leaves=8)
    nodes, outputs = TreeFitter(model, torch.from_numpy(x)).fit(0.5 - y, np.full_like(y, 0.25))
    model.add(nodes)
    assert np.array_equal(model.evaluate(x.astype(np.float64)), outputs)


def test_large_codes_are_found_again() -> None:
    rng = np.random.default_rng(2)
    x = rng.choice([10, 500, 70_000, 80_000], 400).astype(np.float32)[:, None]
    y = np.isin(x, [500, 80_000]).astype(np.int64)[:, 0]
    trees = BoostedTrees(leaves=4, fields_vocab=(90_000,), l2=0.0, shrinkage=0.5)
    tw.train(make_job({"bank": (x, trees)}, y, Bias(0.0), tw.methods.svfl(), epochs=3), callbacks=[])
    scores = trees(torch.from_numpy(x)).numpy()[:, 0]
    assert scores[y == 1].min() > scores[y == 0].max()


@pytest.mark.parametrize("weight", [1.0, 30.0])
def test_weights_do_not_lengthen_a_step(weight: float) -> None:
    x, y = make_table()
    label = tw.LabelParty(
        "shop", y, Bias(0.0), loss=tw.losses.binary_cross_entropy, sample_weight=np.full(ROWS, weight)
    )
    job = tw.Job([tw.FeatureParty("bank", x, BoostedTrees())], label, tw.methods.svfl(), epochs=8, metrics=["auc"])
    losses = [one["train"]["loss"] / weight for one in tw.train(job, callbacks=[]).history]
    assert losses == sorted(losses, reverse=True)


def test_many_parties_do_not_overshoot() -> None:
    rng = np.random.default_rng(3)
    value = rng.standard_normal(400).astype(np.float32)
    tables = {f"p{k}": (value + 0.3 * rng.standard_normal(400))[:, None] for k in range(20)}
    parties = {name: (table, BoostedTrees(curvature=2.0)) for name, table in tables.items()}
    job = make_job(parties, value, nn.Identity(), tw.methods.svfl(), loss=tw.losses.squared_error)
    job.metrics = ["r2"]
    assert tw.train(job, callbacks=[]).history[-1]["train"]["loss"] < 0.2


def test_several_classes_and_values_are_learned() -> None:
    x, _ = make_table()
    clean = np.nan_to_num(x)
    classes = np.digitize(clean[:, 3], [-0.5, 0.5])
    trees = BoostedTrees(3, leaves=6, shrinkage=0.3)
    job = make_job({"bank": (x, trees)}, classes, nn.Identity(), tw.methods.boosting(), loss=tw.losses.cross_entropy)
    job.metrics = ["accuracy"]
    tw.train(job, callbacks=[])
    assert float((trees(torch.from_numpy(x)).argmax(1).numpy() == classes).mean()) > 0.9
    value = (2 * clean[:, 3] + clean[:, 2]).astype(np.float32)
    trees = BoostedTrees(leaves=6, curvature=2.0, shrinkage=0.3)
    job = make_job({"bank": (x, trees)}, value, nn.Identity(), tw.methods.boosting(), loss=tw.losses.squared_error)
    job.metrics = ["r2"]
    tw.train(job, callbacks=[])
    residual = trees(torch.from_numpy(x)).numpy()[:, 0] - value
    assert residual.var() < 0.2 * value.var()


@pytest.mark.parametrize(("pairs", "least", "most"), [(0, 0.0, 0.6), (2, 0.95, 1.0)], ids=["a sum", "products"])
def test_products_say_what_no_party_s_columns_say_alone(pairs: int, least: float, most: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 2000, 2)).astype(np.float32)
    y = (x[0, :, 0] * x[1, :, 0] > 0).astype(np.int64)
    trees = [BoostedTrees(pairs=pairs, min_rows=100) for _ in x]
    top = InteractionTop(2 + 2 * pairs, 1, pairs) if pairs else BiasTop(1)
    held, own = ((table[:1000], one) for table, one in zip(x, trees, strict=True))
    job = make_job({"bank": held, "shop": own}, y[:1000], top, tw.methods.boosting(), epochs=10)
    job.label_party.fusion = "concat" if pairs else "sum"
    tw.train(job, callbacks=[])
    with torch.no_grad():
        h = [one(torch.from_numpy(table[1000:])) for table, one in zip(x, trees, strict=True)]
        said = top(torch.cat(h, dim=1) if pairs else h[0] + h[1])[:, 0] > 0
    assert least <= (said.numpy() == y[1000:]).mean() <= most


def test_products_begin_at_coins_that_follow_from_the_seed() -> None:
    model, made = BoostedTrees(pairs=1), []
    for seed in (0, 0, 1):
        gradient, curvature = np.zeros((400, 2), np.float32), np.zeros((400, 2), np.float32)
        model.begin_products(gradient, curvature, seed)
        assert not gradient[:, 0].any()
        assert set(gradient[:, 1]) == {-1.0, 1.0}
        made.append(gradient)
    assert np.array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])


def test_counts_are_learned_by_the_mean_square_of_their_derivatives() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, 3)).astype(np.float32)
    rate = torch.from_numpy(3 + 0.5 * x[:, 0] * (x[:, 1] > 0) + 0.25 * x[:, 2])
    y = torch.from_numpy(rng.poisson(rate.exp().numpy())).float()
    curvature, start = choose_curvature(poisson, True), float(y.mean().log())
    assert curvature == "mean_square"
    bank, shop = (BoostedTrees(curvature=curvature) for _ in range(2))
    parties = {"bank": (x[:, :2], bank), "shop": (x[:, 2:], shop)}
    job = make_job(parties, y, Bias(start), tw.methods.svfl(), loss=poisson, epochs=40)
    loss = tw.train(replace(job, metrics=()), callbacks=[]).history[-1]["train"]["loss"]
    best, first = poisson(rate, y).mean(), poisson(torch.full_like(rate, start), y).mean()
    assert loss < best + 0.1 * (first - best)


def test_labels_of_a_tiny_scale_are_refused() -> None:
    x, _ = make_table()
    for scale, says in ((1e-7, "labels: a standard deviation of .* is too small for boosted trees"), (1.0, None)):
        y = scale * torch.randn(len(x), generator=torch.Generator().manual_seed(0))
        trees = BoostedTrees(curvature=2.0)
        job = make_job({"bank": (x, trees)}, y, Bias(0.0), tw.methods.boosting(), loss=tw.losses.squared_error)
        if says is None:
            replace(job, metrics=()).check()
            continue
        with pytest.raises(BadInput, match=says):
            job.check()


def test_leaf_numbers_say_what_exact_outputs_say() -> None:
    """With the same derivatives the label party trains on the same sums, whichever way they travel."""
    x, y = make_table()
    exact, coded = (BoostedTrees(leaves=16) for _ in range(2))
    down = tw.methods.svfl().downlink
    plain, leaves = tw.methods.svfl(), tw.methods.boosting()
    results = [
        tw.train(make_job({"bank": (x, trees)}, y, Bias(0.0), recipe), callbacks=[])
        for trees, recipe in ((exact, plain), (coded, replace_downlink(leaves, down)))
    ]
    assert all(torch.equal(one, coded.state_dict()[name]) for name, one in exact.state_dict().items())
    assert results[1].bytes.up < results[0].bytes.up / 5


def test_a_dry_run_counts_an_exchange_in_which_there_are_trees() -> None:
    x, y = make_table()
    job = make_job({"bank": (x, BoostedTrees())}, y, Bias(0.0), tw.methods.boosting())
    forecast = run_dry(job).all_rounds_bytes
    assert 0.5 < forecast / tw.train(job, callbacks=[]).bytes.total < 2


def replace_downlink(recipe: tw.Recipe, downlink: Any) -> tw.Recipe:
    from dataclasses import replace

    return replace(recipe, downlink=downlink)


# Saving and resuming ---------------------------------------------------------------------------------------------


def test_a_stopped_run_resumes_to_the_bit(tmp_path: Path) -> None:
    x, y = make_table()
    whole, parts = (
        {"bank": (x[:, :3], BoostedTrees(leaves=8, fields_vocab=(40,))), "shop": (x[:, 3:], BoostedTrees(leaves=8))}
        for _ in range(2)
    )
    expected = tw.train(make_job(dict(whole), y, Bias(0.0, True), tw.methods.boosting(), eval_every=1), callbacks=[])

    def begin(top: nn.Module, fresh: dict[str, Any]) -> tw.Job:
        return make_job(fresh, y, top, tw.methods.boosting(), eval_every=1)

    tw.train(begin(Bias(0.0, True), dict(parts)), callbacks=[lambda row: row["round"] == 5], out=tmp_path / "run")
    again = {
        name: (table, BoostedTrees(leaves=8, fields_vocab=trees.fields_vocab))
        for name, (table, trees) in parts.items()
    }
    resumed = tw.train(begin(Bias(0.0, True), dict(again)), callbacks=[], out=tmp_path / "run", resume=True)
    assert resumed.history[-1]["train"] == expected.history[-1]["train"]
    for name, (_, trees) in whole.items():
        assert all(torch.equal(one, again[name][1].state_dict()[key]) for key, one in trees.state_dict().items())


def fitted() -> BoostedTrees:
    x, y = make_table()
    trees = BoostedTrees(leaves=4, fields_vocab=(40,))
    tw.train(make_job({"bank": (x, trees)}, y, Bias(0.0), tw.methods.svfl(), epochs=2), callbacks=[])
    return trees


DAMAGE = {
    "a child before its parent": lambda held: held["child"].__setitem__((0, 0), 0),
    "a child that is not there": lambda held: held["child"].__setitem__((0, 1), 10_000),
    "a root that is not there": lambda held: held["root"].__setitem__(0, -1),
    "a column below 0": lambda held: held["feature"].__setitem__(0, -2),
    "a set that is not there": lambda held: held["categories"].__setitem__(0, 10_000),
    "a set of endless length": lambda held: held["sets"].__setitem__(0, 1 << 40),
    "a set whose length is no number": lambda held: held["sets"].__setitem__(0, (1 << 63) - 1),
    "a split without a threshold": lambda held: held["threshold"].__setitem__(0, float("nan")),
    "a node without children": lambda held: held.__setitem__("child", held["child"][:-1]),
    "three children": lambda held: held.__setitem__("child", held["child"][:, [0, 1, 1]]),
    "a leaf without a value": lambda held: held["value"].__setitem__(-1, float("nan")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_trees_are_refused(damage: str) -> None:
    held = {name: tensor.clone() for name, tensor in fitted().state_dict().items()}
    held["categories"][0] = 0  # there is a set, whatever the trees split on
    held["sets"] = torch.tensor([1, 5]) if not len(held["sets"]) else held["sets"]
    BoostedTrees(fields_vocab=(40,)).load_state_dict(held)
    DAMAGE[damage](held)
    with pytest.raises(BadState, match="damaged"):
        BoostedTrees(fields_vocab=(40,)).load_state_dict(held)


def test_trees_of_more_outputs_are_refused() -> None:
    held = {name: tensor.clone() for name, tensor in fitted().state_dict().items()}
    held["output"][0] = 2
    with pytest.raises(BadState, match="3 outputs per row, this model has 1"):
        BoostedTrees().load_state_dict(held)


# Rows that training never saw, and bad input ---------------------------------------------------------------------


def test_unseen_categories_and_unseen_gaps_have_a_stated_place() -> None:
    """A category that training never saw is in no set; a gap where training had none follows most rows."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 5, 400), rng.standard_normal(400)], axis=1).astype(np.float32)
    y = ((x[:, 0] == 1) | (x[:, 1] > 1)).astype(np.int64)
    trees = BoostedTrees(leaves=4, fields_vocab=(5,))
    tw.train(make_job({"bank": (x, trees)}, y, Bias(0.0), tw.methods.svfl(), epochs=3), callbacks=[])
    strange = torch.tensor(
        [[77.0, 0.0], [4.0, 0.0], [-1.0, 0.0], [float("nan"), 0.0], [0.0, float("nan")], [0.0, 0.0]]
    )
    scores = trees(strange)[:, 0]
    assert bool(torch.isfinite(scores).all())
    assert scores[0] == scores[2] == scores[3]
    assert scores[4] == scores[5], "most rows lie below 1"


def test_a_split_between_gaps_and_all_numbers_is_saved_and_loaded() -> None:
    """No number is above its threshold, which is infinite."""
    x = torch.arange(200.0)[:, None]
    x[::2] = float("nan")
    gradient = np.where(np.arange(200) % 2 == 0, 0.5, -0.5).astype(np.float32)[:, None]
    trees, again = BoostedTrees(leaves=2), BoostedTrees(leaves=2)
    trees.add(TreeFitter(trees, x).fit(gradient, np.full_like(gradient, 0.25))[0])
    held = {name: tensor.clone() for name, tensor in trees.state_dict().items()}
    held["threshold"][0], held["gap_left"][0] = float("inf"), False  # as the library writes it too
    held["child"][0] = trees.state_dict()["child"][0].flip(0)
    again.load_state_dict(held)
    assert torch.equal(again(x), trees(x))
    assert len(trees(x).unique()) == 2


def test_a_table_that_separates_nothing_adds_no_tree() -> None:
    _, y = make_table()
    trees = BoostedTrees()
    result = tw.train(
        make_job({"bank": (np.ones((ROWS, 2)), trees)}, y, Bias(0.0), tw.methods.boosting()), callbacks=[]
    )
    assert trees.count == 0
    assert result.history[-1]["train"]["loss"] == pytest.approx(np.log(2), abs=1e-3)


def test_gaps_are_for_trees_alone_and_infinity_for_nobody() -> None:
    x, _ = make_table()
    with pytest.raises(NotFinite, match="bank"):
        tw.FeatureParty("bank", x, nn.Linear(6, 1))
    x[3, 2] = np.inf
    with pytest.raises(NotFinite, match="bank"):
        tw.FeatureParty("bank", x, BoostedTrees())


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"batch_size": 64}, BadInput, "batch_size does not apply to boosted trees"),
        ({"training": tw.privacy.Frozen()}, IncompatibleRecipe, "has no trees"),
        ({"recipe": tw.methods.celu(2, 3)}, IncompatibleRecipe, "fresh gradient"),
        ({"recipe": tw.methods.efvfl(tw.compress.TopK(0.5))}, IncompatibleRecipe, "none are sent"),
        ({"training": tw.privacy.DPBottom(1.0, 1.0)}, IncompatibleRecipe, "DPBottom"),
    ],
)
def test_what_trees_cannot_follow_is_refused(settings: dict[str, Any], error: type[Exception], says: str) -> None:
    x, y = make_table()
    recipe = settings.pop("recipe", tw.methods.svfl())
    with pytest.raises(error, match=says):
        make_job({"bank": (x, BoostedTrees())}, y, Bias(0.0), recipe, **settings).check()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", 0),
        ("leaves", 1),
        ("shrinkage", 0.0),
        ("trees", 1.5),
        ("curvature", "guess"),
        ("l2", -1),
        ("bins", True),
    ],
)
def test_bad_settings_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(BadParameter, match=field):
        BoostedTrees(**{field: value})


def test_a_columns_gain_is_the_librarys() -> None:
    x, y = make_table()
    trees = BoostedTrees(2, trees=3, leaves=8, fields_vocab=(40,), l2=1.0)
    fitter = TreeFitter(trees, torch.from_numpy(x))
    gradient = np.stack([0.5 - y, y - 0.5], axis=1).astype(np.float32)
    trees.add(fitter.fit(gradient, np.full_like(gradient, 0.25))[0])
    gains = fitter._booster.feature_importance("gain")
    assert trees.find_gains() == pytest.approx({place: gain for place, gain in enumerate(gains) if gain}, rel=1e-4)
    assert 5 not in trees.find_gains()
