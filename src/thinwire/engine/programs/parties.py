"""The parties of a job, as their owners describe them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from thinwire.base.errors import BadColumn, BadInput, BadLabels, BadTable, BadTensor, NotFinite
from thinwire.engine.models.losses import cross_entropy, with_class_weights
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.protocols.context import Groups
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.engine.streams import RowOwners, release_pages
from thinwire.engine.streams.owners import check_index, renumber_owners

_PIECE = 65_536  # rows
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInput(
            f"party {name!r}: a name has at most 64 letters, digits, - and _, and starts with a letter or digit"
        )
    if name == "top":
        raise BadInput("party 'top': that name is reserved for the top model; choose another")


def to_float_tensor(party: str, field: str, values: Any, with_gaps: bool = False) -> Tensor:
    """Features as a float32 tensor [N, ...], finite but for gaps; of a tensor, an array, a data frame or lists."""
    tensor = values if isinstance(values, Tensor) else _read_numbers(f"party {party!r}: {field}", values)
    tensor = tensor.to(torch.float32) if not tensor.is_floating_point() or tensor.dtype == torch.float64 else tensor
    if tensor.dim() < 1 or len(tensor) == 0:
        raise BadTensor(f"party {party!r}: {field} must have at least one row, got shape {tuple(tensor.shape)}")
    if tensor.dim() == 1:
        tensor = tensor[:, None]
    for start in range(0, len(tensor), _PIECE):
        piece = tensor[start : start + _PIECE]
        usable = torch.isfinite(piece) | piece.isnan() if with_gaps else torch.isfinite(piece)
        if not bool(usable.all()):
            row, *place = torch.nonzero(~usable)[0].tolist()
            place = [start + row, *place]
            raise NotFinite(float(tensor[tuple(place)]), place, f"party {party!r}: {field} [row, column]")
        release_pages(tensor)
    return tensor


def _read_numbers(where: str, values: Any) -> Tensor:
    if hasattr(values, "columns"):
        return _to_tensor(_read_frame(where, values))
    array = _read_array(where, values)
    if not _is_numeric(array):
        raise BadColumn(f"{where} hold {_name_kind(array)}; {_WAY_OUT}")
    return _to_tensor(array)


_WAY_OUT = (
    "convert it to numbers with thinwire.data.prepare.Preparation, or use tw.VerticalClassifier, which does that"
)


def _read_frame(where: str, frame: Any) -> NDArray[Any]:
    """The numbers of a data frame [N, columns]; columns of anything else are refused by their name."""
    columns = []
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place] if hasattr(frame, "iloc") else frame[name]
        values = _read_array(where, column)
        # A categorical column's numbers are names, which have no order.
        is_categorical = hasattr(getattr(column, "dtype", None), "categories")
        if is_categorical or not _is_numeric(values):
            kind = "categories" if is_categorical else _name_kind(values)
            raise BadColumn(f"{where}: column {name!r} holds {kind}; {_WAY_OUT}")
        columns.append(values)
    if not columns:
        raise BadTable(f"{where}: the data frame has no columns")
    return np.column_stack(columns)


def _read_array(where: str, values: Any) -> NDArray[Any]:
    """As torch takes it: objects that are numbers become floats; byte order and strides become the usual ones."""
    if hasattr(values, "toarray"):
        raise BadTensor(f"{where}: a sparse matrix is not supported; give its .toarray()")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise BadTensor(f"{where}: {type(values).__name__} is not an array: {error}") from None
    if array.dtype.kind == "O" and not any(isinstance(one, (str, bytes)) for one in array.flat):
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            return array
    if not _is_numeric(array):
        return array
    native = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return array.astype(native, copy=False) if min(array.strides, default=0) >= 0 else array.astype(native)


def _to_tensor(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes into tables
        return torch.as_tensor(array)


def _is_numeric(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "biuf"


def _name_kind(array: NDArray[Any]) -> str:
    """What stands in an array that holds no numbers, for a message."""
    known = {"M": "dates", "m": "durations", "c": "complex numbers", "U": "text", "S": "text", "T": "text"}
    text = any(isinstance(one, (str, bytes)) for one in array.flat) if array.dtype.kind == "O" else False
    return "text" if text else known.get(array.dtype.kind, "missing values or other objects")


def _format_tables(party: object, names: Sequence[str]) -> str:
    """The shapes of a party's tables that are there, and the classes of its modules; never a value."""
    found = {name: getattr(party, name, None) for name in names}
    shown = {
        name: list(part.shape) if isinstance(part, Tensor) else type(part).__name__
        for name, part in found.items()
        if part is not None
    }
    return ", ".join(f"{name}={part}" for name, part in shown.items())


