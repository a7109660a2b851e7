"""Trackers: what a run tells TensorBoard, MLflow and Weights & Biases, and what happens when one of them fails."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from thinwire import __version__
from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.extras import require_extra
from thinwire.base.format import did_you_mean
from thinwire.engine.recipe import Recipe
from thinwire.job.job import Job
from thinwire.storage import layout
from thinwire.training.callbacks import RunStart
from thinwire.training.result import Result

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """What a writer is told of a run before its first round."""

    name: str
    parameters: Mapping[str, str | int | float]
    folder: Path | None  # None: nothing is kept
    goes_on: bool  # evaluations there are already will be written once more


@dataclass(frozen=True)
class Ending:
    """What a writer is told of a run that has not failed."""

    interrupted: bool
    round: int
    folder: Path | None
    report: Callable[[Path], Path | None]  # writes it there; None where there is none


class RunWriter(ABC):
    """A follower of one run at a time.

    What keeps it from beginning keeps the run from starting. What goes wrong later, such as a server that is away, is
    logged once and ends the writing alone: the run is worth more than its copy.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._writing = False

    def begin(self, begun: RunStart) -> None:
        self.open(Opening(run_name(begun), parameters(begun.job), begun.folder, bool(begun.history)))
        for event in begun.history:
            self(event)

    def open(self, opening: Opening) -> None:
        """Begins to write; a run's followers are told by `begin`."""
        try:
            with redirect_stdout(sys.stderr):  # theirs for people; ours may be read by a program
                self._open(opening)
        except ThinwireError:
            raise
        except Exception as error:
            why = str(error).strip().rstrip(".")
            raise BadInput(f"{self.name} cannot be written to: {why}. Nothing was started") from error
        self._writing = True

    def __call__(self, event: dict[str, Any]) -> None:
        self._guard(lambda: self._write(scalars(event), int(event["round"])))

    def end(self, result: Result | None) -> None:
        self.close(None if result is None else _ending(result))

    def close(self, ending: Ending | None) -> None:
        """None where the run failed."""
        self._guard(lambda: self._close(ending))
        self._writing = False

    def _guard(self, write: Callable[[], None]) -> None:
        if not self._writing:
            return
        try:
            with redirect_stdout(sys.stderr):
                write()
        except Exception as error:  # noqa: BLE001  # a library and a server of others
            self._writing = False
            _log.warning("%s can no longer be written to (%s); the run goes on without it", self.name, error)

    @abstractmethod
    def _open(self, opening: Opening) -> None: ...

    @abstractmethod
    def _write(self, values: Mapping[str, float], round: int) -> None: ...

    @abstractmethod
    def _close(self, ending: Ending | None) -> None:
        """None where the run failed."""


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation by their place, as test/accuracy and bytes/up; the round is the step."""
    found = dict(_leaves(event, ""))
    del found["round"]
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    }


def parameters(job: Job) -> dict[str, str | int | float]:
    """What the run was asked to do: the recipe part by part, and the settings beside it; no data, no paths."""
    settings = {
        "seed": job.seed,
        "epochs": job.epochs,
        "batch_size": job.batch_size,
        "eval_every": job.eval_every,
        "optimizer": str(job.optimizer),
        "feature_parties": ", ".join(party.name for party in job.parties),
        "label_party": job.label_party.name,
        "fusion": job.label_party.fusion,
        "rows": job.rows,
        "link": job.link,
        "training": str(job.training),
        "budget": job.budget,
    }
    return plain_parameters(job.recipe, settings)


def plain_parameters(recipe: Recipe, settings: Mapping[str, object]) -> dict[str, str | int | float]:
    """Numbers and words; what is None is left out."""
    parts = {f"recipe/{name}": value for name, value in _leaves(recipe.describe(), "")}
    found = {"recipe_digest": recipe.digest(), **settings, "thinwire": __version__, **parts}
    return {
        name: value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
        for name, value in found.items()
        if value is not None
    }


def run_name(begun: RunStart) -> str:
    """The run's folder, or its method and seed."""
    if begun.folder is not None:
        return begun.folder.resolve().name
    return f"{begun.job.recipe.name}-seed-{begun.job.seed}"


def with_report(ending: Ending, use: Callable[[Path], object]) -> None:
    """Hands over the run's report as a file, which is gone afterwards."""
    with TemporaryDirectory() as folder:
        report = ending.report(Path(folder) / layout.REPORT)
        if report is not None:
            use(report)


def _ending(result: Result) -> Ending:
    return Ending(result.interrupted, int(result.history[-1]["round"]), result.run_dir, result.report)


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{place}/{key}" if place else str(key))
    else:
        yield place, value


# Trackers: MLflow, TensorBoard, Weights & Biases; each is loaded only when it is asked for ------------------------


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
