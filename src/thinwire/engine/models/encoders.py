"""Bottom models that no label touches: each is fitted to its party's own rows, and never learns from others.

`PrincipalDirections` for numbers, pictures and series; `Bins` for tables of numbers and categories. What they put out
counts in steps, so that rounding to integers is all that is lost on the way to the label party. `RawColumns` are
for a party's own use: nothing is lost.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput, BadParameter
from thinwire.engine.compress.parameters import require_number, require_size, require_sizes
from thinwire.engine.models.pretraining import Pretraining

_CHUNK = 4096  # rows that a network embeds at once
_SAMPLE = 20_000  # rows to find directions, quantiles and steps from
_KEEP = 0.7  # steps that rows must vary by along a direction
_HALVINGS = 24  # of the interval in which a step lies
MOST_COLUMNS = 8192  # of principal directions: their covariance is a square of that

__all__ = ["Bins", "Encoder", "Pretrained", "PrincipalDirections", "RandomProjections", "RawColumns"]


class Encoder(nn.Module):
    """Fitted once, to its party's own rows, without labels; its buffers are then all that a row needs."""

    fitted: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def fit(self, features: Tensor, seed: int = 0) -> None:
        """To a party's own rows [N, ...]; `seed` is for encoders that draw."""
        self._fit(features.detach(), seed)
        self.fitted.fill_(True)

    @abstractmethod
    def _fit(self, features: Tensor, seed: int) -> None: ...


class PrincipalDirections(Encoder):
    """Projects a row onto the directions in which its party's rows vary most, rounded to a common step.

    The step is as fine as `bits_per_row` allows, by the entropy of the party's own rows. Directions along which rows
    vary by less than 0.7 of a step are left out.

    Args:
        in_features: number of columns.
        width: most directions that are kept.
        bits_per_row: size of a row's embedding.

    Raises:
        BadParameter: a setting is out of range, or there are too many columns.

    Examples:
        >>> tw.learners.PrincipalDirections(5, width=16).width
        5
    """

    mean: Tensor
    basis: Tensor

    def __init__(self, in_features: int, width: int = 16, bits_per_row: float = 16.0) -> None:
        super().__init__()
        if require_size("PrincipalDirections", "in_features", in_features) > MOST_COLUMNS:
            says = f"must be at most {MOST_COLUMNS}, got {in_features}; use fewer columns"
            raise BadParameter.about("PrincipalDirections", "in_features", says)
        self.width = min(require_size("PrincipalDirections", "width", width), in_features)
        self.bits_per_row = require_number("PrincipalDirections", "bits_per_row", bits_per_row, above=0)
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("basis", torch.zeros(in_features, self.width))

    def _fit(self, features: Tensor, seed: int) -> None:
        table = take_sample(features).flatten(1).double()
        mean = table.mean(dim=0)
        vectors = find_directions(table - mean, self.width)
        places = (table - mean) @ vectors
        step = find_step(places, self.bits_per_row)
        kept = places.std(dim=0, correction=0) >= _KEEP * step
        self.mean.copy_(mean)
        self.basis.copy_(vectors * kept / step)

    def forward(self, x: Tensor) -> Tensor:
        """[N, ...] -> [N, width], in steps."""
        return (x.flatten(1) - self.mean) @ self.basis

    def extra_repr(self) -> str:
        return f"in_features={len(self.mean)}, width={self.width}, bits_per_row={self.bits_per_row:g}"


