"""Randomised response: the exact chances of every code, and what an attacker measures."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product
from math import exp, prod
from typing import cast

import numpy as np
import pytest
import torch

from thinwire.base.errors import BadParameter, IncompatibleRecipe
from thinwire.engine.compress import Keystream, Milestones, RandomizedResponse, Then, TopK
from thinwire.engine.compress.message import Array
from thinwire.lab.attacks.dp_release import best_threshold

WORDS = 1 << 32


class Words(Keystream):
    """These words in place of a key's."""

    def __init__(self, words: list[int]) -> None:
        self._words = words

    def words(self, count: int) -> Array:
        return np.array(self._words[:count], dtype=np.uint32)


def list_chances(mechanism: RandomizedResponse, true: int, columns: int) -> dict[int, int]:
    """How many of the 2^32 words give each code: all words between two borders give the same one."""
    kept, other = mechanism.count_words(columns)
    borders = [0, kept, *(kept + other * place for place in range(1, mechanism.bins + 1))]
    assert borders[-1] == WORDS
    found: dict[int, int] = {}
    for first, end in pairwise(borders):
        message = torch.full((2, columns), float(true))
        words = [first] * columns + [end - 1] * columns
        ends = mechanism.compress(message, cast(Keystream, Words(words))).to_tensor()
        assert (ends == ends[0, 0]).all()
        found[int(ends[0, 0])] = end - first
    return found


@pytest.mark.parametrize(("epsilon", "bins", "columns"), [(0.3, 2, 1), (2.0, 3, 2), (7.0, 5, 3), (200.0, 4, 2)])
def test_no_row_makes_codes_likelier_than_another_by_more_than_epsilon(
    epsilon: float, bins: int, columns: int
) -> None:
    mechanism = RandomizedResponse(epsilon, bins)
    codes = range(-1, bins)
    chances = {true: list_chances(mechanism, true, columns) for true in codes}
    assert all(set(row) == set(codes) and sum(row.values()) == WORDS for row in chances.values())
    worst = max(
        prod(
            (Fraction(chances[a][c], chances[b][c]) for a, b, c in zip(one, other, sent, strict=True)),
            start=Fraction(1),
        )
        for one, other in [((true,) * columns, (false,) * columns) for true, false in product(codes, repeat=2)]
        for sent in product(codes, repeat=columns)
    )
    assert worst <= exp(epsilon) * (1 + 1e-12)
    if epsilon < 20:  # else 32 bits say less than was allowed
        assert worst > exp(epsilon) * (1 - 1e-6)


def test_every_column_has_its_own_draw_and_a_row_its_share() -> None:
    mechanism = RandomizedResponse(epsilon=6.0, bins=3)
    table = torch.arange(4.0).sub(1).repeat(20_000, 1)
    sent = mechanism.compress(table, Keystream(bytes(32))).to_tensor()
    chance = exp(1.5) / (exp(1.5) + 3)
    kept = (sent == table).double()
    assert (kept.mean(dim=0) - chance).abs().max() < 0.02
    assert torch.corrcoef(kept.T).fill_diagonal_(0).abs().max() < 0.03
    assert ((sent >= -1) & (sent <= 2)).all()


def test_an_attacker_measures_what_is_claimed_and_no_more() -> None:
    mechanism, samples = RandomizedResponse(epsilon=1.5, bins=3), 60_000
    one, other = (
        mechanism.compress(torch.full((samples, 1), value), Keystream(bytes([place]) * 32)).to_tensor().numpy()[:, 0]
        for place, value in enumerate((0.0, 2.0))
    )
    scores = [(part == 0.0).astype(float) - (part == 2.0) for part in (one, other)]
    half = samples // 2
    chosen = best_threshold(scores[0][:half], scores[1][:half], 0.0)
    measured = chosen.epsilon(scores[0][half:], scores[1][half:], 0.0)
    assert 1.3 < measured <= 1.5


def test_what_lies_beyond_the_bins_is_cut_off_and_not_refused() -> None:
    """A refusal would tell something about a row."""
    sent = RandomizedResponse(200.0, 4).compress(torch.tensor([[-7.0, 1.4, 99.0]]), Keystream(bytes(32)))
    assert sent.to_tensor().tolist() == [[-1.0, 1.0, 3.0]]


@pytest.mark.parametrize(
    ("epsilon", "bins", "says"),
    [(0, 4, "epsilon"), (1.0, 1, "bins"), (Milestones((0, 1.0)), 4, "epsilon"), (float("nan"), 4, "epsilon")],
)
def test_other_parameters_are_refused(epsilon: float, bins: int, says: str) -> None:
    with pytest.raises(BadParameter, match=says):
        RandomizedResponse(epsilon, bins)


def test_more_bins_than_words_allow_are_refused_and_not_claimed() -> None:
    with pytest.raises(BadParameter, match="epsilon is too small for 10 columns of 100000 bins; use fewer bins"):
        RandomizedResponse(1.0, 100_000).count_words(10)
    kept, other = RandomizedResponse(1.0, 1000).count_words(10)
    assert 1 <= kept / other <= exp(0.1)


def test_a_choice_of_places_would_undo_it() -> None:
    with pytest.raises(IncompatibleRecipe, match="protects values, but the choice of positions would leak"):
        Then(TopK(0.5), RandomizedResponse(2.0, 4))
