"""Runs where others keep theirs: TensorBoard, MLflow, Weights & Biases. Each is loaded only when it is asked for.

thinwire.train(job, callbacks=[TensorBoard("logs")])
thinwire train job.toml --log-to tensorboard,mlflow
"""

from thinwire.integrations.mlflow import MLflow
from thinwire.integrations.tensorboard import TensorBoard
from thinwire.integrations.wandb import Wandb
from thinwire.integrations.writer import Writer
from thinwire.integrations.writers import WRITERS, writers_named

__all__ = ["WRITERS", "MLflow", "TensorBoard", "Wandb", "Writer", "writers_named"]
