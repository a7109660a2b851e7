"""Tensor files: safetensors to the byte's meaning, in pieces, and without a copy in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from every import generator
from thinwire.base.errors import BadState
from thinwire.engine.streams import Storage, Surrogate
from thinwire.engine.streams import storage as storage_module
from thinwire.storage import tensor_file
from thinwire.storage.tensor_file import WrittenTensors, read_tensors, write_tensors


def every_kind() -> dict[str, Tensor]:
    values = torch.randn(33, 7, generator=generator()) * 10
    found = {str(dtype): values.to(dtype) for dtype in tensor_file.DTYPES}
    return {**found, "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4), "turned": values.t()}


def written(path: Path, tensors: dict[str, Tensor]) -> WrittenTensors:
    with path.open("wb") as file:
        return write_tensors(lambda piece: (file.write(piece), None)[1], tensors)


def require_same(found: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].view(-1).view(torch.uint8), tensor.contiguous().view(-1).view(torch.uint8))


@pytest.mark.parametrize("block", [64, 1 << 24], ids=["in pieces, mapped", "whole"])
def test_tensors_come_back_bit_for_bit(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "BLOCK", block)
    monkeypatch.setattr(tensor_file, "BLOCK", block)
    told = written(tmp_path / "t", every_kind())
    assert told.size == (tmp_path / "t").stat().st_size
    require_same(read_tensors(tmp_path / "t", told), every_kind())


def test_the_library_reads_what_we_write_and_we_what_it_writes(tmp_path: Path) -> None:
    written(tmp_path / "ours", every_kind())
    require_same(load_file(tmp_path / "ours"), every_kind())
    save_file({name: tensor.contiguous() for name, tensor in every_kind().items()}, tmp_path / "theirs")
    content = (tmp_path / "theirs").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    require_same(read_tensors(tmp_path / "theirs", WrittenTensors(len(content), digest)), every_kind())


def test_any_changed_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t"
    told = written(path, {"a": torch.arange(5)})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(BadState, match="t is damaged"):
            read_tensors(path, told)
    path.write_bytes(content[:-1])
    with pytest.raises(BadState, match=rf"has {told.size - 1} bytes, not {told.size}"):
        read_tensors(path, told)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def test_a_table_in_a_file_is_saved_and_loaded_without_room_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (storage_module, tensor_file):
        monkeypatch.setattr(module, "BLOCK", 1 << 20)
    rows, width = 1 << 17, 64  # 32 MiB
    surrogate, other = (Surrogate(rows, width, Storage(0, tmp_path)) for _ in range(2))
    surrogate.add_all(torch.arange(rows, dtype=torch.float32)[:, None].expand(rows, width))
    before = resident_bytes()
    told = written(tmp_path / "t", {"surrogate": surrogate.table})
    loaded = read_tensors(tmp_path / "t", told)
    other.load(loaded["surrogate"])
    assert resident_bytes() - before < 16 << 20
    assert other.digest() == surrogate.digest()
