"""MLflow and Weights & Biases as their documentation has them: the same calls and arguments, kept in memory.

MLflow: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.html and mlflow.client.html
wandb: https://docs.wandb.ai/models/ref/python/functions/init, experiments/run, experiments/artifact
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class ServerAway(Exception):
    """What a library of others may raise."""


@dataclass
class Tracked:
    """One run at a server."""

    name: str | None
    parameters: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    status: str = "RUNNING"


class FakeMLflow(ModuleType):
    """The active run belongs to a thread, as MLflow's does."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.runs: dict[str, Tracked] = {}
        self.experiment: str | None = None
        self.uri: str | None = None
        self.away_from: int | None = None  # the round at which the server goes away
        self._here = threading.local()
        self.MlflowClient = partial(FakeClient, self)

    def set_tracking_uri(self, uri: str) -> None:
        self.uri = uri

    def set_experiment(self, experiment_name: str | None = None, experiment_id: str | None = None) -> None:
        self.experiment = experiment_name

    def active_run(self) -> Any:
        return getattr(self._here, "run", None)

    def start_run(
        self, run_id: str | None = None, experiment_id: str | None = None, run_name: str | None = None
    ) -> Any:
        if self.active_run() is not None:
            raise ServerAway("a run is active already")
        key = f"run{len(self.runs)}"
        self.runs[key] = Tracked(run_name)
        self._here.run = SimpleNamespace(info=SimpleNamespace(run_id=key))
        return self._here.run

    def end_run(self, status: str = "FINISHED") -> None:
        print("View run at: http://tracking.example")  # as it does after runs at a server
        self.runs[self._here.run.info.run_id].status = status
        self._here.run = None


@dataclass
class FakeClient:
    """By the run's id, from any thread."""

    server: FakeMLflow
    tracking_uri: str | None = None
    registry_uri: str | None = None

    def log_param(self, run_id: str, key: str, value: Any, synchronous: bool | None = None) -> None:
        known = self.server.runs[run_id].parameters
        if known.setdefault(key, value) != value or len(value) > 500:
            raise ServerAway(f"changing {key} is not allowed")

    def log_metric(
        self, run_id: str, key: str, value: float, timestamp: int | None = None, step: int | None = None
    ) -> None:
        if self.server.away_from is not None and (step or 0) >= self.server.away_from:
            raise ServerAway("connection refused")
        self.server.runs[run_id].metrics.setdefault(key, {})[step or 0] = value

    def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None = None) -> None:
        self.server.runs[run_id].artifacts[Path(local_path).name] = Path(local_path).read_text()


class FakeWandb(ModuleType):
    """`init` gives a run; an artifact copies the files that are added to it."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.run: FakeWandbRun | None = None
        self.Artifact = FakeArtifact
        self.is_logged_in = True

    def init(
        self,
        entity: str | None = None,
        project: str | None = None,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        mode: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> FakeWandbRun:
        if not self.is_logged_in:
            raise ServerAway("api_key not configured. Use `wandb login` to log in.")
        self.run = FakeWandbRun(project, Tracked(name, dict(config or {})), mode, settings=settings or {})
        return self.run


@dataclass
class FakeWandbRun:
    project: str | None
    tracked: Tracked
    mode: str | None
    id: str = "x1y2"
    settings: dict[str, Any] = field(default_factory=dict)

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        for key, value in data.items():
            self.tracked.metrics.setdefault(key, {})[step or 0] = value

    def log_artifact(self, artifact_or_path: FakeArtifact, name: str | None = None) -> FakeArtifact:
        self.tracked.artifacts |= artifact_or_path.files
        return artifact_or_path

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        self.tracked.status = f"exit code {exit_code}"


@dataclass
class FakeArtifact:
    name: str
    type: str
    files: dict[str, str] = field(default_factory=dict)

    def add_file(self, local_path: str, name: str | None = None) -> None:
        self.files[Path(local_path).name] = Path(local_path).read_text()
