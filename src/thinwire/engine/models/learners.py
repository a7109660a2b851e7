"""Bottom models that are not networks: they follow a derivative in their own way, and score rows like any module.

`BoostedTrees` is gradient boosting in function space (Friedman, 2001): the embedding of a row is the sum of its
trees' outputs, and a derivative is answered by a tree that is fitted to it (LightGBM; Ke et al., 2017).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from thinwire.base.errors import BadInput, BadParameter, BadState
from thinwire.engine.compress.parameters import require_number
from thinwire.engine.compress.randomness import Keystream
from thinwire.engine.models.tree_nodes import (
    LEAF_STEP,
    Doubles,
    TreeNodes,
    find_nearest,
    have_ties,
    read_trees,
    round_leaves,
)

LEAST_DEVIATION = 64 * LEAF_STEP  # of labels: below it, leaves are too coarse for what is left to learn
_WEIGHTED = 2.0  # a derivative of a logistic loss that is larger than this has a weight
_COINS_BEND = 0.25  # the largest curvature of a logistic loss: outputs begin small
_CELLS = 1 << 20  # rows times trees that are looked up at once
_MOST_CODES = 1 << 31  # of a category

Floats = NDArray[np.float32]

__all__ = ["BoostedTrees"]


class BoostedTrees(nn.Module):
    """Gradient-boosted trees as a bottom model: every exchange adds trees that are fitted to its derivative.

    `width` is the size of a row's embedding: one for a single logit or a value, one per class otherwise, and
    under an `InteractionTop` behind them `pairs` for each. `curvature` is "derived", |g| (1 - |g|) of a row's
    derivative g, which is right for logistic and softmax losses where outputs are summed and the top model adds a
    bias; "mean_square" of all rows' derivatives, its mean for any likelihood; or one number. The first columns,
    as many as `fields_vocab` has entries, hold codes of categories; missing values are NaN.

    Args:
        width: outputs a row; 1 and its pairs unless given.
        pairs: further outputs for each, multiplied with other parties' under an `InteractionTop`.
        trees: added by each exchange.
        leaves: of a tree, at most.
        shrinkage: how far each tree goes.
        min_rows: of a leaf, at least.
        l2: penalty on leaf values.
        bins: thresholds that are tried for a column.
        curvature: "derived", "mean_square" or a number.
        least_curvature: where the curvature is cut off.
        fields_vocab: number of codes of each column of categories.
        threads: of LightGBM; the trees do not depend on it.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> tw.learners.BoostedTrees(leaves=8, shrinkage=0.1).width
        1
    """

    accepts_gaps: ClassVar[bool] = True

    def __init__(
        self,
        width: int | None = None,
        *,
        pairs: int = 0,
        trees: int = 1,
        leaves: int = 31,
        shrinkage: float = 0.15,
        min_rows: int = 20,
        l2: float = 10.0,
        bins: int = 255,
        curvature: float | str = "derived",
        least_curvature: float = 0.05,
        fields_vocab: Sequence[int] = (),
        threads: int = 1,
    ) -> None:
        super().__init__()
        self.pairs = _whole("pairs", pairs, 0, 1000)
        self.width = _whole("width", 1 + self.pairs if width is None else width, 1, 10_000)
        self.outputs, odd = divmod(self.width, 1 + self.pairs)  # that are summed
        if odd:
            raise BadParameter(f"BoostedTrees: width must be a multiple of 1 + pairs = {1 + pairs}, got {width}")
        self.trees = _whole("trees", trees, 1, 1000)
        self.leaves = _whole("leaves", leaves, 2, 131_072)
        self.shrinkage = require_number("BoostedTrees", "shrinkage", shrinkage, above=0, at_most=1)
        self.min_rows = _whole("min_rows", min_rows, 1, 2**31 - 1)
        self.l2 = require_number("BoostedTrees", "l2", l2, at_least=0)
        self.bins = _whole("bins", bins, 2, 65_535)
        self.curvature = _curvature(curvature)
        self.least_curvature = require_number("BoostedTrees", "least_curvature", least_curvature, at_least=0)
        self.fields_vocab = _vocabularies(fields_vocab)
        self.threads = _whole("threads", threads, 1, 256)
        for one in fields(TreeNodes):
            self.register_buffer(one.name, None)
        self._set_nodes(TreeNodes.empty(), 0)

    @property
    def nodes(self) -> TreeNodes:
        return self._nodes

    @property
    def count(self) -> int:
        """Of all trees so far."""
        return len(self._nodes.root)

    def add(self, nodes: TreeNodes) -> None:
        self._set_nodes(self._nodes.append(nodes), max(self._depth, nodes.find_depth()))

    def replace(self, nodes: TreeNodes) -> None:
        """These trees in place of those that are there."""
        self._set_nodes(nodes, nodes.find_depth())

    def _set_nodes(self, nodes: TreeNodes, depth: int) -> None:
        self._nodes = nodes
        self._depth = depth
        for one in fields(nodes):
            array = torch.from_numpy(np.ascontiguousarray(getattr(nodes, one.name)))
            # numpy's empty arrays have strides of 0, which torch cannot view as bytes.
            self._buffers[one.name] = array if len(array) else array.new_empty(array.shape)

    def forward(self, x: Tensor) -> Tensor:
        """[N, columns] -> [N, width], row by row."""
        table = x.detach().cpu().double().numpy()
        most = int(self._nodes.feature.max(initial=-1))
        if x.dim() != 2 or x.shape[1] <= most:
            raise ValueError(f"the trees look at column {most}, the rows have shape {list(x.shape[1:])}")
        return torch.from_numpy(self.evaluate(table).astype(np.float32)).to(x.device)

    def evaluate(self, table: Doubles) -> Doubles:
        """The sums of all trees before they are rounded to float32."""
        found = np.zeros((len(table), self.width))
        for column in range(self.width):
            roots = self._nodes.root[self._nodes.output == column]
            size = max(16, _CELLS // max(1, len(roots)))
            for start in range(0, len(table) if len(roots) else 0, size):
                rows = slice(start, start + size)
                found[rows, column] = self._nodes.evaluate(table[rows], roots, self._depth)
        return found

    def find_curvature(self, gradient: Floats) -> Floats:
        """d2L/dh2 of each row and output; in products it scales with the other party's, and only a mean is known."""
        summed = gradient[:, : self.outputs]
        summed = mean_square(summed) if self.curvature == "mean_square" else self.derive_curvature(summed)
        # All pairs of an output, at both parties, follow the same interaction: together they would go past it.
        paired = np.float32(2 * self.pairs) * mean_square(gradient[:, self.outputs :])
        return np.concatenate([summed, paired], axis=1) if self.pairs else summed

    def begin_products(self, gradient: Floats, curvature: Floats, seed: int) -> None:
        """Coins for the first trees of outputs in products, in place: from 0 no derivative leads away."""
        if self.count or not self.pairs:
            return
        coins = Keystream.from_seed(seed).words(gradient[:, self.outputs :].size) % 2
        gradient[:, self.outputs :] = 2.0 * coins.reshape(len(gradient), -1) - 1.0
        curvature[:, self.outputs :] = _COINS_BEND

    def derive_curvature(self, gradient: Floats) -> Floats:
        """d2L/dh2 of each row, from its derivative alone or the same for all."""
        if isinstance(self.curvature, float):
            return np.full_like(gradient, self.curvature)
        # Rounding goes a little beyond 1; farther out rows have weights, and the largest is one row's whole loss.
        size = np.abs(gradient)
        most = size.max(initial=0)
        weighted = most > _WEIGHTED
        if weighted:
            size /= most
        curvature: Floats = 1 - size
        curvature *= size
        np.maximum(curvature, curvature.dtype.type(self.least_curvature), out=curvature)
        if weighted:
            curvature *= most
        return curvature

    def find_gains(self) -> dict[int, float]:
        """What all splits by each column of the table gained; columns without a split are left out."""
        inner = self._nodes.child[:, 0] != np.arange(len(self._nodes.feature))
        totals = np.bincount(self._nodes.feature[inner], self._nodes.gain[inner].astype(np.float64))
        return {int(column): float(totals[column]) for column in np.flatnonzero(totals)}

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, _: Any, __: bool, missing_keys: list[str], *others: Any
    ) -> None:
        """Of any number of trees: buffers take the size of what is loaded."""
        names = [one.name for one in fields(TreeNodes)]
        missing_keys += [prefix + name for name in names if prefix + name not in state_dict]
        if missing_keys:
            return
        held = {name: state_dict[prefix + name].detach().cpu() for name in names}
        kinds = {name: getattr(self, name) for name in names}
        for name, tensor in held.items():
            if tensor.dtype != kinds[name].dtype or tensor.dim() != kinds[name].dim():
                raise BadState(f"the saved trees are damaged: {name} is {tensor.dtype} with {tensor.dim()} axes")
        nodes = TreeNodes(**{name: tensor.clone().numpy() for name, tensor in held.items()})
        nodes.require_sound()
        if int(nodes.output.max(initial=0)) >= self.width:
            outputs = int(nodes.output.max()) + 1
            raise BadState(f"the saved trees have {outputs} outputs per row, this model has {self.width}")
        self._set_nodes(nodes, nodes.find_depth())

    def extra_repr(self) -> str:
        return f"{self.count} trees, width={self.width}, leaves={self.leaves}, shrinkage={self.shrinkage:g}"


