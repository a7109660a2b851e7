"""The bottom and top models that job files know by name.

Fully connected layers; wide and deep towers (Cheng et al., 2016) over hashed categories, as CELU-VFL trains on
Criteo: each party holds a tower, the label party's has the wide part too, and its top model is linear on the
concatenation; an LSTM, as C-VFL uses on intensive-care data.

`ScaledCosine` is the top model of the deep structured semantic model (Huang et al., 2013), as CELU-VFL trains it on
Avazu: two parties, each with an `MLP` or a `DeepTower` of width 256; fusion is concat, and the top model says how
alike the two embeddings are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from math import nan, prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.compress.parameters import require_number, require_size, require_sizes


def check_input(owner: object, x: Tensor, *sizes: int | str) -> None:
    """x is [B, *sizes]; a size given as a letter may be anything."""
    given = tuple(x.shape[1:])
    fits = len(given) == len(sizes) and all(
        isinstance(wanted, str) or size == wanted for size, wanted in zip(given, sizes, strict=True)
    )
    if x.dim() == 0 or not fits:
        wanted = ", ".join(["B", *map(str, sizes)])
        raise BadTensor(f"{_name(owner)}: the input has shape {tuple(x.shape)}, expected [{wanted}]")


def flat_rows(owner: object, x: Tensor, in_features: int) -> Tensor:
    """x as [B, in_features]: every row's features in one line."""
    width = prod(x.shape[1:])
    if x.dim() == 0 or width != in_features:
        raise BadTensor(
            f"{_name(owner)}: the input has shape {tuple(x.shape)}, so {width} features per row, not "
            f"in_features={in_features}"
        )
    return x.reshape(x.shape[0], in_features)  # len() would fix the batch of an exported model


