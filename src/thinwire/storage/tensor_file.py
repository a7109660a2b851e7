"""Tensors in a safetensors file, written and read in pieces: no table needs memory for a copy of itself.

::

    length    u64   of the header, little-endian
    header    JSON  {name: {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}}, padded with spaces
    data            offsets count from here
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.base.errors import BadState
from thinwire.engine.streams import blocks
from thinwire.engine.streams.storage import BLOCK, view_bytes
from thinwire.storage.encrypted_files import PLAIN, Files, map_content

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_ALIGNED = 8


@dataclass(frozen=True)
class WrittenTensors:
    """A whole file."""

    size: int
    sha256: str


def write_tensors(write: Callable[[bytes | memoryview], None], tensors: Mapping[str, Tensor]) -> WrittenTensors:
    """Gives the file to `write` piece by piece."""
    digest = hashlib.sha256()
    size = 0

    def put(piece: bytes | memoryview) -> None:
        nonlocal size
        write(piece)
        digest.update(piece)
        size += len(piece)

    # Wide numbers first: then every tensor begins where a number of its kind may.
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header, end = {}, 0
    for name in order:
        tensor = tensors[name]
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    put(len(text).to_bytes(8, "little") + text)
    for name in order:
        for block in blocks(tensors[name].detach().cpu().contiguous()):
            put(block.view(torch.uint8).numpy().data)
    return WrittenTensors(size, digest.hexdigest())


def read_tensors(path: Path, told: WrittenTensors, files: Files = PLAIN) -> dict[str, Tensor]:
    """The file's tensors, once its bytes are the ones that were written.

    Those that are large stay in the file; where it is encrypted, in memory. They must not be changed, or the change
    may get lost. Raises BadState where the bytes are others, OSError where it cannot be read.
    """
    with files.open_file(path) as file:
        size, digest = 0, hashlib.sha256()
        while piece := file.read(BLOCK):
            digest.update(piece)
            size += len(piece)
        if size != told.size:
            raise BadState(f"{path.name} has {size} bytes, not {told.size}")
        if digest.hexdigest() != told.sha256:
            raise BadState(f"{path.name} is damaged")
        try:
            return _tensors(view_bytes(map_content(file)))
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise BadState(f"{path.name} is not a safetensors file: {error}") from None


def _tensors(data: Tensor) -> dict[str, Tensor]:
    start = 8 + int.from_bytes(bytes(data[:8].tolist()), "little")
    header: dict[str, Any] = json.loads(bytes(data[8:start].tolist()))
    header.pop("__metadata__", None)
    found, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, after = entry["data_offsets"]
        if begin != end:
            raise ValueError(f"{name} begins at {begin}, not at {end}")
        found[name] = _tensor(data[start + begin : start + after], entry)
        end = after
    if start + end != len(data):
        raise ValueError(f"its tensors end at {end} of {len(data) - start} bytes")
    return found


def _tensor(data: Tensor, entry: dict[str, Any]) -> Tensor:
    dtype, shape = _BY_NAME[entry["dtype"]], entry["shape"]
    if len(data) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for a tensor of shape {shape}")
    return (data.clone() if len(data) <= BLOCK else data).view(dtype).view(shape)
