"""How embeddings travel that are only scored."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from job.small import write_job
from thinwire.base.errors import BadInput, IncompatibleRecipe
from thinwire.engine.compress import Cast, Compressor, Identity, Milestones, RowScale, StdGrid
from thinwire.engine.methods import pbm, svfl
from thinwire.job.disclosure import Participants, describe_training
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.training.train import train

EIGHT_BITS = "recipe={method='svfl',scoring={name='RowScale',bits=8}}"


def test_it_stands_beside_any_methods_arguments(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    assert load_job(path, [EIGHT_BITS]).recipe == replace(svfl(), scoring=RowScale(8))
    assert load_job(path, ["recipe={method='svfl',scoring='Cast'}"]).recipe.scoring == Cast()
    assert "scoring" in resolve_job(path, [EIGHT_BITS])
    with pytest.raises(BadInput, match=r"recipe\.scoring\.bits: RowScale: bits must be from 2 to 16"):
        load_job(path, ["recipe={method='svfl',scoring={name='RowScale',bits=99}}"])


def test_exact_scores_leave_a_recipes_digest_as_it_was() -> None:
    assert "scoring" not in svfl().describe()
    assert replace(svfl(), scoring=Identity()).digest() == svfl().digest()
    assert replace(svfl(), scoring=Cast()).digest() != svfl().digest()


@pytest.mark.parametrize(
    "scoring", [StdGrid(0.1), RowScale(8, stochastic=True), RowScale(Milestones((0, 4), (9, 8)))], ids=str
)
def test_a_row_has_one_score(scoring: Compressor) -> None:
    message = "the score of a row must not depend on the other rows in its message; use Cast, or RowScale"
    with pytest.raises(IncompatibleRecipe, match=re.escape(message)):
        replace(svfl(), scoring=scoring).check(2, "sum")


def test_consent_says_how_test_rows_are_seen() -> None:
    roster = Participants("clinic", ("bank",), has_test_rows=True)
    told = {
        scoring: describe_training(replace(svfl(), scoring=scoring), roster)["clinic"][-1]
        for scoring in (Identity(), Cast())
    }
    assert "of every test row, exactly, at every" in told[Identity()]
    assert "of every test row, rounded by Cast(), at every" in told[Cast()]


def test_under_secure_sum_no_partys_own_embedding_travels() -> None:
    with pytest.raises(IncompatibleRecipe, match="hides them in training; leave scoring out"):
        replace(pbm(4, 0.1), scoring=Cast()).check(3, "sum")


def test_an_evaluation_takes_fewer_bytes_and_training_stays(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    exact = train(load_job(path, ["recipe={method='svfl'}"]), callbacks=[])
    rounded = train(load_job(path, [EIGHT_BITS]), callbacks=[])
    one, other = (result.summary()["bytes"] for result in (exact, rounded))
    assert one["total"] == other["total"]
    assert other["evaluation"] < 0.6 * one["evaluation"]
    for name, module in exact.models.items():
        twins = zip(module.parameters(), rounded.models[name].parameters(), strict=True)
        assert all(torch.equal(weight, twin) for weight, twin in twins)
    losses = [result.history[-1]["test"]["loss"] for result in (exact, rounded)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
