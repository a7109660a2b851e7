"""Scorecards between parties over gRPC: the simulator's points to the last bit, each at its owner."""

from __future__ import annotations

from pathlib import Path

from thinwire.training.scorecards import format_scorecard
from training.party.parties import Shape, made, ran, simulated
from training.party.test_same_as_simulated import require_same

SHAPE = Shape(
    {"method": "svfl"},
    job={"batch_size": None, "eval_every": 1, "epochs": 20, "metrics": ["auc"]},
    model={"name": "scorecard", "l2": 1.0, "min_iv": 0.0},
    label_party={"top": {"name": "scorecard_top", "l2": 1.0}, "loss": "binary_cross_entropy"},
    own_features=True,
)


def test_everybody_has_its_own_scorecard_as_in_the_simulator(tmp_path: Path) -> None:
    place = made(tmp_path, SHAPE)
    ran(place)
    there = simulated(place.job)
    require_same(place, there)
    for name in place.names:
        held = {file.name: file.read_text() for file in (place.out(name) / "models").glob("*.scorecard.csv")}
        assert held == {f"{name}.scorecard.csv": format_scorecard(there.scorecards[name])}
    assert any(row.points for row in there.scorecards["bank"])
