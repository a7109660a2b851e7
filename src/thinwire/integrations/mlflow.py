"""MLflow: one run of an experiment, on the tracking server that MLflow is set to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinwire.base.extras import needed
from thinwire.integrations.writer import Ending, Opening, Writer, with_report

_LONGEST = 500  # characters of a parameter; servers before 2.0 take no more


class MLflow(Writer):
    """Metrics, parameters, and the report as an artifact.

    Into the run that is active (`with mlflow.start_run():`), which stays open; else into a run of its own.
    """

    name = "mlflow"

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        """Where none is given, the experiment and the server that MLflow itself is set to."""
        super().__init__()
        self._library = needed("mlflow", "writing for MLflow", "mlflow")
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
