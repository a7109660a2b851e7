"""Cached exchanges: the same in memory and in a file, and no more of them in memory than allowed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from every import generator
from thinwire.base.errors import BadParameter
from thinwire.engine.schedule import ExchangeCache
from thinwire.engine.streams import Storage


def exchange(seed: int, rows: int = 100) -> list[Tensor]:
    """Rows and two tensors, as a conversation leaves them behind."""
    rng = generator(seed)
    return [
        torch.randperm(1000, generator=rng)[:rows],
        torch.randn(rows, 8, generator=rng),
        torch.randn(rows, 8, generator=rng).to(torch.bfloat16),
    ]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(one.dtype == two.dtype and torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize("limit", [0, 13_000, 1 << 30], ids=["file", "both", "memory"])
def test_exchanges_come_back_bit_for_bit(limit: int, tmp_path: Path) -> None:
    """Any order of putting, dropping and looking; a model that keeps everything in memory is the oracle."""
    rng, shelf, oracle = random.Random(0), ExchangeCache(Storage(limit, tmp_path)), {}  # noqa: S311
    for round in range(60):
        oracle[round] = exchange(round, rows=rng.choice([100, 37]))
        shelf.put(round, oracle[round])
        kept = {other for other in oracle if other == round or rng.random() < 0.8}
        shelf.keep(kept)
        oracle = {other: tensors for other, tensors in oracle.items() if other in kept}
        assert shelf.rounds() == sorted(oracle)
        for other, tensors in oracle.items():
            assert same(shelf.get(other), tensors)
            assert same(shelf.look(other), tensors)


def file_bytes(shelf: ExchangeCache) -> int:
    """How much of it is in the file."""
    return sum(spilled.size for spilled in shelf._spilled.values())


def test_what_does_not_fit_goes_to_the_file_and_its_room_is_used_again(tmp_path: Path) -> None:
    one = sum(tensor.nbytes for tensor in exchange(0))
    shelf = ExchangeCache(Storage(3 * one, tmp_path))
    for round in range(3):
        shelf.put(round, exchange(round))
    assert file_bytes(shelf) == 0
    for round in range(3, 10):
        shelf.put(round, exchange(round))
    assert file_bytes(shelf) >= 7 * one
    for round in range(10, 200):
        shelf.keep(range(round - 9, round))
        shelf.put(round, exchange(round))
    assert shelf._length <= 11 * (one + 3 * 64)
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_a_copy_does_not_follow_what_comes_after_it(tmp_path: Path) -> None:
    shelf = ExchangeCache(Storage(0, tmp_path))
    shelf.put(1, exchange(1))
    copied, looked = shelf.get(1), shelf.look(1)
    shelf.keep([])
    shelf.put(2, exchange(2))
    assert same(copied, exchange(1))
    assert same(looked, exchange(2))  # the same place in the file


def test_dropped_exchanges_are_gone(tmp_path: Path) -> None:
    for limit in (0, 1 << 20):
        shelf = ExchangeCache(Storage(limit, tmp_path))
        shelf.put(1, exchange(1))
        shelf.drop([1, 7])
        with pytest.raises(KeyError):
            shelf.get(1)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(BadParameter, match=r"no space for cached exchanges of \d+ bytes in .*: No space left"):
        ExchangeCache(Storage(0, tmp_path)).put(0, exchange(0))
