"""What a run, or one party of it, tells TensorBoard, MLflow and Weights & Biases, and what happens when one fails."""

from __future__ import annotations

import logging
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
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
from thinwire.job.job import Job
from thinwire.job.party_view import PartyView
from thinwire.storage import layout
from thinwire.storage.json_file import parse_object
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
    """Base of the trackers; each follows one run at a time.

    An error at the start prevents the run. A later one, such as a server that is down, is logged once and stops the
    tracking, not the run.
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
            raise BadInput(f"cannot write to {self.name}: {why}. Nothing was started") from error
        self._writing = True

    def __call__(self, event: dict[str, Any]) -> None:
        self._guard(lambda: self._write(scalars(event), int(event["round"])))

    def end(self, result: Result | None) -> None:
        ending = None
        if result is not None:
            ending = Ending(result.interrupted, int(result.history[-1]["round"]), result.run_dir, result.report)
        self.close(ending)

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
            _log.warning("cannot write to %s any longer (%s); the run continues without it", self.name, error)

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
    more = {"fusion": job.label_party.fusion, "rows": job.rows, "link": job.link, "budget": job.budget}
    return _plain_parameters(job, job.names, job.label_party.name, more)


def part_parameters(own: PartyView) -> dict[str, str | int | float]:
    """What this party was asked to do: no data, no paths, and of the others their names alone."""
    return _plain_parameters(own, own.feature_parties, own.label_party, {"party": own.me})


def _plain_parameters(
    asked: Job | PartyView, feature_parties: Iterable[str], label_party: str, more: Mapping[str, object]
) -> dict[str, str | int | float]:
    """Numbers and words; what is None is left out."""
    recipe, settings = asked.recipe, asked.settings
    found = {
        "recipe_digest": recipe.digest(),
        **{name: getattr(settings, name) for name in ("seed", "epochs", "batch_size", "eval_every", "training")},
        "optimizer": str(asked.optimizer),
        "feature_parties": ", ".join(feature_parties),
        "label_party": label_party,
        **more,
        "thinwire": __version__,
        **{f"recipe/{name}": value for name, value in _leaves(recipe.describe(), "")},
    }
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


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{place}/{key}" if place else str(key))
    else:
        yield place, value


# Trackers: MLflow, TensorBoard, Weights & Biases; each is loaded only when it is asked for ------------------------


_LONGEST = 500  # characters of a parameter; servers before 2.0 take no more


class MLflow(RunWriter):
    """Logs metrics and parameters to MLflow, and the report as an artifact.

    Uses the active run (`with mlflow.start_run():`) and leaves it open; otherwise it starts and ends its own.

    Args:
        experiment: the one that MLflow is set to, unless given.
        tracking_uri: the server that MLflow is set to, unless given.

    Raises:
        BadInput: mlflow is not installed.
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
    """Writes every metric, and the parameters and the path of the report as text, for `tensorboard --logdir`.

    Args:
        folder: `tensorboard` in the run folder unless given.

    Raises:
        BadInput: neither tensorboard nor tensorboardX is installed.

    Examples:
        >>> result = tw.train(job, callbacks=[tw.integrations.TensorBoard("logs")])
    """

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
    """Logs metrics to Weights & Biases, with the parameters as config and the report as an artifact.

    Args:
        project: its name.
        mode: "offline" keeps everything on this machine; WANDB_MODE decides unless given.

    Raises:
        BadInput: wandb is not installed.
    """

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
    """Builds trackers from their names.

    Args:
        text: names separated by commas, as --log-to takes them.

    Raises:
        BadInput: an unknown name, or a tracker that is not installed.

    Examples:
        >>> [writer.name for writer in tw.integrations.build_writers("tensorboard")]
        ['tensorboard']
    """
    names = list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if not names:
        raise BadInput(f"--log-to: name one of {', '.join(WRITERS)}, or several separated by commas")
    for name in names:
        if name not in WRITERS:
            raise BadInput(f"--log-to: {name!r} is not one of {', '.join(WRITERS)}{did_you_mean(name, WRITERS)}")
    return [WRITERS[name]() for name in names]


# Writers of one party's run over the network: they hear what that party knows, and nothing of the others ----------


class PartyWriters:
    """All writers of a run. At the label party evaluations are written; at a feature party its own bytes and time.

    Started again, a party writes all that its folder holds once more. Rounds that it then repeats are written once.
    """

    def __init__(self, writers: Sequence[RunWriter], own: PartyView, folder: Path) -> None:
        self._writers = writers
        self._own = own
        self._folder = folder
        self._rounds: set[int] = set()

    def begin(self) -> None:
        """One that cannot begin keeps the run from starting."""
        history = _read_evaluations(self._folder) if self._own.is_label_party else []
        name = f"{self._folder.resolve().parent.name}-{self._own.me}"
        opening = Opening(name, part_parameters(self._own), self._folder, bool(history))
        with ExitStack() as begun:
            for writer in self._writers:
                writer.open(opening)
                begun.callback(writer.close, None)
            begun.pop_all()
        for event in history:
            self.event(event)

    def event(self, event: Mapping[str, Any]) -> None:
        if self._writers and event["round"] not in self._rounds:
            self._rounds.add(event["round"])
            for writer in self._writers:
                writer(dict(event))

    def round(self, round: int, every: int, known: Callable[[], Mapping[str, Any]]) -> None:
        """At a feature party: what it knows, as seldom as the label party evaluates."""
        if self._writers and not self._own.is_label_party and round % every == 0:
            self.event({"round": round, **known()})

    def end(self, summary: Mapping[str, Any] | None, interrupted: bool) -> None:
        """`summary` is what the party's run left to say; None where it failed, or was stopped within a round."""
        ending = None
        if summary is not None and not self._own.is_label_party:  # the round after the last that it was asked about
            told = {"round": summary["rounds"], "epoch": summary["epochs"], "seconds": summary["seconds"]}
            self.event({**told, "bytes": {way: summary[f"{way}_bytes"] for way in ("sent", "received")}})
        if summary is not None or interrupted:
            last = max(self._rounds, default=0) if summary is None else int(summary["rounds"])
            ending = Ending(interrupted, last, self._folder, self._report)
        for writer in self._writers:
            writer.close(ending)

    def _report(self, path: Path) -> Path | None:
        """A copy of the folder's; a run that was stopped has none yet."""
        kept = self._folder / layout.REPORT
        return Path(shutil.copyfile(kept, path)) if kept.is_file() else None


def _read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """Evaluations of processes before this one; the last line may be half written."""
    file = folder / layout.EVENTS
    found = [parse_object(line) for line in file.read_bytes().splitlines()] if file.is_file() else []
    return [event for event in found if event is not None and isinstance(event.get("round"), int)]
