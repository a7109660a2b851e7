"""INTEGRATIONS: other tools: TensorBoard, MLflow and Weights & Biases, and scikit-learn's way to train.

Each is loaded only when it is asked for. May import every floor up to lab.

thinwire.train(job, callbacks=[TensorBoard("logs")])
thinwire train job.toml --log-to tensorboard,mlflow
"""

from thinwire.integrations.trackers import WRITERS, MLflow, RunWriter, TensorBoard, Wandb, build_writers

__all__ = ["WRITERS", "MLflow", "RunWriter", "TensorBoard", "Wandb", "build_writers"]
