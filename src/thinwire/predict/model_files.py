"""A run's trained models on disk: loaded into modules, and known by a hash over their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from thinwire.at_rest import Files, files_of, layout
from thinwire.errors import BadInput

__all__ = ["hash_of", "load_model", "model_names"]


def model_names(folder: Path) -> list[str]:
    """Whose models the run's folder holds; "top" is the top model."""
    found = sorted(file.stem for file in layout.model_files(folder))
    if not found:
        raise BadInput(
            f"{folder} holds no models: {folder / 'models'} is missing or empty. Train to the end first, or give the "
            "run's folder"
        )
    return found


def load_model(folder: Path, name: str, module: nn.Module) -> None:
    """Refuses a file that is missing, damaged, of another model, or not finite."""
    file = layout.model_file(folder, name)
    try:
        tensors = load(_content(file, files_of(folder)))
        module.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise BadInput(f"{file} does not hold this job's model: {error}") from None
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadInput(f"{file}: {key} holds NaN or infinity; the training went wrong")


def hash_of(folder: Path, names: Iterable[str]) -> str:
    """SHA-256 over the models' files, each behind its name and length."""
    digest, files = hashlib.sha256(), files_of(folder)
    for name in sorted(names):
        content = _content(layout.model_file(folder, name), files)
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _content(file: Path, files: Files) -> bytes:
    try:
        return files.read(file)
    except FileNotFoundError:
        raise BadInput(f"{file} is missing: the run has not ended, or its folder is not whole") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None
