"""What a feature party may answer a question with: no more than its rows times its width."""

from __future__ import annotations

import pytest
from torch import nn

import thinwire as tw
from thinwire.engine.compress.symbols import Zeros
from thinwire.engine.models.losses import Outputs
from thinwire.engine.wire.codec import encode
from thinwire.predict.errors import PartyFailed
from thinwire.predict.scoring import ScoreFormat, TopScorer, make_silent_context


@pytest.mark.parametrize("shape", [(1 << 12, 1 << 12), (2, 4), (3, 5), (12,), ()])
def test_another_answer_than_to_the_question_is_refused_by_name(shape: tuple[int, ...]) -> None:
    context = make_silent_context("lab", "lab", ("bank", "shop"), tw.methods.svfl(), 0, "small")
    scorer = TopScorer(context, nn.Linear(4, 2), "sum", ScoreFormat(Outputs.CLASSES), {"bank": 4, "shop": 4})
    with pytest.raises(PartyFailed, match="'bank' sent"):
        scorer.decode_embedding(encode(Zeros(shape)), "bank", 3)
    assert scorer.decode_embedding(encode(Zeros((3, 4))), "bank", 3).shape == (3, 4)


def test_a_bomb_is_refused_before_memory_is_made_for_it() -> None:
    context = make_silent_context("lab", "lab", ("bank", "shop"), tw.methods.svfl(), 0, "small")
    scorer = TopScorer(context, nn.Linear(4, 2), "sum", ScoreFormat(Outputs.CLASSES), {"bank": 4, "shop": 4})
    with pytest.raises(PartyFailed, match=r"16777216 values .* are announced, the cap is 12"):
        scorer.decode_embedding(encode(Zeros((1 << 12, 1 << 12))), "bank", 3)