def _name(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


ACTIVATIONS: dict[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


def build_activation(name: str | None, owner: object, field: str = "activation") -> nn.Module:
    """A new module of that name; None leaves values as they are."""
    if name is None:
        return nn.Identity()
    if name not in ACTIVATIONS:
        wanted = ", ".join(map(repr, ACTIVATIONS))
        raise BadParameter.about(owner, field, f"must be None or one of {wanted}, got {name!r}")
    return ACTIVATIONS[name]()


# Fully connected layers: bottom models, and top models for what comes after the fusion ----------------------------


class LinearBottom(nn.Module):
    """activation(W x + b) of the flattened features: [B, ...] -> [B, width].

    Args:
        in_features: values per row.
        width: embedding width.
        bias: whether to add b.
        activation: such as "relu" or "tanh"; none unless given.

    Raises:
        BadParameter: a size below 1, or an unknown activation.

    Examples:
        >>> import torch
        >>> tw.models.LinearBottom(4, 2)(torch.rand(3, 2, 2)).shape
        torch.Size([3, 2])
    """

    def __init__(self, in_features: int, width: int, bias: bool = True, activation: str | None = None) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.width = require_size(self, "width", width)
        self.linear = nn.Linear(self.in_features, self.width, bias=bias)
        self.activation = build_activation(activation, self)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.activation(self.linear(flat_rows(self, x, self.in_features)))
        return h


class MLP(nn.Module):
    """Linear layers with an activation between them, on flattened features: [B, ...] -> [B, width].

    Args:
        in_features: values per row.
        hidden: widths of the hidden layers.
        width: embedding width.
        activation: between the layers.
        out_activation: after the last layer; none unless given.
        bias: whether the layers have one.

    Raises:
        BadParameter: a size below 1, or an unknown activation.

    Examples:
        >>> import torch
        >>> tw.models.MLP(4, [16], 2)(torch.rand(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        width: int,
        activation: str | None = "relu",
        out_activation: str | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.width = require_size(self, "width", width)
        sizes = [self.in_features, *require_sizes(self, "hidden", hidden), self.width]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs, bias=bias), build_activation(activation, self)]
        layers[-1] = build_activation(out_activation, self, "out_activation")
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layers(flat_rows(self, x, self.in_features))
        return h


class LinearTop(nn.Module):
    """W h + b: [B, in_features] -> [B, classes].

    Args:
        in_features: width of the fused embeddings.
        classes: number of outputs; 1 for a logit or a value.
        bias: whether to add b.

    Raises:
        BadParameter: a size below 1.

    Examples:
        >>> tw.models.LinearTop(8, 3).linear.out_features
        3
    """

    def __init__(self, in_features: int, classes: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.linear = nn.Linear(self.in_features, require_size(self, "classes", classes), bias=bias)

    def forward(self, h: Tensor) -> Tensor:
        outputs: Tensor = self.linear(flat_rows(self, h, self.in_features))
        return outputs


class MLPTop(MLP):
    """An MLP as top model: [B, in_features] -> [B, classes].

    Args:
        in_features: width of the fused embeddings.
        hidden: widths of the hidden layers.
        classes: number of outputs.
        activation: between the layers.
        dropout: of each layer's input, from 0 to below 1.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> import torch
        >>> tw.models.MLPTop(4, [8], 3)(torch.rand(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        classes: int,
        activation: str | None = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, hidden, classes, activation)
        if require_number(self, "dropout", dropout, at_least=0, below=1):
            layers = [(nn.Dropout(dropout), part) if isinstance(part, nn.Linear) else (part,) for part in self.layers]
            self.layers = nn.Sequential(*chain.from_iterable(layers))


class BiasTop(nn.Module):
    """h + b: [B, width] -> [B, width]. Embeddings add up to the outputs; boosted trees need this top model.

    Args:
        width: number of outputs.

    Raises:
        BadParameter: a width below 1.

    Examples:
        >>> tw.models.BiasTop(2).bias.shape
        torch.Size([2])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = require_size(self, "width", width)
        self.bias = nn.Parameter(torch.zeros(self.width))

    def begin_at(self, outputs: Tensor) -> None:
        """The outputs while all embeddings are zero; [width]."""
        with torch.no_grad():
            self.bias.copy_(outputs)

    def forward(self, h: Tensor) -> Tensor:
        check_input(self, h, self.width)
        return h + self.bias


class InteractionTop(BiasTop):
    """Sum of the parties' outputs, a bias, and products between parties: [B, in_features] -> [B, classes].

    Each party sends `classes` outputs that are summed, then `pairs` factors for each of them: output c gains the
    products v_ck w_ck of any two parties, summed over its pairs k (a factorisation machine; Rendle, 2010). So models
    that see one party's columns each can express what depends on two parties at once. Needs fusion "concat".

    Args:
        in_features: all parties' embeddings together.
        classes: number of outputs.
        pairs: factors per output and party.

    Raises:
        BadParameter: `in_features` is not a multiple of a party's width, or there is only one party.

    Examples:
        >>> import torch
        >>> tw.models.InteractionTop(6, classes=1, pairs=2)(torch.rand(4, 6)).shape
        torch.Size([4, 1])
    """

    def __init__(self, in_features: int, classes: int = 1, pairs: int = 2) -> None:
        super().__init__(require_size(self, "classes", classes))
        self.pairs = require_size(self, "pairs", pairs)
        self.in_features = require_size(self, "in_features", in_features)
        each = self.width * (1 + self.pairs)
        if in_features % each or in_features == each:
            raise BadParameter(
                f"InteractionTop: embeddings of {each} numbers per party, {self.width} outputs with {self.pairs} "
                "pairs each, are concatenated (fusion = 'concat') from two parties or more, got "
                f"{in_features}"
            )

    def forward(self, h: Tensor) -> Tensor:
        check_input(self, h, self.in_features)
        parts = h.reshape(h.shape[0], -1, self.width * (1 + self.pairs))  # [B, parties, classes * (1 + pairs)]
        summed, paired = parts.split([self.width, self.width * self.pairs], dim=2)
        products = paired.sum(dim=1).square() - paired.square().sum(dim=1)  # of two parties, each of them twice
        outputs: Tensor = summed.sum(dim=1) + self.bias + products.unflatten(1, (self.width, -1)).sum(dim=2) / 2
        return outputs


class ScaledCosine(nn.Module):
    """scale * cos(left half, right half), one logit per row: [B, 2 E] -> [B]. The scale is learned.

    A half that is all zeros has cosine 0 and passes no gradient: sparse messages hold such rows, and the cosine's own
    gradient is unbounded there.

    Args:
        scale: initial value, above 0.

    Raises:
        BadParameter: `scale` is not positive.

    Examples:
        >>> import torch
        >>> round(tw.models.ScaledCosine(10.0)(torch.ones(1, 4)).item())
        10
    """

    def __init__(self, scale: float = 10.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([require_number(self, "scale", scale, above=0)]))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] % 2 or not x.shape[1]:
            raise BadTensor(
                f"ScaledCosine: the input has shape {tuple(x.shape)}, expected [B, 2 E]: two embeddings of "
                "the same width under fusion='concat'"
            )
        left, right = x.chunk(2, dim=1)
        with torch.no_grad():
            both = (left.abs().amax(dim=1) > 0) & (right.abs().amax(dim=1) > 0)
            ones = (~both).to(x.dtype).unsqueeze(1)  # for zeros; added, which costs a fraction of choosing
        cosine = functional.cosine_similarity(left + ones, right + ones)
        return self.scale * cosine.where(both, 0.0)


# Wide and deep towers (Cheng et al., 2016) over hashed categories, as CELU-VFL trains on Criteo -------------------


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
    """Embeddings of categories and an MLP: [B, fields + dense_features] -> [B, width]; category ids come first.

    Args:
        fields_vocab: number of categories of each of the first columns.
        dense_features: numeric columns after them.
        embedding_width: of each category.
        hidden: widths of the MLP's hidden layers.
        width: embedding width.

    Raises:
        BadParameter: a size is out of range, or there is no column.

    Examples:
        >>> import torch
        >>> tw.models.DeepTower([10, 4], 3, 8, [16], width=6)(torch.zeros(2, 5)).shape
        torch.Size([2, 6])
    """

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
        """The input's category ids as integers, and its dense columns."""
        check_input(self, x, self.in_features)
        fields = len(self.fields_vocab)
        return x[:, :fields].long(), x[:, fields:]


class WideAndDeep(DeepTower):
    """A deep tower, and a linear model of the same features in the last column: [B, width + 1].

    Args:
        fields_vocab: number of categories of each of the first columns.
        dense_features: numeric columns after them.
        embedding_width: of each category.
        hidden: widths of the MLP's hidden layers.
        width: of the deep tower.

    Raises:
        BadParameter: a size is out of range, or there is no column.

    Examples:
        >>> import torch
        >>> tw.models.WideAndDeep([10], 2, 4, [8], width=3)(torch.zeros(2, 3)).shape
        torch.Size([2, 4])
    """

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


# A bottom model for time series; those for images are in image_networks.py -----------------------------------------


class LSTM(nn.Module):
    """[B, T, in_features] -> the last hidden state -> [B, width].

    Args:
        in_features: values per time step.
        hidden: width of the hidden state.
        width: embedding width.
        out_activation: such as "tanh"; none unless given.

    Raises:
        BadParameter: a size below 1, or an unknown activation.

    Examples:
        >>> import torch
        >>> tw.models.LSTM(3, hidden=8, width=4)(torch.rand(2, 10, 3)).shape
        torch.Size([2, 4])
    """

    def __init__(self, in_features: int, hidden: int, width: int, out_activation: str | None = None) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.width = require_size(self, "width", width)
        self.lstm = nn.LSTM(self.in_features, require_size(self, "hidden", hidden), batch_first=True)
        self.linear = nn.Linear(self.lstm.hidden_size, self.width)
        self.activation = build_activation(out_activation, self, "out_activation")

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, x, "T", self.in_features)
        _, (last, _) = self.lstm(x)  # [1, B, hidden]
        h: Tensor = self.activation(self.linear(last[0]))
        return h
