"""Weights & Biases: one run of a project. By default it goes to their servers: see docs/integrations.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thinwire.base.extras import needed
from thinwire.integrations.writer import Ending, Opening, Writer, with_report

# What it would send unasked: all that the process prints, and where its code comes from.
_SETTINGS = {"console": "off", "disable_git": True, "disable_code": True}


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