class LabelMeaning(Protocol):
    """What the labels' numbers stand for."""

    @property
    def says(self) -> str:
        """In a sentence."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names; none where labels are numbers."""

    def to_json(self) -> str: ...


class FeaturePreparation(Protocol):
    """How a table became features."""

    def to_json(self) -> str: ...

    @property
    def row_dependent_columns(self) -> Sequence[str]:
        """Columns whose preparation follows from single rows."""

    @property
    def feature_places(self) -> Mapping[str, Sequence[int]]:
        """Which features each column became."""

    @property
    def slopes(self) -> Sequence[tuple[str, float | None]]:
        """Every feature's name, and its slope along the column's own unit; None where it is no straight line."""

    @property
    def code_names(self) -> Sequence[Sequence[str]]:
        """What the codes of each of the first features stand for, where categories are codes."""

    def describe(self) -> list[dict[str, Any]]: ...


def collect_metadata(party: object) -> dict[str, str]:
    """What belongs beside a party's model, as JSON: `preparation` of its table, `labels` for their coding."""
    found = {"preparation": getattr(party, "preparation", None), "labels": getattr(party, "coding", None)}
    return {name: part.to_json() for name, part in found.items() if part is not None}


def accepts_gaps(model: nn.Module | None) -> bool:
    """Can the model's input hold NaN, for missing values?"""
    return bool(getattr(model, "accepts_gaps", False))


def _convert_features(party: Any) -> None:
    """All tables of a party as tensors; missing values only where its bottom model can take them."""
    with_gaps = accepts_gaps(party.bottom)
    for table in ("features", "validation_features", "test_features", "unaligned_features"):
        if getattr(party, table, None) is not None:
            setattr(party, table, to_float_tensor(party.name, table, getattr(party, table), with_gaps))


def _name_table(which: HeldOut | None, what: str) -> str:
    return what if which is None else f"{which}_{what}"


def _convert_groups(party: FeatureParty) -> None:
    """Indices as tensors, into tables of their own, where every owner has a row."""
    tables = {which: getattr(party, _name_table(which, "features")) for which in (*HeldOut, None)}
    for which, table in tables.items():
        index, name = getattr(party, _name_table(which, "group")), _name_table(which, "group")
        where = f"party {party.name!r}: {name}"
        if index is None:
            if table is not None and party.group is not None:
                raise BadInput(f"{where} is missing: give each row's row of {_name_table(which, 'features')}")
            continue
        if party.group is None:
            raise BadInput(f"{where} belongs to group, which is missing: give the owners of the training rows too")
        owned = party.features if table is None else table
        found = check_index(where, _read_index(where, index), len(owned))
        owned, found = renumber_owners(owned, found)
        setattr(party, _name_table(which, "features"), owned)
        setattr(party, name, found)


def _read_index(where: str, values: Any) -> Tensor:
    tensor = values if isinstance(values, Tensor) else _to_tensor(_read_array(where, values))
    return tensor.cpu()


def _join_rows(party: Any) -> Tensor:
    more = party.unaligned_features
    found: Tensor = party.features if more is None else torch.cat([party.features, more])
    return found


