"""Scoring rows together after the training: in one process, or each party its half; nobody shows its features."""

from thinwire.predict.run import TrainedRun, load_run

__all__ = ["TrainedRun", "load_run"]
