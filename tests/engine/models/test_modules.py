"""Every built-in model: its shape, its gradients, its weights, and its own equation."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import thinwire.models
from thinwire.base.errors import BadInput, BadParameter, BadTensor
from thinwire.engine.models import (
    CNN,
    LSTM,
    MLP,
    MODELS,
    MVCNN,
    BiasTop,
    BoostedTrees,
    DeepTower,
    InteractionTop,
    LinearBottom,
    LinearTop,
    MLPTop,
    ResNet18,
    ScaledCosine,
    ViewCNN,
    WideAndDeep,
)
from thinwire.engine.models.encoders import Bins, Pretrained, PrincipalDirections, RandomProjections, RawColumns
from thinwire.engine.models.regression import RegressionTop
from thinwire.engine.models.scorecard import Scorecard, ScorecardTop
from thinwire.engine.models.tree_nodes import TreeNodes, TreeText
from thinwire.engine.privacy.dp_bottom import require_separate_rows

ROWS = 5


def normal(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(1))


def mixed(fields: list[int], dense: int) -> Tensor:
    """Category ids in the first columns, dense ones after them."""
    rng = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, size, (ROWS, 1), generator=rng).float() for size in fields]
    return torch.cat([*ids, torch.randn(ROWS, dense, generator=rng)], dim=1)


def one_split(threshold: float = 0.2) -> BoostedTrees:
    """A tree for the second of two outputs: column 1 at most that much gives -1, otherwise 2."""
    model = BoostedTrees(2)
    split = {"split_feature": "1", "split_gain": "4", "threshold": str(threshold), "decision_type": "0"}
    split |= {"left_child": "-1", "right_child": "-2", "internal_count": "6", "leaf_count": "3 3"}
    trees = [TreeText({"leaf_value": "0"}), TreeText(split | {"leaf_value": "-1 2"})]
    model.add(TreeNodes.join([tree.flatten(column) for column, tree in enumerate(trees)]))
    return model


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    x: Tensor
    outputs: tuple[int, ...]


CASES = [
    Case("linear", lambda: LinearBottom(12, 4), normal(3, 4), (4,)),
    Case("linear", lambda: LinearBottom(12, 4, bias=False, activation="sigmoid"), normal(12), (4,)),
    Case("mlp", lambda: MLP(12, [8, 7], 4, "tanh", "relu"), normal(2, 6), (4,)),
    Case("mlp", lambda: MLP(12, [], 4, bias=False), normal(12), (4,)),
    Case("cnn", lambda: CNN(1, 6, (14, 14), out_activation="tanh"), normal(1, 14, 14), (6,)),
    Case("cnn", lambda: CNN(3, 6, [16, 9], channels=[4, 8]), normal(3, 16, 9), (6,)),
    Case("resnet18", lambda: ResNet18(3, 6, base_width=8), normal(3, 16, 16), (6,)),
    Case("mvcnn", lambda: MVCNN(6), normal(1, 32, 32), (6,)),
    Case("mvcnn", lambda: MVCNN(6, views=3, out_activation="tanh"), normal(3, 20, 24), (6,)),
    Case("mvcnn", lambda: MVCNN(6, views=2, channels=[4, 8]), normal(2, 20, 24), (6,)),
    Case("resnet18", lambda: ResNet18(3, 6, base_width=8, norm="group"), normal(3, 16, 16), (6,)),
    Case("view_cnn", lambda: ViewCNN(6, (32, 32)), normal(1, 32, 32), (6,)),
    Case(
        "view_cnn", lambda: ViewCNN(6, [20, 24], views=3, channels=(4, 8, 8), norm="group"), normal(3, 20, 24), (6,)
    ),
    Case("lstm", lambda: LSTM(7, 9, 6), normal(11, 7), (6,)),
    Case("deep_tower", lambda: DeepTower([10, 3], 4, 5, [8]), mixed([10, 3], 4), (256,)),
    Case("deep_tower", lambda: DeepTower(None, 4, 5, [8], width=6), mixed([], 4), (6,)),
    Case("deep_tower", lambda: DeepTower([10, 3], 0, 5, [], width=6), mixed([10, 3], 0), (6,)),
    Case("wide_and_deep", lambda: WideAndDeep([10, 3], 4, 5, [8], width=6), mixed([10, 3], 4), (7,)),
    Case("wide_and_deep", lambda: WideAndDeep([10, 3], 0, 5, [8], width=6), mixed([10, 3], 0), (7,)),
    Case("wide_and_deep", lambda: WideAndDeep([], 4, 5, [8], width=6), mixed([], 4), (7,)),
    Case("linear_top", lambda: LinearTop(12, 10), normal(12), (10,)),
    Case("linear_top", lambda: LinearTop(12, 1, bias=False), normal(12), (1,)),
    Case("mlp_top", lambda: MLPTop(12, [8, 8], 10), normal(12), (10,)),
    Case("scaled_cosine", ScaledCosine, normal(12), ()),
    Case("bias_top", lambda: BiasTop(12), normal(12), (12,)),
    Case("interaction_top", lambda: InteractionTop(12, 2, 1), normal(12), (2,)),
    Case("boosted_trees", one_split, normal(3), (2,)),
    Case("regression_top", RegressionTop, normal(1), (1,)),
    Case("scorecard", lambda: Scorecard(6, fields_vocab=[10, 3]), mixed([10, 3], 4), (1,)),
    Case("scorecard_top", ScorecardTop, normal(1), (1,)),
    Case("principal_directions", lambda: PrincipalDirections(12, 4), normal(3, 4), (4,)),
    Case("random_projections", lambda: RandomProjections(12, 4), normal(12), (4,)),
    Case("bins", lambda: Bins(6, fields_vocab=[10, 3]), mixed([10, 3], 4), (6,)),
    Case("raw_columns", RawColumns, normal(12), (12,)),
    Case("pretrained", lambda: Pretrained(MLP(12, [8], 4), width=4), normal(12), (4,)),
]
ENCODERS = ("pretrained", "principal_directions", "random_projections", "bins", "raw_columns")
EXACT = ("boosted_trees", "regression_top", "scorecard", "scorecard_top", *ENCODERS)  # without weights to be drawn
NETWORKS = [case for case in CASES if case.name not in EXACT]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def test_every_name_of_job_files_has_a_case() -> None:
    assert {case.name for case in CASES} == set(MODELS)
    assert all(type(case.build()) is MODELS[case.name] for case in CASES)
    assert all(hasattr(thinwire.models, name) for name in thinwire.models.__all__)


@every_case
def test_shape(case: Case) -> None:
    model = seeded(case.build)
    h: Tensor = model(case.x)
    assert h.shape == (ROWS, *case.outputs)
    assert h.dtype == torch.float32
    if hasattr(model, "width"):
        assert h.shape[1] == model.width


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
def test_finite_gradients(case: Case) -> None:
    model = seeded(case.build)
    h: Tensor = model(case.x)
    (h * torch.linspace(0.1, 1, h.numel()).view_as(h)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert any(parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter.grad is not None)


@every_case
def test_the_global_seed_fixes_the_weights(case: Case) -> None:
    first, again, other = (seeded(case.build, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    if case.name not in ("scaled_cosine", "bias_top", "interaction_top", *EXACT):
        assert any(not torch.equal(first[name], other[name]) for name in first)


@every_case
def test_weights_load_into_a_fresh_model(case: Case) -> None:
    model, copy = seeded(case.build, 0), seeded(case.build, 1)
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy(case.x), model(case.x))


@every_case
def test_one_row_alone_gives_what_it_gives_in_a_batch(case: Case) -> None:
    model = seeded(case.build).eval()
    torch.testing.assert_close(model(case.x[2:3]), model(case.x)[2:3])


def test_trees_are_their_leaves_and_a_bias_is_added() -> None:
    x = normal(3)
    x[0, 1] = torch.nan  # as many rows went left as right: left it is
    expected = torch.where(x[:, 1] > 0.2, 2.0, -1.0)
    assert torch.equal(one_split()(x), torch.stack([torch.zeros(ROWS), expected], dim=1))
    top = BiasTop(2)
    top.begin_at(torch.tensor([0.5, -1.0]))
    assert torch.equal(top(one_split()(x)), one_split()(x) + torch.tensor([0.5, -1.0]))
    with pytest.raises(BadTensor, match=r"BiasTop: the input has shape \(5, 3\), expected \[B, 2\]"):
        top(x)


def test_interactions_are_products_of_any_two_parties() -> None:
    one, two, three = (normal(6) for _ in range(3))  # two outputs, then two pairs for each of them
    top = InteractionTop(18, classes=2, pairs=2)
    top.begin_at(torch.tensor([0.5, -1.0]))
    pairs = one[:, 2:] * two[:, 2:] + one[:, 2:] * three[:, 2:] + two[:, 2:] * three[:, 2:]
    summed = (one + two + three)[:, :2] + torch.tensor([0.5, -1.0])
    expected = summed + torch.stack([pairs[:, :2].sum(dim=1), pairs[:, 2:].sum(dim=1)], dim=1)
    torch.testing.assert_close(top(torch.cat([one, two, three], dim=1)), expected)
    for features in (6, 15):
        with pytest.raises(BadParameter, match=f"of 6 numbers per party.*two parties or more, got {features}"):
            InteractionTop(features, classes=2, pairs=2)


def test_linear_is_its_equation() -> None:
    model, x = LinearBottom(12, 4, activation="sigmoid"), normal(3, 4)
    expected = torch.sigmoid(x.reshape(ROWS, 12) @ model.linear.weight.T + model.linear.bias)
    torch.testing.assert_close(model(x), expected)
    assert LinearBottom(12, 4, bias=False).linear.bias is None


def test_mlp_activates_between_its_layers_and_at_its_end() -> None:
    model = MLP(12, [8, 7], 4, "tanh", "sigmoid")
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == ["Linear", "Tanh", "Linear", "Tanh", "Linear", "Sigmoid"]
    assert [type(layer).__name__ for layer in MLPTop(12, [8], 4).layers][-1] == "Identity"


def test_a_top_model_drops_inputs_of_every_layer_while_it_trains() -> None:
    model, x = seeded(lambda: MLPTop(12, [8, 8], 10, dropout=0.5)), normal(12)
    assert not torch.equal(model(x), model(x))
    plain = seeded(lambda: MLPTop(12, [8, 8], 10))
    assert torch.equal(model.eval()(x), plain(x))
    assert sum(isinstance(part, nn.Dropout) for part in model.modules()) == 3


def test_resnet18_has_the_known_number_of_parameters() -> None:
    with torch.device("meta"):
        model = ResNet18(3, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    assert model.features(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 512, 4, 4)


def test_resnet18_computes_rows_by_themselves_where_it_normalises_by_groups() -> None:
    x = normal(3, 8, 8)
    require_separate_rows("party 'bank'", seeded(lambda: ResNet18(3, 6, 8, norm="group")), x)
    with pytest.raises(BadInput, match="normalises over the batch"):
        require_separate_rows("party 'bank'", seeded(lambda: ResNet18(3, 6, 8)), x)
    with pytest.raises(BadParameter, match="norm must be 'batch' or 'group', got 'layer'"):
        ResNet18(3, 6, 8, norm="layer")


def test_mvcnn_takes_the_maximum_over_its_views() -> None:
    model, x = seeded(lambda: MVCNN(6, views=3)), normal(3, 16, 16)
    assert isinstance(model, MVCNN)
    each = torch.stack([model.features(x[:, view : view + 1]).flatten(1) for view in range(3)])
    torch.testing.assert_close(model(x), model.linear(each.max(dim=0).values))
    torch.testing.assert_close(model(x[:, [2, 0, 1]]), model(x))


@pytest.mark.parametrize("build", [lambda: MVCNN(6, views=3), lambda: ViewCNN(6, (16, 16), views=3)])
def test_relu_after_the_maximum_gives_the_same_bits_as_before_it(build: Callable[[], nn.Module]) -> None:
    model, x = seeded(build), normal(3, 16, 16)
    literal = deepcopy(model)
    swaps = 0
    for inner in (part for part in literal.modules() if isinstance(part, nn.Sequential)):
        for place, (first, second) in enumerate(pairwise(list(inner.children()))):
            if isinstance(first, nn.MaxPool2d) and isinstance(second, nn.ReLU):
                inner[place], inner[place + 1] = second, first
                swaps += 1
    assert swaps >= 2
    ours, theirs = model(x), literal(x)
    assert torch.equal(ours, theirs)
    (ours.square().sum() + theirs.square().sum()).backward()
    for mine, other in zip(model.parameters(), literal.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad, other.grad)


def test_lstm_reads_the_last_hidden_state() -> None:
    model, x = seeded(lambda: LSTM(7, 9, 6)), normal(11, 7)
    assert isinstance(model, LSTM)
    states, _ = model.lstm(x)
    torch.testing.assert_close(model(x), model.linear(states[:, -1]))


def test_fields_do_not_share_vectors() -> None:
    tower = seeded(lambda: DeepTower([10, 3], 0, 5, [], width=6))
    assert isinstance(tower, DeepTower)
    assert tower.table is not None
    vectors = tower.table(torch.tensor([[9, 2], [0, 0]]))
    weight = tower.table.vectors.weight
    assert weight.shape == (13, 5)
    assert torch.equal(vectors[0], weight[[9, 12]])
    assert torch.equal(vectors[1], weight[[0, 10]])


def test_the_wide_part_is_linear_in_the_features() -> None:
    x = mixed([10, 3], 4)
    model = seeded(lambda: WideAndDeep([10, 3], 4, 5, [8], width=6))
    assert isinstance(model, WideAndDeep)
    assert model.wide_table is not None
    assert model.wide_dense is not None
    ids, weight = x[:, :2].long(), model.wide_table.vectors.weight[:, 0]
    wide = weight[ids[:, 0]] + weight[10 + ids[:, 1]] + model.wide_dense(x[:, 2:])[:, 0]
    torch.testing.assert_close(model(x)[:, -1], wide)
    torch.testing.assert_close(model(x)[:, :-1], DeepTower.forward(model, x))


def test_scaled_cosine_is_its_equation() -> None:
    left, right = normal(6), normal(12)[:, 6:]
    logits = ScaledCosine(scale=4.0)(torch.cat([left, right], dim=1))
    torch.testing.assert_close(logits, 4 * (left * right).sum(1) / left.norm(dim=1) / right.norm(dim=1))
    torch.testing.assert_close(ScaledCosine()(torch.cat([left, -3 * left], 1)), torch.full((ROWS,), -10.0))


def test_a_zero_half_has_cosine_0_and_a_quiet_derivative() -> None:
    x = normal(12)
    x[0, :6] = 0
    x[1, 6:] = 0
    x[2] = 0
    x.requires_grad_()
    logits = ScaledCosine()(x)
    assert torch.equal(logits[:3], torch.zeros(3))
    logits.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad[:3], torch.zeros(3, 12))
    assert x.grad[3:].abs().sum() > 0


WRONG: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: LinearBottom(0, 4), BadParameter, "LinearBottom: in_features must be an integer from 1 up"),
    (lambda: LinearBottom(4, True), BadParameter, "LinearBottom: width must be an integer.*got True"),
    (lambda: LinearBottom(4, 4, activation="gelu"), BadParameter, "LinearBottom: activation must be None or"),
    (lambda: LinearBottom(4, 4)(normal(5)), BadTensor, "so 5 features per row, not in_features=4"),
    (lambda: MLP(4, 8, 4), BadParameter, "MLP: hidden must be a list of integers, got 8"),  # type: ignore[arg-type]
    (lambda: MLP(4, [8, 0], 4), BadParameter, r"MLP: hidden\[1\] must be an integer from 1 up, got 0"),
    (lambda: MLP(4, [], 4, out_activation="x"), BadParameter, "MLP: out_activation must be None or one of"),
    (lambda: CNN(1, 4, (14, 3)), BadParameter, r"CNN: image_size\[1\] must be an integer from 4 up"),
    (lambda: CNN(1, 4, (14,)), BadParameter, "CNN: image_size and channels need two numbers each"),
    (lambda: CNN(1, 4, (14, 14))(normal(14, 14)), BadTensor, r"\(5, 14, 14\), expected \[B, 1, 14, 14\]"),
    (lambda: ResNet18(3, 4, 8)(normal(1, 8, 8)), BadTensor, r"ResNet18: .*expected \[B, 3, H, W\]"),
    (lambda: MVCNN(4, views=2)(normal(1, 8, 8)), BadTensor, r"MVCNN: .*expected \[B, 2, H, W\]"),
    (lambda: LSTM(4, 0, 4), BadParameter, "LSTM: hidden must be an integer from 1 up"),
    (lambda: LSTM(4, 4, 4)(normal(4)), BadTensor, r"LSTM: .*expected \[B, T, 4\]"),
    (lambda: DeepTower(None, 0, 4, []), BadParameter, "DeepTower: give fields_vocab, dense_features or both"),
    (lambda: DeepTower([1 << 25], 0, 4, []), BadParameter, "a float column is exact up to 16777216"),
    (lambda: DeepTower([9], 1, 4, [])(normal(3)), BadTensor, r"DeepTower: .*expected \[B, 2\]"),
    (
        lambda: DeepTower([9, 3], 0, 4, [])(torch.tensor([[8.0, 2.0], [1.0, 3.0]])),
        BadTensor,
        "category column 1 holds 3 in row 1 of the batch, expected 0 to 2",
    ),
    (lambda: WideAndDeep([9], 0, 4, [])(torch.tensor([[-1.0]])), BadTensor, "column 0 holds -1 in row 0"),
    (lambda: LinearTop(4, 0), BadParameter, "LinearTop: classes must be an integer from 1 up"),
    (lambda: LinearTop(4, 2)(normal(5)), BadTensor, "LinearTop: the input has shape"),
    (lambda: MLPTop(4, [0], 2), BadParameter, r"MLPTop: hidden\[0\] must be"),
    (lambda: ScaledCosine(0), BadParameter, "ScaledCosine: scale must be above 0, got 0"),
    (lambda: ScaledCosine()(normal(5)), BadTensor, "two embeddings of the same width"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_wrong_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
