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
    """activation(W x + b), the rows' features flattened: [B, ...] -> [B, width]."""

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
    """Linear layers with an activation between them, the rows' features flattened: [B, ...] -> [B, width]."""

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
    """W h + b: [B, in_features] -> [B, classes]. One class: a logit or a prediction, [B, 1]."""

    def __init__(self, in_features: int, classes: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.linear = nn.Linear(self.in_features, require_size(self, "classes", classes), bias=bias)

    def forward(self, h: Tensor) -> Tensor:
        outputs: Tensor = self.linear(flat_rows(self, h, self.in_features))
        return outputs


class MLPTop(MLP):
    """Fully connected layers: [B, in_features] -> [B, classes]; `dropout` of each layer's input."""

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
    """h + b: [B, width] -> [B, width]. Embeddings are the outputs' parts; boosted trees are made for it."""

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
    """The parties' first outputs added up, a bias, and products of the others: [B, in_features] -> [B, classes].

    Of every party come `classes` outputs that are summed, then `pairs` for each of them: output c gains the
    products v_ck w_ck of any two parties, summed over its pairs k (a factorisation machine; Rendle, 2010). So models
    that see one party's columns each say together what depends on two parties' at once. Fusion is concat.
    """

    def __init__(self, in_features: int, classes: int = 1, pairs: int = 2) -> None:
        super().__init__(require_size(self, "classes", classes))
        self.pairs = require_size(self, "pairs", pairs)
        self.in_features = require_size(self, "in_features", in_features)
        each = self.width * (1 + self.pairs)
        if in_features % each or in_features == each:
            raise BadParameter(
                f"InteractionTop: embeddings of {each} numbers per party, {self.width} outputs with {self.pairs} "
                "pairs each, come one behind the other (fusion = 'concat') from two parties or more, got "
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
    """scale * cos(left half, right half), a logit per row: [B, 2 E] -> [B]. The scale is learned.

    A half that is all zeros has cosine 0 and passes no derivative: sparse messages hold such rows, and
    the cosine's own slope has no bound there.
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
        """The input's category ids as integers, and its dense columns."""
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


# A bottom model for time series; those for images are in image_networks.py -----------------------------------------


class LSTM(nn.Module):
    """[B, T, in_features] -> the last hidden state -> [B, width]."""

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


# How embeddings meet at the label party: sum, mean or concat, always in party order -------------------------------


FUSIONS = ("sum", "mean", "concat")


def check_fusion(kind: str, widths: Sequence[int]) -> None:
    """The parties' embedding widths can be fused in this way."""
    if kind not in FUSIONS:
        raise BadParameter(f"fusion must be one of {', '.join(map(repr, FUSIONS))}, got {kind!r}")
    if not widths:
        raise BadParameter("fusion needs the embedding of at least one party, got none")
    if kind != "concat" and len(set(widths)) > 1:
        raise BadParameter(
            f"fusion {kind!r} adds embeddings, but their widths differ: {', '.join(map(str, widths))}; "
            "use fusion='concat', or give every bottom model the same width"
        )


def fusion_width(kind: str, widths: Sequence[int]) -> int:
    """How wide the top model's input is."""
    check_fusion(kind, widths)
    return sum(widths) if kind == "concat" else widths[0]


def fuse(kind: str, embeddings: Sequence[Tensor]) -> Tensor:
    """h_1..h_K, each [B, E_k], as the top model's input [B, E]."""
    if any(h.dim() != 2 or len(h) != len(embeddings[0]) for h in embeddings):
        shapes = ", ".join(str(tuple(h.shape)) for h in embeddings)
        raise BadTensor(f"fusion needs embeddings [B, E] with the same rows, got {shapes}")
    check_fusion(kind, [h.shape[1] for h in embeddings])
    if kind == "concat":
        return torch.cat(list(embeddings), dim=1)
    # Left to right: floating-point sums depend on their order, and both ends must agree to the bit.
    total = embeddings[0]
    for h in embeddings[1:]:
        total = total + h
    return total / len(embeddings) if kind == "mean" else total
