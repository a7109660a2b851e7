"""Tensors that lie in a file: the system reads what is touched, and takes it back when it is let go.

A page that was touched counts as this process's memory until then. Letting go loses nothing: the file has it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import BinaryIO
from weakref import WeakValueDictionary

import torch
from torch import Tensor

__all__ = ["BLOCK", "blocks", "let_go", "mapped", "over"]

BLOCK = 1 << 24  # bytes
# By their first address. A tensor over one keeps it alive, and with it the file.
_MAPS: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()


def mapped(file: BinaryIO, size: int) -> Tensor:
    """The file's first `size` bytes, not a copy: who changes the tensor changes the file."""
    area = mmap.mmap(file.fileno(), size)
    area.madvise(mmap.MADV_RANDOM)  # a batch's rows lie anywhere; their neighbours are not worth reading
    return over(area)


def over(area: mmap.mmap | bytearray) -> Tensor:
    """Its bytes, not a copy."""
    found = torch.frombuffer(area, dtype=torch.uint8)
    if isinstance(area, mmap.mmap):
        _MAPS[found.data_ptr()] = area
    return found


def let_go(tensor: Tensor) -> None:
    """Gives back the memory behind a tensor that lies in a file; any other tensor is left alone."""
    area = _MAPS.get(tensor.untyped_storage().data_ptr())
    if area is not None:
        area.madvise(mmap.MADV_DONTNEED)  # shared with the file: what was changed stays there


def blocks(tensor: Tensor) -> Iterator[Tensor]:
    """A contiguous tensor as flat pieces, in order; each is let go of when the next is asked for."""
    flat = tensor.view(-1)
    step = max(1, BLOCK // tensor.itemsize)
    for start in range(0, flat.numel(), step):
        yield flat[start : start + step]
        let_go(tensor)
