"""Surrogates: the same in memory and memory-mapped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from every import generator
from thinwire.base.errors import BadParameter, BadState
from thinwire.engine.streams import Storage, Surrogate, release_pages
from thinwire.engine.streams import storage as storage_module
from thinwire.engine.streams.surrogate import are_all, list_rows


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["mapped", "in memory"])
def test_a_surrogate_starts_at_zero_and_adds(limit: int, tmp_path: Path) -> None:
    surrogate = Surrogate(50, 4, Storage(limit, tmp_path))
    assert surrogate.in_memory == (limit > 0)
    assert surrogate.bytes == 800
    assert not surrogate.table.any()
    rows = torch.tensor([7, 3])
    surrogate.add(rows, torch.tensor([[1.0] * 4, [2.0] * 4]))
    surrogate.add(rows, torch.tensor([[0.5] * 4, [0.25] * 4]))
    assert surrogate.at(torch.tensor([3, 7, 0]))[:, 0].tolist() == [2.25, 1.5, 0.0]
    surrogate.add_all(torch.ones(50, 4))
    assert surrogate.at(torch.tensor([3, 0]))[:, 1].tolist() == [3.25, 1.0]


def resident_bytes() -> int:
    """Of files, in this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssFile:", "RssShmem:")))


def test_little_of_a_mapped_table_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "_LEAST_RESIDENT", 8 << 20)
    rows, width = 1 << 17, 64  # 32 MiB
    surrogate, oracle = Surrogate(rows, width, Storage(0, tmp_path)), torch.zeros(rows, width)
    before, most = resident_bytes(), 0
    shuffled = torch.randperm(rows, generator=generator())
    for batch in shuffled.split(5000):
        change = torch.randn(len(batch), width, generator=generator())
        oracle[batch] += change
        surrogate.add(batch, change)
        assert torch.equal(surrogate.at(batch), oracle[batch])
        most = max(most, resident_bytes() - before)
    surrogate.digest()
    surrogate.add_all(torch.ones(rows, width))
    assert max(most, resident_bytes() - before) < 16 << 20
    assert torch.equal(surrogate.table, oracle + 1)


def test_a_table_is_taken_over_from_a_mapped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "BLOCK", 1000)
    first, second = Surrogate(3000, 7, Storage(0, tmp_path)), Surrogate(3000, 7, Storage(0, tmp_path))
    first.add_all(torch.randn(3000, 7, generator=generator()))
    second.load(first.table)
    assert torch.equal(first.table, second.table)
    first.add(torch.tensor([2999]), torch.full((1, 7), float("inf")))
    with pytest.raises(BadState, match="NaN or infinity"):
        second.load(first.table)


def test_letting_go_changes_nothing(tmp_path: Path) -> None:
    """In memory it must not even be tried: the system would give zeros back."""
    for limit in (0, 1 << 30):
        surrogate = Surrogate(2000, 16, Storage(limit, tmp_path))
        surrogate.add_all(torch.ones(2000, 16))
        release_pages(surrogate.table)
        release_pages(surrogate.table[100:])
        assert float(surrogate.table.sum()) == 32_000


def test_at_gives_a_copy() -> None:
    surrogate = Surrogate(5, 2)
    surrogate.at(torch.arange(5)).fill_(9)
    assert not surrogate.table.any()


def test_a_mapped_surrogate_leaves_no_file_behind(tmp_path: Path) -> None:
    surrogate = Surrogate(1000, 16, Storage(1000, tmp_path))
    surrogate.add_all(torch.ones(1000, 16))
    assert list(tmp_path.iterdir()) == []
    assert float(surrogate.table.sum()) == 16_000


def test_the_digest_follows_every_bit(tmp_path: Path) -> None:
    first, second = Surrogate(3000, 7), Surrogate(3000, 7, Storage(0, tmp_path))
    change = torch.randn(3000, 7, generator=generator())
    for surrogate in (first, second):
        surrogate.add_all(change)
    assert first.digest() == second.digest()
    second.add(torch.tensor([2999]), torch.full((1, 7), 1e-6))
    assert first.digest() != second.digest()


def test_a_saved_table_is_taken_over_or_refused() -> None:
    surrogate = Surrogate(4, 3)
    table = torch.randn(4, 3, generator=generator())
    surrogate.load(table)
    assert torch.equal(surrogate.table, table)
    with pytest.raises(BadState, match=r"torch\.float32 \(3, 4\), this stream needs torch\.float32 \(4, 3\)"):
        surrogate.load(table.t())
    with pytest.raises(BadState, match=r"torch\.float64"):
        surrogate.load(table.double())
    with pytest.raises(BadState, match="NaN or infinity"):
        surrogate.load(torch.full((4, 3), float("nan")))
    assert torch.equal(surrogate.table, table)


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="memory_limit_bytes must be 0 or more, got -1"):
        Storage(-1)
    with pytest.raises(BadParameter, match="does not exist; create it first"):
        Storage(folder=tmp_path / "nowhere")
    with pytest.raises(BadParameter, match="rows must be 1 or more, got 0"):
        Surrogate(0, 4)


def test_a_full_disk_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        BadParameter, match=r"no space for a surrogate of 4000000 bytes in .*: No space left on device"
    ):
        Surrogate(1_000_000, 1, Storage(0, tmp_path))


def test_all_rows_in_order_give_what_the_same_rows_in_parts_do() -> None:
    rng = torch.Generator().manual_seed(0)
    change, x = torch.randn(7, 2, generator=rng), torch.randn(7, 2, generator=rng)
    at_once, in_parts = Surrogate(7, 2), Surrogate(7, 2)
    every = list_rows(7)
    for _ in range(2):
        at_once.add(every, change)
        for part in every.split(3):
            in_parts.add(part, change[part])
    assert [are_all(rows, 7) for rows in (every, torch.arange(7))] == [True, True]
    assert [are_all(rows, 7) for rows in (every.flip(0), every[:6])] == [False, False]
    assert torch.equal(at_once.table, in_parts.table)
    assert torch.equal(at_once.subtract_from(every, x), x - in_parts.at(every.flip(0)).flip(0))
    copy = at_once.at(every)
    at_once.add(every, change)
    assert torch.equal(copy, in_parts.table)
