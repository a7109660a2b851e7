"""What predictions cost under a privacy guarantee: charged, and on disk, before embeddings leave.

The ledger goes on where the training's ended. Every question has a number that is used once: noise and masks follow
from it, so a question that is asked again is a new release, under new noise, and is charged again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from thinwire.base.errors import BadInput, BadState, ThinwireError
from thinwire.base.types import PartyName, Round
from thinwire.engine.privacy.accounting import PrivacyLedger
from thinwire.engine.protocols.context import remove_prefix
from thinwire.storage.private_state import PrivateState

_CHARGE = "prediction "


class QuestionRepeated(ThinwireError):
    """A question's number was used before: its noise and masks would serve twice."""


class PredictionCharges:
    """Implements `Releases`. `of` names the table whose rows are counted, `offset` where they stand in the ledger."""

    def __init__(self, log: Path, private: PrivateState, ledger: PrivacyLedger, of: str, offset: int = 0) -> None:
        self.next_number = 0
        self._private = private
        self._ledger = ledger
        self._of = of
        self._offset = offset
        # Two processes that count apart would use a number twice.
        self._lock = _locked(log.with_suffix(".lock"))
        try:
            self._log = private.open_charges(log)
            self._read(log)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the record to another process."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def release(self, round: Round, rows: Tensor, use: str) -> None:
        if self._lock is None:
            raise BadState(f"{self._of}: the record of predictions is closed")
        if round < self.next_number:
            raise QuestionRepeated(f"question {round} was asked before; the next one is {self.next_number}")
        counted = rows.numpy() + self._offset
        self._ledger.charge_release(counted)
        self._log.record(f"{_CHARGE}{round}", lambda: {"of": self._of, "rows": format_ranges(counted)})
        self._private.keep_charges()
        self.next_number = round + 1

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: the log is the record."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """There is nothing to take."""

    def _read(self, log: Path) -> None:
        for held in self._log.entries():
            charge = str(held["charge"])
            if not charge.startswith(_CHARGE):
                continue
            try:
                self.next_number = max(self.next_number, int(charge.removeprefix(_CHARGE)) + 1)
                if held["of"] == self._of:
                    self._ledger.charge_release(np.concatenate(parse_ranges(held["rows"])))
            except (ValueError, KeyError, TypeError) as error:
                raise BadState(f"{log}: the record of predictions is damaged ({error})") from None


def _locked(file: Path) -> int | None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise BadInput(
            f"{file.with_suffix('.jsonl')}: another process is already predicting with this run; stop it first"
        ) from None
    return descriptor


def load_training_charges(tensors: Mapping[str, Tensor], ledger: PrivacyLedger, party: PartyName) -> None:
    """Takes over what a checkpoint's tensors say of every training and test row."""
    spent = remove_prefix("spending", remove_prefix("sealing", tensors))
    if not spent:
        raise BadState(
            f"{party!r}: its checkpoint holds no privacy ledger, so the privacy its rows have already spent is "
            "unknown"
        )
    ledger.load({name: counts.numpy() for name, counts in spent.items()})


def format_ranges(rows: npt.NDArray[np.integer]) -> str:
    """Rows in order as few ranges: 0-99,250."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(rows)])) - 1
    pairs = zip(rows[starts].tolist(), rows[ends].tolist(), strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def parse_ranges(text: str) -> list[npt.NDArray[np.int64]]:
    """What `format_ranges` wrote."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.append(np.arange(int(first), int(last or first) + 1))
    return found
