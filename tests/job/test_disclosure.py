"""Who sees what follows from the recipe and from who takes part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from job.small import JOB, write_job
from thinwire.engine.compress import RowScale, TopK
from thinwire.engine.methods import cvfl, efvfl, pbm, svfl
from thinwire.engine.privacy.accounting.ledger import TrainedOnRawRows
from thinwire.job.disclosure import Participants, describe_budget, describe_training
from thinwire.job.job_loader import load_job
from thinwire.job.party_view import read_party_view
from thinwire.net.handshake import compare_agreements
from thinwire.training.dry_run import run_dry

ROSTER = Participants("clinic", ("bank", "shop"))
TESTED = Participants("clinic", ("bank", "shop"), has_test_rows=True)


def test_private_labels() -> None:
    assert describe_training(svfl(), ROSTER) == {
        "clinic": ["its labels, every party's embeddings of every training row, as sent by Identity()"],
        "bank": ["its own derivative for every training row, from which labels can often be guessed"],
        "shop": ["its own derivative for every training row, from which labels can often be guessed"],
    }
    assert describe_training(svfl(), TESTED)["clinic"][1:] == [
        "every party's embeddings of every test row, exactly, at every evaluation"
    ]


def test_columns_are_measured_by_their_owners() -> None:
    seen = describe_training(replace(svfl(), scoring=RowScale(8)), replace(TESTED, measures_columns=True))
    assert seen["clinic"][-1] == (
        "every party's embeddings of every test row with one of its owner's columns permuted, rounded by RowScale(8),"
        " for each column without its name; the score lost by each"
    )
    assert seen["bank"][-1] == (
        "for each of its own columns, the score on the test rows that is lost when it is permuted"
    )
    assert "column" not in str(describe_training(svfl(), TESTED))


def test_a_regression_shows_directions_of_columns(tmp_path: Path) -> None:
    roster = Participants("clinic", ("bank", "shop"), is_regression=True)
    seen = describe_training(svfl(), roster)
    assert seen["clinic"][-1] == (
        "with every exchange one more direction of each party's columns: after as many exchanges as a party has "
        "columns, all of them up to a rotation, which independent component analysis can often undo"
    )
    assert seen["bank"][-1] == "its own coefficients"
    job = write_job(tmp_path, REGRESSION)
    bank, shop, clinic = (read_party_view(job, name) for name in ("bank", "shop", "clinic"))
    inference = (
        "inference: at the end clinic is sent the directions that are left of bank's columns; it then holds all of "
        "them up to a rotation"
    )
    assert inference in bank.consent.list_terms()
    assert "inference:" not in "".join([*shop.consent.list_terms(), *clinic.consent.list_terms()])
    assert seen["clinic"][-1] in bank.consent.describe_training()
    assert bank.agreement() == shop.agreement() == clinic.agreement()
    other = read_party_view(write_job(tmp_path, JOB.replace("efvfl", "svfl").replace(COMPRESSED, "")), "clinic")
    assert "model is regression at 'bank' and not given at 'clinic'" in compare_agreements(
        bank.agreement(), other.agreement(), "bank", "clinic"
    )


def test_a_scorecard_shows_bins_and_counts(tmp_path: Path) -> None:
    seen = describe_training(
        svfl(), Participants("clinic", ("bank",), is_regression=True, points_to_double_odds=20.0)
    )
    assert "one more direction of each party's weight of evidence" in seen["clinic"][-1]
    assert seen["bank"][-2:] == [
        "its own coefficients",
        "how many rows of each class are in every bin of its columns",
    ]
    card = REGRESSION.replace('"linear"', '"scorecard"').replace('"regression_top"', '"scorecard_top"')
    bank, clinic = (read_party_view(write_job(tmp_path, card), name) for name in ("bank", "clinic"))
    assert seen["bank"][-1] in bank.consent.describe_training()
    assert bank.agreement() == clinic.agreement()
    other = card.replace('"scorecard_top"', '"scorecard_top", points_to_double_odds = 40')
    clinic = read_party_view(write_job(tmp_path, other), "clinic")
    assert (
        "model is scorecard, 20 points to double the odds at 'bank' and scorecard, 40 points to double the odds at "
        "'clinic'"
    ) in compare_agreements(bank.agreement(), clinic.agreement(), "bank", "clinic")


COMPRESSED = 'compressor = { name = "TopK", fraction = 0.25 }\nlabels = "private"\n'
REGRESSION = (
    JOB.replace("efvfl", "svfl")
    .replace(COMPRESSED, "")
    .replace("batch_size = 32\n", "")
    .replace('{ name = "mlp", hidden = [8], width = 4 }', '{ name = "linear", inference = true }')
    .replace('{ name = "linear", width = 4 }', '{ name = "linear" }')
    .replace('{ name = "linear_top", classes = 2 }', '{ name = "regression_top" }\nloss = "binary_cross_entropy"')
)


def test_error_feedback_sends_changes() -> None:
    assert describe_training(efvfl(TopK(0.1), labels="private"), ROSTER)["clinic"] == [
        "its labels, every party's embeddings of every training row, as changes of surrogates by TopK(0.1)"
    ]


def test_secure_sum_shows_sums() -> None:
    seen = describe_training(pbm(4, 0.1), TESTED)
    assert seen["clinic"][0].startswith(
        "its labels, the sum of all parties' embeddings of every training row, as sent by Poisson"
    )
    assert (
        seen["clinic"][1]
        == "the sum of all parties' embeddings of every test row, by the same mechanism, at every evaluation"
    )
    assert seen["bank"][0].startswith("the derivative of the sum for every training row")


def test_shared_labels_show_everything() -> None:
    shared = cvfl(TopK(0.1))
    assert describe_training(shared, ROSTER)["bank"] == [
        "all labels",
        "the top model",
        "every party's embeddings, as sent by the others",
    ]
    own = Participants("clinic", ("bank", "shop"), label_party_has_features=True)
    assert (
        "every party's embeddings, clinic's own among them, as sent by the others"
        in describe_training(shared, own)["bank"]
    )


def test_budgets_are_not_promised() -> None:
    assert describe_budget(svfl(), TrainedOnRawRows(), None) == (
        "no privacy budget: this recipe adds no noise to what is sent"
    )
    assert "epsilon end to end is infinite" in describe_budget(pbm(4, 0.1), TrainedOnRawRows(), None)


@pytest.mark.parametrize("name", ["bank", "clinic"])
@pytest.mark.parametrize("labels", ["private", "shared"])
def test_a_party_reads_what_the_simulator_shows(tmp_path: Path, name: str, labels: str) -> None:
    path = write_job(tmp_path)
    settings = [f"recipe.labels='{labels}'", "job.column_importance=true"]
    own = read_party_view(path, name, settings)
    assert own.who_sees() == run_dry(load_job(path, settings)).who_sees
    assert own.budget() == describe_budget(own.recipe, TrainedOnRawRows(), None)