@dataclass(eq=False)
class FeatureParty:
    """Holds columns and a bottom model; no labels.

    With `group`, features have one row for each owner of rows (a user of ratings), and `group` says for every row of
    the run which of them it belongs to. Held-out rows have a group of their own, into their own features where given,
    else into `features`. Owners that no row belongs to are left out.

    Args:
        name: letters, digits, `-` and `_`; not "top".
        features: training rows [N, ...]: a tensor, an array, a data frame or lists, all numbers.
        bottom: a torch module or one of `tw.learners`; trained in place.
        test_features: rows that are scored once, with the delivered model.
        optimizer: the job's unless given.
        preparation: where the features come from a table of any columns.
        validation_features: rows that steer: early stopping, the best model, targets.
        unaligned_features: rows that the other parties lack; encoders and pre-training learn from them too.
        group: each row's owner, as a row of `features`.
        validation_group: the same for validation rows.
        test_group: the same for test rows.

    Raises:
        BadInput: a name or a model that cannot be one, or features that are no numbers (`BadColumn`), not finite
            (`NotFinite`) or of the wrong shape (`BadTensor`); the message names party, row and column.

    Examples:
        >>> import torch
        >>> tw.FeatureParty("bank", features=torch.rand(8, 3), bottom=torch.nn.Linear(3, 2)).features.shape
        torch.Size([8, 3])
    """

    name: str
    features: Any  # [N, ...]
    bottom: nn.Module
    test_features: Any = None
    optimizer: OptimizerSpec | None = None  # the job's unless given
    preparation: FeaturePreparation | None = None  # where the features come from a table of any columns
    validation_features: Any = None  # rows that steer: early stopping, the best model, targets
    unaligned_features: Any = None  # of rows that others lack: encoders and pre-training learn from them too
    group: Any = None  # [N]: each row's owner, as a row of `features`
    validation_group: Any = None
    test_group: Any = None
    width: int | None = field(default=None, init=False)  # of its embedding, once it was measured

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.bottom, nn.Module):
            wanted = "a torch module or one of tw.learners"
            raise BadInput(f"party {self.name!r}: bottom must be {wanted}, got {type(self.bottom).__name__}")
        _convert_features(self)
        _convert_groups(self)

    @property
    def owners(self) -> Groups | None:
        """Of its rows; None where each is its own."""
        if self.group is None:
            return None
        held_out = {which: getattr(self, f"{which}_group") for which in self.held_out}
        return Groups(RowOwners.of(self.group), {which: RowOwners.of(index) for which, index in held_out.items()})

    def count_rows(self, which: HeldOut | None = None) -> int:
        """Of the run's rows, whatever their owners: training rows unless `which` says otherwise; 0 for none."""
        table = getattr(self, _name_table(which, "group" if self.group is not None else "features"))
        return 0 if table is None else len(table)

    def list_rows(self, which: HeldOut | None = None) -> Any:
        """Features with a row for each row of the run, an owner's in each of its rows; None where there are none."""
        table, index = (getattr(self, _name_table(which, what)) for what in ("features", "group"))
        return table if table is None or index is None else table.index_select(0, index.to(table.device))

    def without_held_out_rows(self) -> FeatureParty:
        """The same party with its training rows alone."""
        return replace(self, validation_features=None, validation_group=None, test_features=None, test_group=None)

    @property
    def all_rows(self) -> Tensor:
        """Of every row that teaches without a label: training rows, and those that others lack."""
        return _join_rows(self)

    @property
    def held_out(self) -> dict[HeldOut, Tensor]:
        """Features of the rows that are kept back."""
        tables = {which: getattr(self, f"{which}_features") for which in HeldOut}
        return {which: table for which, table in tables.items() if table is not None}

    def __repr__(self) -> str:
        tables = _format_tables(self, ("features", "validation_features", "test_features", "group", "bottom"))
        return f"FeatureParty({self.name!r}, {tables})"


