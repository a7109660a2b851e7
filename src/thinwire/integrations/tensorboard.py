"""TensorBoard: event files in a folder, by torch's own writer or by tensorboardX."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.base.extras import needed
from thinwire.integrations.writer import Ending, Opening, Writer


class TensorBoard(Writer):
    """Curves of every number; the parameters and the way to the report as text. `tensorboard --logdir` shows them."""

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        """Into `folder`, or into `tensorboard` in the run's own folder."""
        super().__init__()
        self._folder = None if folder is None else Path(folder)
        module = "tensorboardX" if _has("tensorboardX") and not _has("tensorboard") else "torch.utils.tensorboard"
        self._library = needed(module, "writing for TensorBoard", "tensorboard")
        self._summary: Any = None

    def _open(self, opening: Opening) -> None:
        folder = self._folder or (None if opening.folder is None else opening.folder / "tensorboard")
        if folder is None:
            raise BadInput("TensorBoard needs a folder: TensorBoard('logs'), or a run with out=")
        # A resumed run is written whole once more: 0 hides what an earlier attempt left in the folder.
        self._summary = self._library.SummaryWriter(str(folder), purge_step=0 if opening.goes_on else None)
        self._summary.add_text("parameters", _table(opening.parameters), 0)
        self._summary.flush()

    def _write(self, values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            self._summary.add_scalar(name, value, round)
        self._summary.flush()  # whoever looks on wants to see it now

    def _close(self, ending: Ending | None) -> None:
        if ending is not None and ending.folder is not None:
            said = f"`{(ending.folder / 'report.html').resolve()}`"
            self._summary.add_text("report", said, ending.round)
        self._summary.close()


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _table(rows: Mapping[str, object]) -> str:
    """As Markdown, which TensorBoard shows."""
    return "\n".join(
        ["| parameter | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    )
