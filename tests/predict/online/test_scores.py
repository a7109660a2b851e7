"""The model in use is what the simulator predicts, to the bit, alone or with a hundred others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from predict.halves import simulated_outputs, trained
from predict.online.servers import served
from predict.test_same_as_simulated import TREES
from thinwire.job.row_selection import RowSet
from training.party.parties import LABEL_PARTY, ROWS, TESTS, Shape, made

TANH = {"name": "mlp", "hidden": [6], "width": 4, "out_activation": "tanh"}
EFVFL: dict[str, Any] = {"method": "efvfl", "compressor": {"name": "TopK", "fraction": 0.25}}
EVERY = {
    "boosting": TREES,
    "svfl": Shape({"method": "svfl"}, own_features=True, ids=True),
    "cvfl": Shape({"method": "cvfl", "compressor": {"name": "Uniform", "bits": 4}}),
    "efvfl, shared": Shape(EFVFL),
    "efvfl, private": Shape({**EFVFL, "labels": "private"}),
    "celu": Shape({"method": "celu", "capacity": 3, "reuse": 3}, label_party={"fusion": "concat"}),
    "thin": Shape({"method": "thin"}),
}


def bits(scores: list[list[float]]) -> torch.Tensor:
    return torch.tensor(scores, dtype=torch.float32)


@pytest.mark.parametrize("name", EVERY)
def test_served_scores_are_the_simulators(name: str, tmp_path: Path) -> None:
    place = made(tmp_path, EVERY[name])
    folder = trained(place)
    run, outputs = simulated_outputs(folder, RowSet.ALL)
    expected = run.outputs.format_scores(outputs)
    with served(place, dict.fromkeys(place.names, folder), RowSet.ALL) as found:
        reply = found.client.score({"rows": list(range(len(expected)))})
        assert reply.status == 200
        assert torch.equal(bits(reply.body["scores"]), expected)
        assert reply.body["missing"] == []
        assert reply.body["columns"] == ["probability_0", "probability_1"]
        one = found.client.score({"rows": [7]})
        assert torch.equal(bits(one.body["scores"]), expected[[7]])
        assert one.body["model"] == reply.body["model"] == found.client.get("/v1/model").body["model"]


def test_a_gap_in_a_request_is_null_where_trees_take_it(tmp_path: Path) -> None:
    place = made(tmp_path, TREES)
    folder = trained(place)
    run, _ = simulated_outputs(folder)
    assert run.job is not None
    tables = {party.name: party.test_features.clone() for party in run.job.everyone}
    tables[LABEL_PARTY][:, 0] = torch.nan
    expected = run.probabilities(tables)
    rows = [[None, *row[1:]] for row in tables[LABEL_PARTY].tolist()]
    with served(place, dict.fromkeys(place.names, folder)) as found:
        reply = found.client.score({"rows": list(range(len(rows))), "features": rows})
    assert torch.equal(bits(reply.body["scores"]), expected)


def test_pbm_through_serve_is_the_simulators_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr("thinwire.predict.scoring.token_bytes", bytes)  # noise is fresh otherwise
    shape = Shape({"method": "pbm", "trials": 16, "beta": 0.2}, parties=3, model=TANH, job={"training": "frozen"})
    place = made(tmp_path, shape)
    folder = trained(place)
    twin = Path(shutil.copytree(folder, tmp_path / "twin"))
    run, outputs = simulated_outputs(twin)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        rows = list(range(len(outputs)))
        first, second = (found.client.score({"rows": rows}) for _ in range(2))
        assert torch.equal(bits(first.body["scores"]), run.outputs.format_scores(outputs))
        assert first.body["scores"] != second.body["scores"]  # a new question has new noise
    _, again = simulated_outputs(twin)
    assert torch.equal(bits(second.body["scores"]), run.outputs.format_scores(again))


def test_a_hundred_clients_at_once_get_their_own_rows(tmp_path: Path) -> None:
    place = made(tmp_path, EVERY["svfl"])
    folder = trained(place)
    run, outputs = simulated_outputs(folder)
    expected = run.outputs.format_scores(outputs)
    ids = run.job is not None and simulated_ids(folder)
    assert ids
    with served(place, dict.fromkeys(place.names, folder), max_batch=32) as found:

        def ask(number: int) -> bool:
            rows = [(number * 5 + step) % len(expected) for step in range(1 + number % 4)]
            by_id = number % 2
            body = {"ids": [ids[row] for row in rows]} if by_id else {"rows": rows}
            reply = found.client.score(body)
            return reply.status == 200 and torch.equal(bits(reply.body["scores"]), expected[rows])

        with ThreadPoolExecutor(100) as clients:
            assert all(clients.map(ask, range(300)))
        text = found.client.get("/metrics").body["text"]
    assert 'thinwire_requests_total{outcome="ok"} 300' in text
    batches = next(line for line in text.splitlines() if line.startswith("thinwire_batch_rows_count"))
    assert 0 < float(batches.split()[1]) < 300  # some went together


def simulated_ids(folder: Path) -> list[str]:
    from thinwire.predict.run import load_run, read_own_rows

    found = read_own_rows(load_run(folder), None).ids
    assert found is not None
    return list(found.ids)


def test_own_features_of_a_request_take_the_place_of_the_tables(tmp_path: Path) -> None:
    place = made(tmp_path, EVERY["svfl"])
    folder = trained(place)
    run, _ = simulated_outputs(folder)
    assert run.job is not None
    tables = {party.name: party.test_features for party in run.job.parties}
    brought = torch.arange(64, dtype=torch.float32).reshape(16, 4) / 64
    expected = run.probabilities({**tables, LABEL_PARTY: brought})
    with served(place, dict.fromkeys(place.names, folder)) as found:
        body = {"rows": [3, 9], "features": brought[[3, 9]].tolist()}
        assert torch.equal(bits(found.client.score(body).body["scores"]), expected[[3, 9]])


def test_raw_columns_by_name_score_as_the_same_row_of_the_table(tmp_path: Path) -> None:
    """The label party's own columns are prepared as in training; prepared numbers are taken as before."""
    place = made(tmp_path, Shape({"method": "svfl"}, own_features=True))
    towns, form = ("Bern", "Basel"), {"delimiter": ";", "decimal": ","}
    for name, rows in (("own", ROWS), ("own_test", TESTS)):
        lines = [f"{20 + k % 40},5;{towns[k % 2] if k % 5 else ''}" for k in range(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age;town", *lines]) + "\n")
    place.document["label_party"] |= {
        "features": {"file": "own.csv", **form},
        "test_features": {"file": "own_test.csv", **form},
        "prepare": {},
    }
    place.write("job.toml")
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        table = found.client.score({"rows": [0, 3]}).body["scores"]
        assert found.client.get("/v1/model").body["columns"] == ["age", "town"]
        request = found.client.get("/openapi.json").body["components"]["schemas"]["Request"]
        assert [one["type"] for one in request["properties"]["features"]["items"]["anyOf"]] == ["array", "object"]
        for first in ({"age": 20.5, "town": None}, {"age": "20,5", "town": ""}):
            own = [first, {"age": 23.5, "town": "Basel"}]
            reply = found.client.score({"rows": [0, 3], "features": own})
            assert (reply.status, reply.body.get("scores")) == (200, table)
        prepared = found.server.party.ready.model.rows.features[[0, 3]].tolist()  # type: ignore[union-attr, index]
        assert found.client.score({"rows": [0, 3], "features": prepared}).body["scores"] == table
        other = found.client.score({"rows": [0], "features": [{"age": 59.5, "town": "Basel"}]})
        assert other.body["scores"] != table[:1]
        for wrong, message in (
            ([{"age": 1}], "features[0] lacks 'town'; give null where a value is missing"),
            ([{"age": 1, "town": "x", "tow": 1}], "features[0] has 'tow', which is not a column of the model"),
            ([{"age": "x", "town": "x"}], "column 'age' holds 'x', not a number"),
            ([{"age": 1, "town": "\ud800"}], "surrogates not allowed"),
            ([{"age": 1, "town": "x"}] * 2, "features hold 2 rows, expected 1"),
        ):
            reply = found.client.score({"rows": [0], "features": wrong})
            assert (reply.status, reply.kind) == (400, "wrong_type")
            assert message in reply.body["error"]["message"]
