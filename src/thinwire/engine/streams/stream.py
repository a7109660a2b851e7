"""Streams: all the state of one directed tensor flow.

`Direct` and `ErrorFeedback` are settings, frozen values that a recipe holds; `open(flow)` makes one end of
a stream, which owns its memory. The sender calls `outgoing`, the receiver `incoming`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from thinwire.base.errors import (
    BadParameter,
    BadState,
    BadTensor,
    IncompatibleRecipe,
    Malformed,
    NotFinite,
    SurrogatesDiffer,
)
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Round
from thinwire.engine.compress import Compressor, Hint, Remembers, Symbols
from thinwire.engine.compress.message import require_finite, require_message
from thinwire.engine.compress.randomness import Randomness
from thinwire.engine.streams.storage import Storage
from thinwire.engine.streams.surrogate import Surrogate, list_rows

Rows: TypeAlias = Tensor  # int64 [B]: indices in the agreed alignment, all different


@dataclass(frozen=True, slots=True)
class RoundSeeds:
    """A generator for each round, from the run's seed and the stream's name, so that runs can be resumed.

    Never for privacy noise: that comes from a `Keystream` with a secret key.

    Args:
        seed: of the run.
        name: of the stream.

    Examples:
        >>> seeds = tw.streams.RoundSeeds(0, "bank/uplink")
        >>> torch.rand(1, generator=seeds(3)) == torch.rand(1, generator=seeds(3))
        tensor([True])
    """

    seed: int
    name: str

    def __call__(self, round: Round, _: Tensor | None = None) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, self.name, round))


@dataclass(frozen=True, slots=True)
class Flow:
    """What a stream carries.

    Args:
        name: for messages, such as "bank/uplink".
        rows: N, of the whole alignment.
        width: E.
        randomness: generator of one round's message.
        storage: where large tables live.

    Examples:
        >>> tw.streams.Flow("bank/uplink", 1000, 16, tw.streams.RoundSeeds(0, "bank/uplink")).width
        16
    """

    name: str  # for example "bank/uplink"
    rows: int  # N, of the whole alignment
    width: int  # E
    randomness: Callable[[Round, Tensor], Randomness]  # for one round's message
    storage: Storage = Storage()


class Stream(Protocol):
    """One end of a directed tensor flow. The two ends share no state unless the stream says so.

    Examples:
        >>> spec = tw.streams.Direct(tw.compress.Sign())
        >>> end = spec.open(tw.streams.Flow("bank/uplink", 4, 2, tw.streams.RoundSeeds(0, "bank/uplink")))
        >>> end.outgoing(torch.arange(4), torch.ones(4, 2), 0).shape
        (4, 2)
    """

    level: int = 0  # of precision, of what is sent from now on

    def outgoing(self, rows: Rows, x: Tensor, round: Round) -> Symbols:
        """What to send of `x`, the tensor of these rows."""
        ...

    def message_shape(self, rows: Rows) -> tuple[int, int]:
        """Of a message about these rows."""
        ...

    def incoming(self, rows: Rows, symbols: Symbols, round: Round) -> Tensor:
        """What the other end's tensor of these rows is taken to be; shape [B, E]."""
        ...

    def observe(self, rows: Rows, derivative: Tensor) -> None:
        """Shows the sender the derivative that came back, for selections that look at it."""

    def digest(self) -> int | None:
        """A digest of what both ends must hold alike; None where they share nothing."""
        return None

    def verify(self, theirs: int | None, round: Round) -> None:
        """Stops the run where the other end's digest is another one."""

    def tensors(self) -> dict[str, Tensor]:
        """What to save: the tensors themselves, not copies, so save them before the next round."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True)
class Direct:
    """Sends C(x).

    Args:
        compressor: any compressor.

    Raises:
        BadParameter: not a compressor.

    Examples:
        >>> tw.streams.Direct(tw.compress.QSGD(4)).memory_bytes(rows=1000, width=16)
        0
    """

    compressor: Compressor

    def __post_init__(self) -> None:
        if not isinstance(self.compressor, Compressor):
            raise BadParameter.about("Direct", "compressor", f"must be a compressor, got {self.compressor!r}")

    def open(self, flow: Flow) -> Stream:
        return _DirectStream(self.compressor, flow)

    def memory_bytes(self, rows: int, width: int) -> int:
        """What each end holds besides the message."""
        return 4 * rows * width if self.compressor.remembers is Remembers.ROWS else 0


@dataclass(frozen=True, slots=True)
class ErrorFeedback:
    """Sends C(x - G); both ends add the decoded symbols to their surrogate G, which tracks x.

    Args:
        compressor: one that suits error feedback.
        scope: "rows": x is the batch. "table": x is recomputed on all N rows; the receiver uses the batch's rows of
            G.

    Raises:
        IncompatibleRecipe: the compressor does not shrink the remaining error.
        BadParameter: not a compressor, or an unknown scope.

    Examples:
        >>> tw.streams.ErrorFeedback(tw.compress.TopK(0.1)).memory_bytes(rows=1000, width=16)
        64000
    """

    compressor: Compressor
    scope: str = "rows"

    def __post_init__(self) -> None:
        if self.scope not in ("rows", "table"):
            raise BadParameter.about("ErrorFeedback", "scope", f"must be 'rows' or 'table', got {self.scope!r}")
        if not isinstance(self.compressor, Compressor):
            raise BadParameter.about("ErrorFeedback", "compressor", f"must be a compressor, got {self.compressor!r}")
        if not self.compressor.suits_error_feedback:
            raise IncompatibleRecipe(
                f"ErrorFeedback: {self.compressor} does not shrink the remaining error, so error feedback would "
                "never correct it. Use TopK with select='magnitude', QSGD, StdGrid with a step up to 2, or Uniform "
                "or HexLattice with 2 bits or more; or send it with Direct"
            )

    def open(self, flow: Flow) -> Stream:
        return _ErrorFeedbackStream(self, flow)

    def memory_bytes(self, rows: int, width: int) -> int:
        """What each end holds besides the message."""
        return 4 * rows * width


StreamSpec: TypeAlias = Direct | ErrorFeedback


class _DirectStream(Stream):
    def __init__(self, compressor: Compressor, flow: Flow) -> None:
        self._compressor = compressor
        self._flow = flow
        self._memory: dict[str, Tensor] = {}
        if compressor.remembers is Remembers.ROWS:
            self._memory["derivatives"] = torch.zeros(flow.rows, flow.width, dtype=torch.float32)
            self._memory["seen"] = torch.zeros(flow.rows, dtype=torch.bool)
        elif compressor.remembers is Remembers.COLUMNS:
            self._memory["columns"] = torch.zeros(flow.width, dtype=torch.float32)
            self._memory["seen"] = torch.zeros(1, dtype=torch.bool)

    def outgoing(self, rows: Rows, x: Tensor, round: Round) -> Symbols:
        _require_rows(rows, self._flow)
        _require_shape(x, self.message_shape(rows), self._flow)
        with _naming(f"stream {self._flow.name!r}, round {round}: the tensor", rows):
            return self._compressor.compress(
                x, self._flow.randomness(round, x), Hint(round, self._remembered(rows), self.level)
            )

    def incoming(self, rows: Rows, symbols: Symbols, round: Round) -> Tensor:
        _require_rows(rows, self._flow)
        _require_symbols(symbols, self.message_shape(rows), self._flow, round)
        return symbols.to_tensor()

    def message_shape(self, rows: Rows) -> tuple[int, int]:
        return len(rows), self._flow.width

    def observe(self, rows: Rows, derivative: Tensor) -> None:
        if self._compressor.remembers is Remembers.NOTHING:
            return
        _require_rows(rows, self._flow)
        _require_shape(derivative, (len(rows), self._flow.width), self._flow)
        derivative = require_message(derivative).float()
        with _naming(f"stream {self._flow.name!r}: the derivative", rows):
            require_finite(derivative)
        if self._compressor.remembers is Remembers.ROWS:
            self._memory["derivatives"][rows] = derivative
            self._memory["seen"][rows] = True
        else:
            self._memory["columns"].copy_(derivative.abs().mean(dim=0))
            self._memory["seen"].fill_(True)

    def _remembered(self, rows: Rows) -> Tensor | None:
        """The derivative to choose by; None while one of these rows was never visited."""
        if self._compressor.remembers is Remembers.ROWS and bool(self._memory["seen"][rows].all()):
            return self._memory["derivatives"][rows]
        if self._compressor.remembers is Remembers.COLUMNS and bool(self._memory["seen"]):
            return self._memory["columns"]
        return None

    def verify(self, theirs: int | None, round: Round) -> None:
        """The ends share nothing."""

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._memory)

    def load(self, state: Mapping[str, Tensor]) -> None:
        _require_names(state, set(self._memory), self._flow)
        for name, held in self._memory.items():
            if state[name].dtype != held.dtype or state[name].shape != held.shape:
                raise BadState(
                    f"stream {self._flow.name!r}: the saved {name!r} is {state[name].dtype} "
                    f"{tuple(state[name].shape)}, not {held.dtype} {tuple(held.shape)}"
                )
        for name, held in self._memory.items():
            held.copy_(state[name])


class _ErrorFeedbackStream(Stream):
    def __init__(self, spec: ErrorFeedback, flow: Flow) -> None:
        self._compressor = spec.compressor
        self._whole_table = spec.scope == "table"
        self._flow = flow
        self._surrogate = Surrogate(flow.rows, flow.width, flow.storage)

    def outgoing(self, rows: Rows, x: Tensor, round: Round) -> Symbols:
        _require_rows(rows, self._flow)
        _require_shape(x, self.message_shape(rows), self._flow)
        x = require_message(x).float()
        error = x - self._surrogate.table if self._whole_table else self._surrogate.subtract_from(rows, x)
        chosen = None if self._whole_table else rows
        with _naming(f"stream {self._flow.name!r}, round {round}: the tensor", chosen):
            symbols = self._compressor.compress(
                error, self._flow.randomness(round, error), Hint(round, level=self.level)
            )
        self._add(rows, symbols)
        return symbols

    def incoming(self, rows: Rows, symbols: Symbols, round: Round) -> Tensor:
        _require_rows(rows, self._flow)
        _require_symbols(symbols, self.message_shape(rows), self._flow, round)
        self._add(rows, symbols)
        received = self._surrogate.at(rows)
        if not bool(torch.isfinite(torch.stack(torch.aminmax(received))).all()):
            raise Malformed(f"stream {self._flow.name!r}, round {round}: the symbols leave the range of float32")
        return received

    def _add(self, rows: Rows, symbols: Symbols) -> None:
        # Decoded symbols, not our floats: these are what the other end sees.
        decoded = symbols.to_tensor()
        if decoded.dtype != torch.float32:
            raise Malformed(f"stream {self._flow.name!r}: {decoded.dtype} symbols, error feedback sends float32")
        if self._whole_table:
            self._surrogate.add_all(decoded)
        else:
            self._surrogate.add(rows, decoded)

    def message_shape(self, rows: Rows) -> tuple[int, int]:
        return (self._flow.rows if self._whole_table else len(rows), self._flow.width)

    def observe(self, rows: Rows, derivative: Tensor) -> None:
        """Contractive compressors look at the message alone."""

    def digest(self) -> int | None:
        return self._surrogate.digest()

    def verify(self, theirs: int | None, round: Round) -> None:
        ours = self._surrogate.digest()
        if ours != theirs:
            raise SurrogatesDiffer(self._flow.name, round, ours, theirs)

    def tensors(self) -> dict[str, Tensor]:
        return {"surrogate": self._surrogate.table}

    def load(self, state: Mapping[str, Tensor]) -> None:
        _require_names(state, {"surrogate"}, self._flow)
        self._surrogate.load(state["surrogate"])


@contextmanager
def _naming(what: str, rows: Rows | None) -> Iterator[None]:
    """NaN and infinity are refused with what holds them and the row of the alignment."""
    try:
        yield
    except NotFinite as error:
        row, column = error.index
        row = row if rows is None else int(rows[row])
        raise NotFinite(error.value, (row, column), f"{what} [row, column]") from None


def _require_rows(rows: Rows, flow: Flow) -> None:
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.dim() != 1 or rows.shape[0] == 0:
        raise BadTensor(f"stream {flow.name!r}: rows must be an int64 tensor of one dimension, with at least one row")
    if len(rows) == flow.rows and rows is list_rows(flow.rows):
        return
    places = rows.numpy()  # a batch's rows are few: torch takes longer to be called than to look
    low, high = int(places.min()), int(places.max())
    if low < 0 or high >= flow.rows:
        raise BadTensor(f"stream {flow.name!r}: rows {low} to {high}, there are 0 to {flow.rows - 1}")


def _require_shape(x: Tensor, shape: tuple[int, int], flow: Flow) -> None:
    if tuple(x.shape) != shape:
        raise BadTensor(f"stream {flow.name!r}: a tensor of shape {tuple(x.shape)}, expected {shape}")


def _require_symbols(symbols: Symbols, shape: tuple[int, int], flow: Flow, round: Round) -> None:
    if symbols.shape != shape:
        raise Malformed(
            f"stream {flow.name!r}, round {round}: symbols of shape {symbols.shape} came in, expected {shape}"
        )


def _require_names(state: Mapping[str, Tensor], names: set[str], flow: Flow) -> None:
    if set(state) != names:
        raise BadState(
            f"stream {flow.name!r}: the saved state holds {sorted(state)}, expected {sorted(names)}; "
            "was it saved with another recipe?"
        )