def take_sample(features: Tensor) -> Tensor:
    """Rows that are evenly spread over the table, at most so many."""
    return features[:: max(1, -(-len(features) // _SAMPLE))]


def find_directions(table: Tensor, width: int) -> Tensor:
    """Orthonormal columns, the strongest first; of each its largest entry is positive, so that signs are settled."""
    _, vectors = torch.linalg.eigh(table.T @ table)
    vectors = vectors.flip(1)[:, :width]
    signs = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)).sign()
    found: Tensor = vectors * signs
    return found


def find_step(places: Tensor, bits_per_row: float) -> float:
    """The finest step at which rows along their directions take at most so many bits."""
    largest = float(places.std(dim=0, correction=0).max())
    if not largest:
        return 1.0
    low, high = largest * 2.0**-16, largest / _KEEP  # at the highest only the strongest direction is left
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if count_bits(places, middle) > bits_per_row else (low, middle)
    return high


def count_bits(places: Tensor, step: float) -> float:
    """A row's, by the entropy of each direction's integers."""
    kept = places[:, places.std(dim=0, correction=0) >= _KEEP * step]
    return sum(measure_entropy(column) for column in (kept / step).round().T)


def measure_entropy(column: Tensor) -> float:
    """Bits a value."""
    shares = column.unique(return_counts=True)[1].double() / len(column)
    return float(-(shares * shares.log2()).sum())


class Pretrained(Encoder):
    """Trains your network to reconstruct its party's rows, then keeps the principal directions of its outputs.

    For images and series, whose variance is not along single directions of their values.

    Args:
        network: a module with weights to train, whose outputs are `width` wide.
        width: most directions that are kept.
        bits_per_row: size of a row's embedding, as for `PrincipalDirections`.
        pretraining: epochs, learning rate and masking; `Pretraining()` unless given.

    Raises:
        BadParameter: the network has no weights to train.

    Examples:
        >>> import torch
        >>> tw.learners.Pretrained(torch.nn.Linear(8, 4), width=4).width
        4
    """

    def __init__(
        self, network: nn.Module, width: int = 16, bits_per_row: float = 16.0, pretraining: Pretraining | None = None
    ) -> None:
        super().__init__()
        if isinstance(network, Encoder) or not any(one.requires_grad for one in network.parameters()):
            says = f"must be a network with weights to train, such as an mlp or a cnn, got {type(network).__name__}"
            raise BadParameter.about("Pretrained", "network", says)
        self.network = network
        self.pretraining = pretraining or Pretraining()
        self.width = require_size("Pretrained", "width", width)
        self.directions = PrincipalDirections(width, width, bits_per_row)

    def _fit(self, features: Tensor, seed: int) -> None:
        self.pretraining.run(self.network, features, seed)
        self.network.eval()
        with torch.no_grad():
            outputs = [self.network(part) for part in take_sample(features).split(_CHUNK)]
        self.directions.fit(torch.cat(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.network(x)
        if h.shape[1] != self.width:
            says = f"the network outputs {h.shape[1]} values per row, but width is {self.width}; they must be equal"
            raise BadInput(f"Pretrained: {says}")
        return self.directions(h)  # type: ignore[no-any-return]


class RandomProjections(Encoder):
    """Random projections of a row, between -1 and 1, with public weights; nothing is fitted.

    Those of all parties can be added: the sum is a sketch of the joined row.

    Args:
        in_features: number of columns.
        width: number of projections.
        party_seed: must differ between parties.

    Raises:
        BadParameter: a size is out of range.

    Examples:
        >>> import torch
        >>> tw.learners.RandomProjections(5, width=3)(torch.rand(2, 5)).shape
        torch.Size([2, 3])
    """

    basis: Tensor

    def __init__(self, in_features: int, width: int = 16, party_seed: int = 0) -> None:
        super().__init__()
        columns = require_size("RandomProjections", "in_features", in_features)
        self.width = require_size("RandomProjections", "width", width)
        rng = torch.Generator().manual_seed(party_seed)
        self.register_buffer("basis", torch.randn(columns, self.width, generator=rng) / columns**0.5)

    def _fit(self, features: Tensor, seed: int) -> None:
        """There is nothing to find."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.basis).tanh()


class Bins(Encoder):
    """Replaces every column by the number of its bin: quantiles of numbers, the most frequent categories one by one.

    A missing number is -1. The first columns, as many as `fields_vocab` has entries, hold codes of categories: the
    most frequent category is 0, and all beyond `bins` - 1 share the last number with missing and unseen ones.

    Args:
        in_features: number of columns.
        bins: number of bins per column, 2 or more.
        fields_vocab: number of categories of each of the first columns.
        edges: an increasing list of bin edges for each numeric column; then nothing is fitted, and categories keep
            their codes' order.

    Raises:
        BadParameter: a setting is out of range, or `fields_vocab` has more entries than there are columns.

    Examples:
        >>> import torch
        >>> tw.learners.Bins(1, bins=3, edges=[[0.0, 1.0]])(torch.tensor([[-5.0], [0.5], [9.0]])).flatten().tolist()
        [0.0, 1.0, 2.0]
    """

    accepts_gaps: ClassVar[bool] = True
    edges: Tensor
    places: Tensor

    def __init__(
        self,
        in_features: int,
        bins: int = 16,
        fields_vocab: Sequence[int] = (),
        edges: Sequence[Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        require_size("Bins", "in_features", in_features)
        self.bins = require_size("Bins", "bins", bins, 2)
        self.fields_vocab = require_sizes("Bins", "fields_vocab", fields_vocab)
        if len(self.fields_vocab) > in_features:
            says = f"has {len(self.fields_vocab)} entries, but there are {in_features} columns"
            raise BadParameter.about("Bins", "fields_vocab", says)
        self.width = in_features
        unknown = max(self.fields_vocab, default=0)  # the code of a category that no vocabulary has
        self.register_buffer("edges", torch.full((in_features - len(self.fields_vocab), bins - 1), torch.inf))
        self.register_buffer("places", torch.full((len(self.fields_vocab), unknown + 1), bins - 1))
        self.has_public_edges = edges is not None
        if edges is not None:
            self._use_edges(edges)

    def _use_edges(self, edges: Sequence[Sequence[float]]) -> None:
        if isinstance(edges, str) or not isinstance(edges, Sequence) or len(edges) != len(self.edges):
            says = f"must be a list for each of {len(self.edges)} columns of numbers, got {edges!r}"
            raise BadParameter.about("Bins", "edges", says)
        for place, column in enumerate(edges):
            found = torch.tensor(require_edges(f"edges[{place}]", column, self.bins - 1))
            self.edges[place, : len(found)] = found
        for place, count in enumerate(self.fields_vocab):
            alone = min(count, self.bins - 1)
            self.places[place, :alone] = torch.arange(alone)

    def _fit(self, features: Tensor, seed: int) -> None:
        if features.dim() != 2:
            raise BadInput(f"Bins take a table [rows, columns], got features of shape {list(features.shape)}")
        if self.has_public_edges:
            return
        categories, numbers = self._split(take_sample(features))
        for place, column in enumerate(categories.T):
            counts = torch.bincount(self._to_codes(column), minlength=self.places.shape[1])[:-1]
            frequent = counts.argsort(descending=True, stable=True)[: self.bins - 1]
            self.places[place, frequent] = torch.arange(len(frequent), device=self.places.device)
        for place, column in enumerate(numbers.T):
            found = find_quantiles(column[~column.isnan()], self.bins)
            self.edges[place, : len(found)] = found

    def forward(self, x: Tensor) -> Tensor:
        categories, numbers = self._split(x)
        found = [row[self._to_codes(column)] for column, row in zip(categories.T, self.places, strict=True)]
        for column, edges in zip(numbers.T, self.edges.to(numbers), strict=True):
            found.append(torch.bucketize(column.contiguous(), edges).masked_fill(column.isnan(), -1))
        return torch.stack(found, dim=1).to(x)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Categories and numbers."""
        return x[:, : len(self.fields_vocab)], x[:, len(self.fields_vocab) :]

    def _to_codes(self, column: Tensor) -> Tensor:
        """Gaps are one more category that no vocabulary has."""
        unknown = self.places.shape[1] - 1
        return torch.where(column.isfinite() & (column >= 0) & (column < unknown), column, unknown).long()

    def extra_repr(self) -> str:
        return f"columns={self.width}, bins={self.bins}"


def require_edges(field: str, column: object, most: int) -> list[float]:
    """At most so many numbers, each above the one before."""
    if isinstance(column, str) or not isinstance(column, Sequence) or len(column) > most:
        raise BadParameter.about("Bins", field, f"must be a list of at most {most} numbers, got {column!r}")
    found = [require_number("Bins", field, edge) for edge in column]
    if any(high <= low for low, high in pairwise(found)):
        raise BadParameter.about("Bins", field, f"must be increasing, got {column!r}")
    return found


def find_quantiles(values: Tensor, bins: int) -> Tensor:
    """At most bins - 1 different ones; a value belongs to the bin that ends with it."""
    if not len(values):
        return values
    places = torch.linspace(0, len(values) - 1, bins + 1, device=values.device)[1:-1].long()
    found: Tensor = values.sort().values[places].unique()
    return found


class RawColumns(Encoder):
    """The columns as they are, with missing values: for the label party's own features, which are not sent.

    Examples:
        >>> import torch
        >>> tw.learners.RawColumns()(torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    accepts_gaps: ClassVar[bool] = True

    def _fit(self, features: Tensor, seed: int) -> None:
        """There is nothing to find."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)
