"""Writers by their names, as the command line gives them."""

from __future__ import annotations

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.integrations.mlflow import MLflow
from thinwire.integrations.tensorboard import TensorBoard
from thinwire.integrations.wandb import Wandb
from thinwire.integrations.writer import Writer

WRITERS: dict[str, type[Writer]] = {writer.name: writer for writer in (TensorBoard, MLflow, Wandb)}


def writers_named(text: str) -> list[Writer]:
    """One for each name, with commas between; refuses what is not known or not installed."""
    names = list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    if not names:
        raise BadInput(f"--log-to: name one of {', '.join(WRITERS)}, or several with commas between")
    for name in names:
        if name not in WRITERS:
            raise BadInput(f"--log-to: {name!r} is not one of {', '.join(WRITERS)}{did_you_mean(name, WRITERS)}")
    return [WRITERS[name]() for name in names]
