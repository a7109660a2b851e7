"""Trackers: MLflow, TensorBoard, Weights & Biases; each is loaded only when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.base.extras import require_extra
from thinwire.base.format import did_you_mean
from thinwire.integrations.tracker import Ending, Opening, RunWriter, with_report

_LONGEST = 500  # characters of a parameter; servers before 2.0 take no more


class MLflow(RunWriter):
    """Metrics, parameters, and the report as an artifact.

    Into the run that is active (`with mlflow.start_run():`), which stays open; else into a run of its own.
    """

    name = "mlflow"

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        """Where none is given, the experiment and the server that MLflow itself is set to."""
        super().__init__()
        self._library = require_extra("mlflow", "writing for MLflow", "mlflow")
        self._experiment = experiment
        self._uri = tracking_uri
        self._client: Any = None
        self._run = ""
        self._is_ours = False

    def _open(self, opening: Opening) -> None:
        if self._uri is not None:
            self._library.set_tracking_uri(self._uri)
        if self._experiment is not None:
            self._library.set_experiment(self._experiment)
        active = self._library.active_run()
        self._is_ours = active is None
        # Evaluations come from a thread of the run's, where MLflow knows of no active run: all goes by the run's id.
        run = self._library.start_run(run_name=opening.name) if active is None else active
        self._run = run.info.run_id
        self._client = self._library.MlflowClient()
        try:
            for name, value in opening.parameters.items():
                self._client.log_param(self._run, name, str(value)[:_LONGEST])
        except Exception:
            self._close(None)
            raise

    def _write(self, values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=round)

    def _close(self, ending: Ending | None) -> None:
        try:
            if ending is not None:
                with_report(ending, lambda file: self._client.log_artifact(self._run, str(file)))
        finally:
            if self._is_ours:
                self._library.end_run(status=_status(ending))


def _status(ending: Ending | None) -> str:
    if ending is None:
        return "FAILED"
    return "KILLED" if ending.interrupted else "FINISHED"


# TensorBoard: event files in a folder, by torch's own writer or by tensorboardX -----------------------------------


class TensorBoard(RunWriter):
    """Curves of every number; the parameters and the way to the report as text. `tensorboard --logdir` shows them."""

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        """Into `folder`, or into `tensorboard` in the run's own folder."""
        super().__init__()
        self._folder = None if folder is None else Path(folder)
        module = "tensorboardX" if _has("tensorboardX") and not _has("tensorboard") else "torch.utils.tensorboard"
        self._library = require_extra(module, "writing for TensorBoard", "tensorboard")
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


# Weights & Biases: one run of a project. By default it goes to their servers: see docs/integrations.md ------------


# What it would send unasked: all that the process prints, and where its code comes from.
_SETTINGS = {"console": "off", "disable_git": True, "disable_code": True}


class Wandb(RunWriter):
    """Metrics, the parameters as the run's config, and the report as an artifact."""

    name = "wandb"

    def __init__(self, project: str = "thinwire", mode: str | None = None) -> None:
        """`mode="offline"` keeps everything on this machine; without it WANDB_MODE decides."""
        super().__init__()
        self._library = require_extra("wandb", "writing for Weights & Biases", "wandb")
        self._project = project
        self._mode = mode
        self._run: Any = None

    def _open(self, opening: Opening) -> None:
        self._run = self._library.init(
            project=self._project,
            name=opening.name,
            config=dict(opening.parameters),
            mode=self._mode,
            settings=dict(_SETTINGS),
        )

    def _write(self, values: Mapping[str, float], round: int) -> None:
        self._run.log(dict(values), step=round)

    def _close(self, ending: Ending | None) -> None:
        try:
            if ending is not None:
                with_report(ending, self._keep)
        finally:
            self._run.finish(exit_code=0 if ending is not None and not ending.interrupted else 1)

    def _keep(self, file: Path) -> None:
        artifact = self._library.Artifact(f"report-{self._run.id}", type="report")
        artifact.add_file(str(file))  # makes a copy: ours is gone when this ends
        self._run.log_artifact(artifact)


# Writers by their names, as the command line gives them -----------------------------------------------------------


WRITERS: dict[str, type[RunWriter]] = {writer.name: writer for writer in (TensorBoard, MLflow, Wandb)}


def build_writers(text: str) -> list[RunWriter]:
    """One for each name, with commas between; refuses what is not known or not installed."""
    names = list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if not names:
        raise BadInput(f"--log-to: name one of {', '.join(WRITERS)}, or several with commas between")
    for name in names:
        if name not in WRITERS:
            raise BadInput(f"--log-to: {name!r} is not one of {', '.join(WRITERS)}{did_you_mean(name, WRITERS)}")
    return [WRITERS[name]() for name in names]
