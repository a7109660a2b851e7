"""Exact regressions between parties over gRPC: the simulator's coefficients to the last bit, each at its owner."""

from __future__ import annotations

import json
from pathlib import Path

from processes import until
from thinwire.report.folder import read_run
from training.party.parties import (
    LABEL_PARTY,
    PartyThread,
    Place,
    Seen,
    Shape,
    finished,
    made,
    ran,
    simulated,
    threads,
)
from training.party.test_same_as_simulated import require_same

SHAPE = Shape(
    {"method": "svfl"},
    job={"batch_size": None, "eval_every": 1, "epochs": 20, "metrics": ["mse"]},
    model={"name": "linear", "inference": True},
    label_party={"top": {"name": "regression_top"}, "loss": "squared_error"},
    own_features=True,
)


def require_same_coefficients(place: Place) -> None:
    there = simulated(place.job)
    require_same(place, there)
    assert there.summary()["rounds"] == 5  # four columns at each party, and one exchange that changes nothing
    for name in place.names:
        (table,) = read_run(place.out(name)).coefficients
        assert table == there.coefficients[name]
        assert all(row.error is not None and row.p is not None for row in table.rows)
        shown = (place.out(name) / "report.html").read_text()
        assert f"{name}, by squared error" in shown
        assert not any(f"{other}, by squared error" in shown for other in place.names if other != name)


def test_everybody_has_its_own_coefficients_as_in_the_simulator(tmp_path: Path) -> None:
    place = made(tmp_path, SHAPE)
    ran(place)
    require_same_coefficients(place)
    assert read_run(place.out(LABEL_PARTY)).coefficients[0].rows[0].column == "intercept"
    assert "coefficients" not in json.loads((place.out("bank") / "result.json").read_text())


def test_parties_that_stop_go_on_to_the_same_bit(tmp_path: Path) -> None:
    place, running = made(tmp_path, SHAPE), dict[str, PartyThread]()

    def stop_all(round: int) -> None:
        until(lambda: len(running) == len(place.names))
        if round >= 2:
            for party in running.values():
                party.run.session.stopping.ask()

    with threads(place, seen={LABEL_PARTY: Seen(stop_all)}) as parties:
        running |= parties
        stopped = finished(parties)
    assert all(summary["rounds"] < 5 for summary in stopped.values())
    ran(place)
    require_same_coefficients(place)
