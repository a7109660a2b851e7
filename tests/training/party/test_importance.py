"""What parties and columns are worth, over gRPC: the simulator's figures, each known to whom it concerns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thinwire.job.party_view import read_party_view
from thinwire.net.handshake import compare_agreements
from thinwire.report.folder import read_run
from training.party.parties import LABEL_PARTY, PartyProcesses, Place, Shape, left_ledger, made, ran, simulated
from training.party.test_same_as_simulated import STEERED, TANH, require_same

EIGHT_BITS = {"method": "svfl", "scoring": {"name": "RowScale", "bits": 8}}
COLUMNS = [f"column {number}" for number in range(4)]


def columns_of(found: dict[str, Any], party: str) -> dict[str, float]:
    return {one["column"]: one["lost"] for one in found["columns"] if one["party"] == party}


def require_same_importance(place: Place, summaries: dict[str, dict[str, Any]]) -> None:
    there = simulated(place.job)
    require_same(place, there)
    expected = there.summary()["importance"]
    label = summaries[LABEL_PARTY]["importance"]
    assert {key: label[key] for key in ("metric", "value", "parties")} == {
        key: expected[key] for key in ("metric", "value", "parties")
    }
    assert {one["party"] for one in label["columns"]} <= {LABEL_PARTY}
    for name in place.names:
        found = summaries[name]["importance"]
        assert columns_of(found, name) == columns_of(expected, name)
        assert found["metric"] == expected["metric"]
    for name in place.feature_parties:
        found = summaries[name]["importance"]
        assert (found["value"], found["parties"], len(found["columns"])) == (None, [], 4)
        shown = (place.out(name) / "report.html").read_text()
        assert "Permutation importance by column" in shown
        assert "Permutation importance by party" not in shown
        record = read_run(place.out(name)).importance
        assert record is not None
        assert record.model_dump(mode="json") == found


def test_the_delivered_model_s_are_the_simulators_and_columns_stay_with_their_owner(tmp_path: Path) -> None:
    place = made(tmp_path, Shape(EIGHT_BITS, job={**STEERED, "column_importance": True}, ids=True, own_features=True))
    summaries = ran(place)
    assert 0 < summaries[LABEL_PARTY]["delivered_round"] < summaries[LABEL_PARTY]["rounds"]  # or this job shows less
    require_same_importance(place, summaries)
    assert set(columns_of(summaries[LABEL_PARTY]["importance"], LABEL_PARTY)) == set(COLUMNS)
    sent = {
        (row["sender"], row["receiver"]): row for row in left_ledger(place, LABEL_PARTY) if row["kind"] == "COLUMN"
    }
    assert {row["messages"] for row in sent.values()} == {13}  # four columns three times, and an end
    assert sent[LABEL_PARTY, "bank"]["bytes"] == 12 * (36 + 8) + 36 + len("accuracy")


def test_trees_are_measured_like_networks(tmp_path: Path) -> None:
    """At the label party too; those of the round that is delivered, not of the last one."""
    job = {**STEERED, "batch_size": None, "column_importance": True}
    trees = {"name": "boosted_trees", "width": 2, "leaves": 8, "min_rows": 4, "shrinkage": 1.0, "l2": 0.0}
    top = {"top": {"name": "linear_top", "classes": 2}}
    place = made(tmp_path, Shape({"method": "boosting"}, job, top, trees, ids=True, own_features=True))
    summaries = ran(place)
    assert 0 < summaries[LABEL_PARTY]["delivered_round"] < summaries[LABEL_PARTY]["rounds"]  # or this job shows less
    require_same_importance(place, summaries)
    for name in place.names:
        assert any(columns_of(summaries[name]["importance"], name).values())
        gains = summaries[name]["importance"]["gains"]
        assert {one["party"] for one in gains} == {name}, "their owner's to know"
        assert sum(one["share"] for one in gains) == pytest.approx(1)
        shown = (place.out(name) / "report.html").read_text()
        assert "Gain of splits by column" in shown


def test_parties_are_measured_without_a_byte(tmp_path: Path) -> None:
    """From the last evaluation, where there are no validation rows; a sum of parties cannot be told apart."""
    recipe = {"method": "pbm", "trials": 16, "beta": 0.2}
    settings = {"importance": True, "training": "frozen"}
    place = made(tmp_path, Shape(recipe, parties=3, model=TANH, job=settings, own_features=True))
    summaries = ran(place)
    found = summaries[LABEL_PARTY]["importance"]
    assert [one["party"] for one in found["parties"]] == ["bank + shop + post", LABEL_PARTY]
    assert found["value"] == summaries[LABEL_PARTY]["test"]["accuracy"]
    assert found["note"].startswith("Under a secure sum only the sum of the other parties' embeddings is visible")
    assert len(found["columns"]) == 4
    assert "importance" not in summaries["bank"]
    assert "COLUMN" not in {row["kind"] for row in left_ledger(place, LABEL_PARTY)}


def test_all_parties_must_ask_for_columns(tmp_path: Path) -> None:
    job = made(tmp_path, Shape(EIGHT_BITS)).job
    ours, theirs = read_party_view(job, LABEL_PARTY, ["job.column_importance=true"]), read_party_view(job, "bank")
    assert compare_agreements(ours.agreement(), theirs.agreement(), LABEL_PARTY, "bank") == [
        "job.column_importance is true at 'clinic' and not given at 'bank'"
    ]


@pytest.mark.faults
def test_killed_in_the_midst_of_columns_or_after_them_all_end_with_the_same_figures(tmp_path: Path) -> None:
    """kill -9 at a message about a column, and once the last checkpoint is written but no result."""
    place = made(tmp_path, Shape(EIGHT_BITS, job={"column_importance": True}))
    sent = {
        (row["sender"], row["receiver"], row["kind"]): row["messages"]
        for row in simulated(place.job).ledger.entries()
    }

    def at_column(sender: str, receiver: str) -> dict[str, Any]:
        before = sum(
            count for (*ends, kind), count in sent.items() if ends == [sender, receiver] and kind != "COLUMN"
        )
        return {"call": "writev", "path": f"/sent/{receiver}", "number": before + 3, "do": "kill"}

    at_result = {"call": "replace", "path": "/result.json", "do": "kill"}
    deaths = {"bank": [at_column("bank", LABEL_PARTY)], LABEL_PARTY: [at_column(LABEL_PARTY, "bank"), at_result]}
    deaths["shop"] = [at_result]
    with PartyProcesses() as started:
        parties = {name: started.party(place, name, faults=deaths[name][:1]) for name in place.names}
        for name in ("bank", LABEL_PARTY, LABEL_PARTY, "shop"):
            assert parties[name].code() == -9, parties[name].stderr
            deaths[name].pop(0)
            parties[name] = started.party(place, name, faults=deaths[name])
        summaries = {name: party.summary() for name, party in parties.items()}
    require_same_importance(place, summaries)
