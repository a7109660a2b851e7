"""Wide and deep towers (Cheng et al., 2016) over hashed categories, as CELU-VFL trains on Criteo.

Each party holds a tower; the label party's has the wide part too, and its top model is linear on the
concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import nan

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.models.checks import check_input, require_size, require_sizes
from thinwire.engine.models.mlp import MLP

_EXACT = 1 << 24  # float32 columns carry every whole number up to here


class CategoryTable(nn.Module):
    """One vector for every category of every field: ids [B, fields] -> [B, fields, width]."""

    def __init__(self, fields_vocab: Sequence[int], width: int) -> None:
        super().__init__()
        first = [0, *accumulate(fields_vocab)]
        self.vectors = nn.Embedding(first[-1], width)
        nn.init.normal_(self.vectors.weight, std=0.01)
        self.sizes: Tensor
        self.first: Tensor
        self.register_buffer("sizes", torch.tensor(list(fields_vocab)), persistent=False)
        self.register_buffer("first", torch.tensor(first[:-1]), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        outside = (ids < 0) | (ids >= self.sizes)
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            # A graph cannot raise: NaN, rather than another field's vector.
            found: Tensor = self.vectors(ids.masked_fill(outside, 0) + self.first)
            return found.masked_fill(outside[..., None], nan)
        if outside.any():  # all fields share one table: an id too large would be the next field's
            row, field = (int(place) for place in outside.nonzero()[0])
            raise BadTensor(
                f"category column {field} holds {int(ids[row, field])} in row {row} of the batch, expected "
                f"0 to {int(self.sizes[field]) - 1}; hash the column into its vocabulary first"
            )
        vectors: Tensor = self.vectors(ids + self.first)
        return vectors


class DeepTower(nn.Module):
    """Category ids in the first columns, then dense ones: [B, fields + dense_features] -> [B, width]."""

    def __init__(
        self,
        fields_vocab: Sequence[int] | None,
        dense_features: int,
        embedding_width: int,
        hidden: Sequence[int],
        width: int = 256,
    ) -> None:
        super().__init__()
        self.fields_vocab = require_sizes(self, "fields_vocab", fields_vocab or ())
        self.dense_features = require_size(self, "dense_features", dense_features, low=0)
        self.width = require_size(self, "width", width)
        self.in_features = len(self.fields_vocab) + self.dense_features
        vector = require_size(self, "embedding_width", embedding_width)
        if not self.in_features:
            raise BadParameter(f"{type(self).__name__}: give fields_vocab, dense_features or both")
        if max(self.fields_vocab, default=0) > _EXACT:
            raise BadParameter.about(
                self,
                "fields_vocab",
                f"holds {max(self.fields_vocab)}; a float column is "
                f"exact up to {_EXACT} categories, so hash into fewer",
            )
        self.table = CategoryTable(self.fields_vocab, vector) if self.fields_vocab else None
        self.mlp = MLP(len(self.fields_vocab) * vector + self.dense_features, hidden, self.width)

    def forward(self, x: Tensor) -> Tensor:
        ids, dense = self.columns(x)
        parts = [dense] if self.table is None else [self.table(ids).flatten(1), dense]
        h: Tensor = self.mlp(torch.cat(parts, dim=1))
        return h

    def columns(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input's category ids as whole numbers, and its dense columns."""
        check_input(self, x, self.in_features)
        fields = len(self.fields_vocab)
        return x[:, :fields].long(), x[:, fields:]


class WideAndDeep(DeepTower):
    """The deep tower's output and, in a last column, a linear model of the same features: [B, width + 1]."""

    def __init__(
        self,
        fields_vocab: Sequence[int] | None,
        dense_features: int,
        embedding_width: int,
        hidden: Sequence[int],
        width: int = 256,
    ) -> None:
        super().__init__(fields_vocab, dense_features, embedding_width, hidden, width)
        self.width += 1
        self.wide_table = CategoryTable(self.fields_vocab, 1) if self.fields_vocab else None
        self.wide_dense = nn.Linear(self.dense_features, 1) if self.dense_features else None

    def forward(self, x: Tensor) -> Tensor:
        ids, dense = self.columns(x)
        wide = x.new_zeros(x.shape[0], 1)
        if self.wide_table is not None:
            wide = wide + self.wide_table(ids).sum(dim=1)
        if self.wide_dense is not None:
            wide = wide + self.wide_dense(dense)
        return torch.cat([super().forward(x), wide], dim=1)
