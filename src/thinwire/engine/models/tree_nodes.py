"""Trees as arrays, one entry a node: how rows fall through them, and how LightGBM's model text becomes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from thinwire.base.errors import BadState

# A leaf's value is a multiple of this: sums of leaves below 32 are then exact in float32, whatever their order, and
# the difference of two embeddings is again the value of a leaf.
LEAF_STEP = 2.0**-19
_TIE = 1e-3  # of a step: a value as near to the middle of two multiples may be rounded either way
_MOST_CODES = 1 << 31  # of a category
_WORD = 32  # categories to a word of a bit set
_CODED, _GAPS_LEFT, _GAPS = 1, 2, 2  # of a split's decision_type: two flags, and above them what counts as missing

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TreeNodes:
    """Trees as arrays, one entry a node; a leaf is its own child. Children stand behind their parent."""

    feature: NDArray[np.int32]
    threshold: Doubles  # at most this much goes left; infinite where all numbers do, and gaps alone go right
    child: NDArray[np.int32]  # [nodes, 2]: left, right
    gap_left: NDArray[np.bool_]  # where a missing value goes
    categories: NDArray[np.int32]  # first word of the set that goes left; -1: a number decides
    sets: NDArray[np.int64]  # a length, then as many words of bits; and so on
    value: NDArray[np.float32]
    gain: NDArray[np.float32]  # by how much a split lowered the loss that its tree was fitted to
    root: NDArray[np.int32]  # of each tree
    output: NDArray[np.int32]  # the column that a tree adds to

    @classmethod
    def empty(cls) -> TreeNodes:
        whole, none = np.zeros(0, np.int32), np.zeros(0, np.float64)
        pairs = np.zeros((0, 2), np.int32)
        truth, words = np.zeros(0, np.bool_), np.zeros(0, np.int64)
        values = none.astype(np.float32)
        return cls(whole, none, pairs, truth, whole, words, values, values, whole, whole)

    @classmethod
    def join(cls, parts: Sequence[TreeNodes]) -> TreeNodes:
        """One after the other, without those that add nothing."""
        kept = [one for one in parts if len(one.feature) > 1 or one.value.any()]
        return reduce(cls.append, kept) if kept else cls.empty()

    def append(self, more: TreeNodes) -> TreeNodes:
        """These trees, then those."""
        nodes, words = len(self.feature), len(self.sets)
        shift = {
            "child": more.child + np.int32(nodes),
            "categories": np.where(more.categories < 0, more.categories, more.categories + np.int32(words)),
            "root": more.root + np.int32(nodes),
        }
        parts = {one.name: shift.get(one.name, getattr(more, one.name)) for one in fields(self)}
        return TreeNodes(**{name: np.concatenate([getattr(self, name), part]) for name, part in parts.items()})

    def require_sound(self) -> None:
        """Refuses arrays in which a row could get lost, wherever they come from."""
        nodes = len(self.feature)
        if self.child.shape != (nodes, 2):
            raise BadState(f"the saved trees are damaged: {nodes} nodes have children of shape {self.child.shape}")
        places = np.arange(nodes)
        leaf = self.child[:, 0] == places
        inner = (self.child > places[:, None]).all(axis=1) & (self.child < nodes).all(axis=1)
        whole = leaf & (self.child[:, 1] == places)
        starts = self.categories[self.categories >= 0]
        sound = (
            bool((inner | whole).all())
            and all(
                len(getattr(self, name)) == nodes for name in ("threshold", "gap_left", "categories", "value", "gain")
            )
            and len(self.root) == len(self.output)
            and bool(((self.root >= 0) & (self.root < nodes)).all())
            and bool((self.feature >= 0).all() and (self.output >= 0).all())
            and bool((starts < len(self.sets)).all())
            and bool((self.sets[starts] >= 0).all() and (self.sets[starts] < len(self.sets) - starts).all())
            and bool(np.isfinite(self.value).all() and not np.isnan(self.threshold).any())
        )
        if not sound:
            raise BadState("the saved trees are damaged: a node has no place, a child or a value that is missing")

    def find_depth(self) -> int:
        """As many decisions as the deepest leaf takes."""
        level = [0] * len(self.feature)
        for node, (left, right) in enumerate(self.child.tolist()):
            if left != node:
                level[left] = level[right] = level[node] + 1
        return max(level, default=0)

    def evaluate(self, x: Doubles, roots: NDArray[np.int32], depth: int) -> Doubles:
        """The sum of these trees' leaves for each row; [N]."""
        rows = np.arange(len(x))[:, None] * x.shape[1]
        flat, child = np.ascontiguousarray(x).ravel(), np.ascontiguousarray(self.child[:, ::-1]).ravel()
        has_gaps, has_categories = bool(np.isnan(flat).any()), bool((self.categories >= 0).any())
        node = np.broadcast_to(roots.astype(np.intp), (len(x), len(roots)))
        for _ in range(depth):
            cell = flat.take(self.feature.take(node) + rows)
            left = cell <= self.threshold.take(node)
            if has_gaps:
                left = np.where(np.isnan(cell), self.gap_left.take(node), left)
            if has_categories:
                starts = self.categories.take(node)
                coded = starts >= 0
                left[coded] = self._is_in_set(cell[coded], starts[coded])
            node = child.take(2 * node + left)
        sums: Doubles = self.value.take(node).astype(np.float64).sum(axis=1)
        return sums

    def list_categories(self, node: int) -> list[int]:
        """The codes that go left."""
        start = int(self.categories[node])
        words = self.sets[start + 1 : start + 1 + self.sets[start]].tolist()
        return [_WORD * place + bit for place, word in enumerate(words) for bit in range(_WORD) if word >> bit & 1]

    def _is_in_set(self, cell: Doubles, start: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Categories that no training row had, and gaps, are in no set: they go right."""
        known = np.isfinite(cell) & (cell >= 0) & (cell < _MOST_CODES)
        code = np.where(known, cell, 0).astype(np.int64)
        known &= code // _WORD < self.sets[start]
        word = self.sets[np.where(known, start + 1 + code // _WORD, 0)]
        return known & ((word >> (code % _WORD)) & 1).astype(np.bool_)


# Leaves, rounded --------------------------------------------------------------------------------------------------


def round_leaves(values: Doubles) -> None:
    """To multiples of the step, as float32 holds them, in place."""
    values *= 1 / LEAF_STEP
    np.rint(values, out=values)
    values *= LEAF_STEP
    values[:] = values.astype(np.float32)


def have_ties(leaves: Doubles) -> bool:
    """Whether a difference of sums, a leaf but for its last bits, could be rounded otherwise than the leaf."""
    steps = leaves / LEAF_STEP
    return bool(np.abs(steps - np.floor(steps) - 0.5).min() <= _TIE)


def find_nearest(leaves: Doubles, outputs: Doubles) -> Doubles:
    """The leaf that each output is."""
    known = np.unique(leaves)
    found: Doubles = known[np.searchsorted((known[1:] + known[:-1]) / 2, outputs)]
    return found


# A tree in LightGBM's model text: lines of name=value ---------------------------------------------------------------


def read_trees(text: str) -> list[TreeText]:
    """Those of a model's text."""
    _, *trees = text.partition("\nend of trees")[0].split("\nTree=")
    return [TreeText(dict(line.split("=", 1) for line in tree.splitlines()[1:] if line)) for tree in trees]


@dataclass(frozen=True)
class TreeText:
    """Numbers of splits by name, in an order in which children come behind their parent; and of leaves."""

    lines: Mapping[str, str]

    def read(self, name: str) -> Doubles:
        """None where the tree has none."""
        line = self.lines.get(name)
        return np.fromstring(line, np.float64, sep=" ") if line else np.zeros(0)

    def read_whole(self, name: str) -> NDArray[np.int64]:
        return self.read(name).astype(np.int64)

    def flatten(self, column: int) -> TreeNodes:
        """Splits, then leaves."""
        values, feature, kind = self.read("leaf_value"), self.read("split_feature"), self.read_whole("decision_type")
        round_leaves(values)
        splits, none = len(feature), np.zeros(len(values))
        child, coded, (sets, starts) = self._read_children(), (kind & _CODED) != 0, self._read_sets()
        threshold, categories = self.read("threshold"), np.full(splits, -1)
        categories[coded] = starts[threshold[coded].astype(np.intp)]
        threshold[coded] = 0
        return TreeNodes(
            feature=np.append(feature, none).astype(np.int32),
            threshold=np.append(threshold, none),
            child=child,
            gap_left=np.append(self._send_gaps_left(child[:splits], kind), none).astype(np.bool_),
            categories=np.append(categories, none - 1).astype(np.int32),
            sets=sets,
            value=np.append(np.zeros(splits), values).astype(np.float32),
            gain=np.append(self.read("split_gain"), none).astype(np.float32),
            root=np.zeros(1, np.int32),
            output=np.array([column], np.int32),
        )

    def _read_children(self) -> NDArray[np.int32]:
        """[nodes, 2]; in the text leaf i is -1 - i."""
        child = np.stack([self.read_whole(side) for side in ("left_child", "right_child")], axis=1)
        splits = len(child)
        own = np.repeat(np.arange(splits, 2 * splits + 1)[:, None], 2, axis=1)
        return np.concatenate([np.where(child < 0, splits - 1 - child, child), own]).astype(np.int32)

    def _read_sets(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bit sets of categories, the length of each before it; and where each begins."""
        words, bounds = self.read_whole("cat_threshold"), self.read_whole("cat_boundaries")
        if not len(words):
            return words, words
        return np.insert(words, bounds[:-1], np.diff(bounds)), bounds[:-1] + np.arange(len(bounds) - 1)

    def _send_gaps_left(self, child: NDArray[np.int32], kind: NDArray[np.int64]) -> NDArray[np.bool_]:
        """As it was fitted; where no training row had a gap, to where most rows went. Of categories none."""
        rows = np.append(self.read("internal_count"), self.read("leaf_count"))
        most_left = rows[child[:, 0]] >= rows[child[:, 1]]
        found: NDArray[np.bool_] = np.where(kind >> 2 == _GAPS, (kind & _GAPS_LEFT) != 0, most_left)
        found &= (kind & _CODED) == 0
        return found
