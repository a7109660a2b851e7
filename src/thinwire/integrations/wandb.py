"""Weights & Biases: one run of a project. By default it goes to their servers: see docs/integrations.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thinwire.extras import needed
from thinwire.integrations.writer import Writer, parameters, run_name, with_report
from thinwire.job import Result
from thinwire.job.callbacks import Begun

__all__ = ["Wandb"]


class Wandb(Writer):
    """Metrics, the parameters as the run's config, and the report as an artifact."""

    name = "wandb"

    def __init__(self, project: str = "thinwire", mode: str | None = None) -> None:
        """`mode="offline"` keeps everything on this machine; without it WANDB_MODE decides."""
        super().__init__()
        self._library = needed("wandb", "writing for Weights & Biases", "wandb")
        self._project = project
        self._mode = mode
        self._run: Any = None

    def _open(self, begun: Begun) -> None:
        self._run = self._library.init(
            project=self._project, name=run_name(begun), config=parameters(begun.job), mode=self._mode
        )

    def _write(self, values: Mapping[str, float], round: int) -> None:
        self._run.log(dict(values), step=round)

    def _close(self, result: Result | None) -> None:
        try:
            if result is not None:
                with_report(result, self._keep)
        finally:
            self._run.finish(exit_code=0 if result is not None and not result.interrupted else 1)

    def _keep(self, file: Path) -> None:
        artifact = self._library.Artifact(f"report-{self._run.id}", type="report")
        artifact.add_file(str(file))  # makes a copy: ours is gone when this ends
        self._run.log_artifact(artifact)