def _whole(name: str, value: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadParameter(f"BoostedTrees: {name} must be an integer from {least} to {most}, got {value!r}")
    return value


def _vocabularies(sizes: Sequence[int]) -> tuple[int, ...]:
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise BadParameter(f"BoostedTrees: fields_vocab must list how many codes each category has, got {sizes!r}")
    return tuple(_whole("fields_vocab", size, 1, _MOST_CODES) for size in sizes)


def _curvature(value: float | str) -> float | str:
    if value in ("derived", "mean_square"):
        return value
    if isinstance(value, str):
        says = '"derived", "mean_square" or a number above 0'
        raise BadParameter(f"BoostedTrees: curvature must be {says}, got {value!r}")
    return require_number("BoostedTrees", "curvature", value, above=0)


def mean_square(gradient: Floats) -> Floats:
    """Of each output: Fisher's information, which is the mean curvature where the loss is a likelihood's."""
    return np.full_like(gradient, np.square(gradient).mean(axis=0))


def _import_lightgbm() -> Any:
    try:
        import lightgbm
    except OSError as error:
        raise BadInput(
            f"boosted trees need LightGBM, which cannot be imported here ({error}); install libgomp1"
        ) from None
    return lightgbm


def list_settings(model: BoostedTrees, rows: int) -> dict[str, Any]:
    """LightGBM's parameters for these trees, and for the table of so many rows that they are fitted to."""
    return {
        "objective": "none",
        "num_class": model.width,
        "learning_rate": model.shrinkage,
        "num_leaves": model.leaves,
        "min_data_in_leaf": model.min_rows,
        "min_sum_hessian_in_leaf": 1e-3,
        "lambda_l2": model.l2,
        "max_bin": model.bins,
        "deterministic": True,
        "force_col_wise": True,
        "feature_pre_filter": False,
        # Bundled columns may hide a value of one behind another's, and bins of a sample a rare gap: a row would
        # then be scored otherwise than it was fitted.
        "enable_bundle": False,
        "bin_construct_sample_cnt": max(200_000, rows),
        "num_threads": model.threads,
        "verbosity": -1,
    }


class TreeFitter:
    """Fits trees to derivatives of one table, which is binned once."""

    def __init__(self, model: BoostedTrees, features: Tensor) -> None:
        lightgbm = _import_lightgbm()
        if features.dim() != 2 or len(model.fields_vocab) > features.shape[1]:
            raise BadInput(
                "boosted trees take a table [rows, columns], with a column for each entry of fields_vocab; got "
                f"features of shape {list(features.shape)} and {len(model.fields_vocab)} categories"
            )
        self._model = model
        settings = list_settings(model, len(features))
        categories = list(range(len(model.fields_vocab)))
        table = lightgbm.Dataset(
            features.detach().cpu().numpy(), params=settings, categorical_feature=categories, free_raw_data=True
        )
        self._booster = lightgbm.Booster(settings, table.construct())
        self._rows = len(features)
        self._sums = np.zeros((self._rows, model.width))

    def fit(self, gradient: Floats, curvature: Floats) -> tuple[TreeNodes, Doubles]:
        """Trees for these derivatives [N, width], and their outputs; later trees follow the earlier ones' outputs."""
        nodes, outputs = self._fit_once(gradient, curvature)
        for _ in range(self._model.trees - 1):
            found, added = self._fit_once(gradient + curvature * outputs, curvature)
            nodes, outputs = nodes.append(found), outputs + added
        return nodes, outputs

    def _fit_once(self, gradient: NDArray[Any], curvature: Floats) -> tuple[TreeNodes, Doubles]:
        """One tree a column, which depends on none before it: only its share of the booster's sums is looked at."""
        booster, count = self._booster, self._booster.num_trees()
        shape = (self._rows,) if self._model.width == 1 else gradient.shape
        flat = [part.astype(np.float32, copy=False).reshape(shape) for part in (gradient, curvature)]
        booster.update(fobj=lambda _, __: tuple(flat))
        if booster.num_trees() == count:  # no column separates anything
            return TreeNodes.empty(), np.zeros(gradient.shape)
        # In a quarter of the time that its JSON takes.
        trees = read_trees(booster.model_to_string(num_iteration=1, start_iteration=count // self._model.width))
        added = self._read_changes([tree.read("leaf_value") for tree in trees])
        return TreeNodes.join([tree.flatten(column) for column, tree in enumerate(trees)]), added

    def _read_changes(self, leaves: Sequence[Doubles]) -> Doubles:
        """What trees of these leaves, the last, added to the sum of every row."""
        changes = np.empty_like(self._sums)

        def look(scores: NDArray[Any], _: Any) -> tuple[str, float, bool]:
            scores = scores.reshape(changes.shape)
            np.subtract(scores, self._sums, out=changes)
            self._sums[:] = scores
            return "seen", 0.0, False

        self._booster.eval_train(feval=look)
        for column, known in enumerate(leaves):
            if have_ties(known):
                changes[:, column] = find_nearest(known, changes[:, column])
        round_leaves(changes)
        return changes
