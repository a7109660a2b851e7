"""TensorBoard: event files in a folder, by torch's own writer or by tensorboardX."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from thinwire.errors import BadInput
from thinwire.extras import needed
from thinwire.integrations.writer import Writer, parameters
from thinwire.job import Result
from thinwire.job.callbacks import Begun

__all__ = ["TensorBoard"]


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

    def _open(self, begun: Begun) -> None:
        folder = self._folder or (None if begun.folder is None else begun.folder / "tensorboard")
        if folder is None:
            raise BadInput("TensorBoard needs a folder: TensorBoard('logs'), or a run with out=")
        # A resumed run is written whole once more: 0 hides what an earlier attempt left in the folder.
        self._summary = self._library.SummaryWriter(str(folder), purge_step=0 if begun.history else None)
        self._summary.add_text("parameters", _table(parameters(begun.job)), 0)
        self._summary.flush()

    def _write(self, values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            self._summary.add_scalar(name, value, round)
        self._summary.flush()  # whoever looks on wants to see it now

    def _close(self, result: Result | None) -> None:
        if result is not None and result.run_dir is not None:
            said = f"`{(result.run_dir / 'report.html').resolve()}`"
            self._summary.add_text("report", said, int(result.history[-1]["round"]))
        self._summary.close()


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _table(rows: Mapping[str, object]) -> str:
    """As Markdown, which TensorBoard shows."""
    return "\n".join(
        ["| parameter | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    )
