"""Runs where others keep theirs: TensorBoard, MLflow, Weights & Biases. Each is loaded only when it is asked for.

thinwire.train(job, callbacks=[TensorBoard("logs")])
thinwire train job.toml --log-to tensorboard,mlflow
"""

from thinwire.integrations.trackers import WRITERS, MLflow, RunWriter, TensorBoard, Wandb, build_writers

__all__ = ["WRITERS", "MLflow", "RunWriter", "TensorBoard", "Wandb", "build_writers"]