@dataclass(eq=False)
class LabelParty:
    """Holds the labels and the top model; may hold features and a bottom model too.

    `sample_weight` multiplies each training row's loss, and so its derivatives: they show a row's weight to feature
    parties as they show its label.

    Args:
        name: as a feature party's.
        labels: of the training rows [N]: class numbers from 0, or values.
        top: a torch module from the fused embeddings to the loss's input; trained in place.
        test_labels: of rows that are scored once, with the delivered model.
        features: columns of its own, with `bottom`.
        test_features: of the test rows.
        bottom: the model of its own columns.
        fusion: how embeddings meet: "sum", "mean" or "concat".
        loss: from outputs and labels to one loss a row; see `tw.losses`.
        class_weights: multiply the loss of each class.
        optimizer: the job's unless given.
        preparation: where the features come from a table of any columns.
        coding: what the labels' numbers stand for.
        validation_labels: of rows that steer: early stopping, the best model, targets.
        validation_features: of the same rows.
        sample_weight: of every training row [N].
        unaligned_features: rows that the other parties lack.

    Raises:
        BadInput: `features` without `bottom`, or labels that cannot be some (`BadLabels`).

    Examples:
        >>> import torch
        >>> tw.LabelParty("shop", labels=[0, 1, 1], top=torch.nn.Linear(2, 2)).labels
        tensor([0, 1, 1])
    """

    name: str
    labels: Any  # [N]
    top: nn.Module
    test_labels: Any = None
    features: Any = None
    test_features: Any = None
    bottom: nn.Module | None = None
    fusion: str = "sum"
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    class_weights: Sequence[float] | None = None
    optimizer: OptimizerSpec | None = None
    preparation: FeaturePreparation | None = None
    coding: LabelMeaning | None = None  # what the labels' numbers stand for
    validation_labels: Any = None  # of rows that steer: early stopping, the best model, targets
    validation_features: Any = None
    sample_weight: Any = None  # [N]; 1 for every row unless given
    unaligned_features: Any = None  # of rows that others lack: encoders and pre-training learn from them too

    def __post_init__(self) -> None:
        check_name(self.name)
        self.labels = self._labels("labels", self.labels)
        for column in ("validation_labels", "test_labels"):
            if getattr(self, column) is not None:
                setattr(self, column, self._labels(column, getattr(self, column)))
        if (self.features is None) != (self.bottom is None):
            raise BadInput(f"party {self.name!r}: features and bottom must be given together")
        _convert_features(self)
        if not isinstance(self.top, nn.Module):
            raise BadInput(f"party {self.name!r}: top must be a torch module, got {type(self.top).__name__}")
        if self.class_weights is not None:
            self.loss = with_class_weights(self.loss, self.class_weights)
        if self.sample_weight is not None:
            self.sample_weight = self._weights(self.sample_weight)

    def training_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One loss a training row, all of them in order, times its weight."""
        losses = self.loss(outputs, labels)
        return losses if self.sample_weight is None else losses * self.sample_weight.to(losses)

    def __repr__(self) -> str:
        tables = ("labels", "validation_labels", "test_labels", "top")
        own = ("features", "validation_features", "test_features", "bottom", "sample_weight")
        return f"LabelParty({self.name!r}, {_format_tables(self, (*tables, *own))})"

    def _weights(self, values: Any) -> Tensor:
        where = f"party {self.name!r}: sample_weight"
        weights = to_float_tensor(self.name, "sample_weight", values).float()
        if weights.shape != (len(self.labels), 1):
            shape = list(weights[:, 0].shape if weights.shape[1:] == (1,) else weights.shape)
            raise BadTensor(f"{where} must hold one number per row, {len(self.labels)} of them, got shape {shape}")
        if bool((weights < 0).any()) or not bool(weights.any()):
            raise BadTensor(f"{where} must be 0 or more, and not zero for all rows")
        return weights[:, 0]

    @property
    def all_rows(self) -> Tensor:
        """Of every row that teaches without a label: training rows, and those that others lack."""
        return _join_rows(self)

    @property
    def held_out(self) -> dict[HeldOut, Tensor]:
        """Labels of the rows that are kept back."""
        columns = {which: getattr(self, f"{which}_labels") for which in HeldOut}
        return {which: labels for which, labels in columns.items() if labels is not None}

    def count_rows(self, which: HeldOut | None = None) -> int:
        """That it has features of."""
        table = self.list_rows(which)
        return 0 if table is None else len(table)

    def list_rows(self, which: HeldOut | None = None) -> Any:
        """Its own features; None where there are none."""
        return getattr(self, _name_table(which, "features"))

    def without_held_out_rows(self) -> LabelParty:
        """The same party with its training rows alone."""
        return replace(
            self,
            validation_labels=None,
            validation_features=None,
            test_labels=None,
            test_features=None,
            class_weights=None,  # they are in the loss by now
        )

    def _labels(self, field: str, values: Any) -> Tensor:
        tensor = values if isinstance(values, Tensor) else self._read_labels(field, values)
        if tensor.dim() < 1 or len(tensor) == 0:
            raise BadTensor(f"party {self.name!r}: {field} must have at least one row")
        if tensor.is_floating_point():
            if not bool(torch.isfinite(tensor).all()):
                raise BadTensor(f"party {self.name!r}: {field} hold NaN or infinity")
            return tensor.float()
        return tensor.long()

    def _read_labels(self, field: str, values: Any) -> Tensor:
        where = f"party {self.name!r}: {field}"
        array = _read_array(where, values)
        if not _is_numeric(array):
            raise BadLabels(
                f"{where} hold {_name_kind(array)}, not numbers; encode classes with `classes, codes = "
                "np.unique(labels, return_inverse=True)`, or use tw.VerticalClassifier"
            )
        return _to_tensor(array)
