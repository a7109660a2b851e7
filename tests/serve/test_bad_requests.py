"""Every request that cannot be answered gets a typed error that names the field, row or id; the server goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from network.parties import LABEL_PARTY, Shape, made
from predict.halves import trained
from serve.servers import Served, served
from thinwire.align import intersect, write_alignment

OUTSIDE = "person-of-the-clinic-alone"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Test rows that were aligned: the label party holds an id that the others lack."""
    folder = tmp_path_factory.mktemp("bad")
    place = made(folder, Shape({"method": "svfl"}, ids=True, own_features=True))
    with np.load(folder / f"{LABEL_PARTY}.npz") as held:
        tables = {key: held[key] for key in held.files}
    tables["id_test"] = np.array([*tables["id_test"][:-1], OUTSIDE])
    np.savez(folder / f"{LABEL_PARTY}.npz", **tables)
    ids = {}
    for name in place.names:
        with np.load(folder / f"{name}.npz") as held:
            ids[name] = [str(one) for one in held["id_test"]]
    for name, alignment in intersect(ids, LABEL_PARTY, workers=1).items():
        write_alignment(folder / f"{name}-test.alignment", alignment)
    for section in (*place.document["party"], place.document["label_party"]):
        section["test_alignment"] = f"{section['name']}-test.alignment"
    place.write("job.toml")
    run = trained(place)
    with served(place, dict.fromkeys(place.names, run), max_rows=1000, max_body_mb=0.05) as found:
        yield found


BAD: dict[str, tuple[Any, int, str, str]] = {
    "no JSON": (b"{rows: 1", 400, "malformed_json", "not JSON"),
    "empty body": (b"", 400, "malformed_json", "not JSON"),
    "not UTF-8": (b'{"rows": [1], "x": "\xff"}', 400, "malformed_json", "not JSON"),
    "deep": (b"[" * 20_000, 400, "malformed_json", "not JSON"),
    "a list": ([1, 2], 400, "wrong_type", "must be a JSON object, got a list"),
    "null": (None, 400, "wrong_type", "must be a JSON object"),
    "neither": ({}, 400, "wrong_type", "either ids or rows"),
    "both": ({"rows": [1], "ids": ["a"]}, 400, "wrong_type", "either ids or rows"),
    "unknown field": ({"rows": [1], "row": 2}, 400, "unknown_field", "'row' is unknown"),
    "rows is a number": ({"rows": 3}, 400, "wrong_type", "rows must be a list, got a number"),
    "rows of text": ({"rows": [1, "2"]}, 400, "wrong_type", "rows[1] must be a whole number, got text"),
    "rows of truth": ({"rows": [True]}, 400, "wrong_type", "rows[0] must be a whole number, got true or false"),
    "rows with a fraction": ({"rows": [1.0]}, 400, "wrong_type", "rows[0]"),
    "empty rows": ({"rows": []}, 400, "empty", "rows is empty"),
    "empty ids": ({"ids": []}, 400, "empty", "ids is empty"),
    "negative row": ({"rows": [0, -1]}, 404, "unknown_row", "rows[1] is -1; there are rows 0 to 14"),
    "row past the end": ({"rows": [15]}, 404, "unknown_row", "rows 0 to 14"),
    "huge row": ({"rows": [10**400]}, 404, "unknown_row", "rows[0]"),
    "unknown id": ({"ids": ["nobody"]}, 404, "unknown_id", "'nobody': no row has this id"),
    "id outside the intersection": ({"ids": [OUTSIDE]}, 404, "outside_alignment", "not all parties hold a row"),
    "id of nothing": ({"ids": [" "]}, 404, "unknown_id", "'': no row has this id"),
    "id that is no text": (b'{"ids": ["\\ud800"]}', 400, "bad_input", "no Unicode text"),
    "id null": ({"ids": [None]}, 400, "wrong_type", "ids[0] must be text or a whole number, got null"),
    "id fraction": ({"ids": [1.5]}, 400, "wrong_type", "ids[0]"),
    "too many rows": ({"rows": [0] * 1001}, 413, "too_many_rows", "1001 rows, one request may name 1000"),
    "too large": (b'{"rows": [' + b"1," * 40_000 + b"1]}", 413, "too_large", "over 50000 bytes"),
    "NaN": (b'{"rows": [0], "features": [[NaN, 0, 0, 0]]}', 400, "not_finite", "NaN"),
    "infinity": (b'{"rows": [0], "features": [[1e999, 0, 0, 0]]}', 400, "not_finite", "features[0, 0]"),
    "features of another shape": ({"rows": [0], "features": [[1.0]]}, 400, "wrong_type", "expected [1, 4]"),
    "features of text": ({"rows": [0], "features": [["a"]]}, 400, "wrong_type", "must be numbers"),
    "ragged features": ({"rows": [0, 1], "features": [[1.0], [1.0, 2.0]]}, 400, "wrong_type", "must be numbers"),
    "deadline of nothing": ({"rows": [0], "deadline_ms": 0}, 400, "wrong_type", "deadline_ms must be from 1"),
    "deadline of text": ({"rows": [0], "deadline_ms": "soon"}, 400, "wrong_type", "got soon"),
    "another model": ({"rows": [0], "model": "abc"}, 503, "model_mismatch", "not abc"),
    "a model of a number": ({"rows": [0], "model": 3}, 400, "wrong_type", "model must be a version's text"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_by_name(name: str, found: Served) -> None:
    body, status, kind, says = BAD[name]
    reply = found.client.score(body)
    assert (reply.status, reply.kind) == (status, kind), reply.body
    assert says in reply.body["error"]["message"]
    assert found.client.score({"rows": [0]}).status == 200


def test_a_million_ids_are_refused_at_once(found: Served) -> None:
    body = json.dumps({"ids": [f"person-{number}" for number in range(1_000_000)]}).encode()
    reply = found.client.score(body)
    assert (reply.status, reply.kind) == (413, "too_large")
    assert "ask in several requests" in reply.body["error"]["message"]


def test_a_bad_deadline_header_is_named(found: Served) -> None:
    assert found.client.score({"rows": [0]}, {"X-Deadline-Ms": "never"}).kind == "wrong_type"
    assert found.client.score({"rows": [0]}, {"X-Deadline-Ms": "5000"}).status == 200


def test_other_places_and_methods_say_where_to_look(found: Served) -> None:
    assert found.client.get("/v1/predict").status == 405
    lost = found.client.get("/nothing")
    assert (lost.status, lost.kind) == (404, "not_found")
    assert "/openapi.json" in lost.body["error"]["message"]


def test_the_openapi_document_names_every_error_there_is(found: Served) -> None:
    document = found.client.get("/openapi.json").body
    responses = document["paths"]["/v1/predict"]["post"]["responses"]
    for _, status, kind, _ in BAD.values():
        assert kind in responses[str(status)]["description"]
    assert document["components"]["schemas"]["Request"]["properties"]["rows"]["maxItems"] == 1000


def test_ids_are_compared_as_an_alignment_compares_them(found: Served) -> None:
    table = found.server.party.models
    ids = next(iter(table.values())).rows.ids
    assert ids is not None
    twice = found.client.score({"ids": [ids.ids[4], ids.ids[4]]})
    plain = found.client.score({"ids": [ids.ids[4]]})
    assert twice.body["scores"] == 2 * plain.body["scores"]
    spaced = found.client.score({"ids": [f"  {ids.ids[4]} "]})
    by_row = found.client.score({"rows": [4]})
    assert plain.status == 200
    assert plain.body["scores"] == spaced.body["scores"] == by_row.body["scores"]
