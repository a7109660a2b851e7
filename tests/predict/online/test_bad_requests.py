"""Every request that cannot be answered gets a typed error that names the field, row or id; the server goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from predict.halves import trained
from predict.online.servers import SECONDS, Served, served
from processes import until
from thinwire.align import intersect, write_alignment
from thinwire.engine.compress import Identity
from thinwire.engine.compress.symbols import Dense
from thinwire.engine.wire import encode
from thinwire.predict.pending_requests import answer_body
from training.party.parties import LABEL_PARTY, Shape, made

OUTSIDE = "person-of-the-clinic-alone"
NAME = "scores.bank.example"  # by which clients call the server


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
    with served(place, dict.fromkeys(place.names, run), max_rows=1000, max_body_mb=0.05, hosts=[NAME]) as found:
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
    "rows of text": ({"rows": [1, "2"]}, 400, "wrong_type", "rows[1] must be an integer, got text"),
    "rows of truth": ({"rows": [True]}, 400, "wrong_type", "rows[0] must be an integer, got true or false"),
    "rows with a fraction": ({"rows": [1.0]}, 400, "wrong_type", "rows[0]"),
    "empty rows": ({"rows": []}, 400, "empty", "rows is empty"),
    "empty ids": ({"ids": []}, 400, "empty", "ids is empty"),
    "negative row": ({"rows": [0, -1]}, 404, "unknown_row", "rows[1] is -1; the rows are 0 to 14"),
    "row past the end": ({"rows": [15]}, 404, "unknown_row", "rows are 0 to 14"),
    "huge row": ({"rows": [10**400]}, 404, "unknown_row", "rows[0]"),
    "unknown id": ({"ids": ["nobody"]}, 404, "unknown_id", "'nobody': no row has this id"),
    "id outside the intersection": ({"ids": [OUTSIDE]}, 404, "outside_alignment", "not all parties hold a row"),
    "id of nothing": ({"ids": [" "]}, 404, "unknown_id", "'': no row has this id"),
    "id that is no text": (b'{"ids": ["\\ud800"]}', 400, "bad_input", "not valid Unicode"),
    "id null": ({"ids": [None]}, 400, "wrong_type", "ids[0] must be text or an integer, got null"),
    "id fraction": ({"ids": [1.5]}, 400, "wrong_type", "ids[0]"),
    "too many rows": ({"rows": [0] * 1001}, 413, "too_many_rows", "1001 rows, one request may name 1000"),
    "too large": (b'{"rows": [' + b"1," * 40_000 + b"1]}", 413, "too_large", "over 50000 bytes"),
    "NaN": (b'{"rows": [0], "features": [[NaN, 0, 0, 0]]}', 400, "not_finite", "NaN"),
    "infinity": (b'{"rows": [0], "features": [[1e999, 0, 0, 0]]}', 400, "not_finite", "features[0, 0]"),
    "features of another shape": ({"rows": [0], "features": [[1.0]]}, 400, "wrong_type", "expected [1, 4]"),
    "features of text": ({"rows": [0], "features": [["a"]]}, 400, "wrong_type", "must be numbers"),
    "ragged features": ({"rows": [0, 1], "features": [[1.0], [1.0, 2.0]]}, 400, "wrong_type", "must be numbers"),
    "deadline of nothing": ({"rows": [0], "deadline_ms": 0}, 400, "wrong_type", "deadline_ms must be from 1"),
    "deadline past all floats": (
        b'{"rows": [0], "deadline_ms": 1' + b"0" * 400 + b"}",
        400,
        "wrong_type",
        "got 1000",
    ),
    "a number of many digits": (b'{"rows": [1' + b"0" * 5000 + b"]}", 400, "malformed_json", "too many digits"),
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


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/model", "/healthz", "/metrics", "/nothing"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "evil", "a b", ""])
def test_a_name_that_is_not_the_servers_is_refused(path: str, host: str, found: Served) -> None:
    """Else a page elsewhere could have its own name lead here, and read the scores."""
    method, body = ("POST", b'{"rows": [0]}') if path == "/v1/predict" else ("GET", None)
    reply = found.client.call(method, path, body, {"Host": host, "Content-Type": "application/json"})
    assert (reply.status, reply.kind) == (421, "wrong_host"), reply.body
    assert "serve.hosts" in reply.body["error"]["message"]


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:1", "localhost.", "127.0.0.1", "[::1]:80", "10.1.2.3:8080", NAME, f"{NAME}:80"]
)
def test_addresses_and_the_names_of_the_server_are_answered(host: str, found: Served) -> None:
    assert found.client.score({"rows": [0]}, {"Host": host}).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "text/plain;application/json", "multipart/form-data", ""])
def test_only_json_is_taken(kind: str, found: Served) -> None:
    """What a page of another site may have a browser send unasked is none."""
    reply = found.client.score({"rows": [0]}, {"Content-Type": kind})
    assert (reply.status, reply.kind) == (415, "wrong_content_type")
    assert "send application/json" in reply.body["error"]["message"]
    assert found.client.score({"rows": [0]}, {"Content-Type": "Application/JSON; charset=utf-8"}).status == 200


def test_a_million_ids_are_refused_at_once(found: Served) -> None:
    body = json.dumps({"ids": [f"person-{number}" for number in range(1_000_000)]}).encode()
    reply = found.client.score(body)
    assert (reply.status, reply.kind) == (413, "too_large")
    assert "ask in several requests" in reply.body["error"]["message"]


def counted(found: Served, outcome: str) -> int:
    lines = found.client.get("/metrics").body["text"].splitlines()
    start = f'thinwire_requests_total{{outcome="{outcome}"}} '
    return sum(int(float(line.removeprefix(start))) for line in lines if line.startswith(start))


def sent(found: Served, data: bytes) -> socket.socket:
    host, _, port = found.server.address.removeprefix("http://").rpartition(":")
    line = socket.create_connection((host, int(port)), timeout=SECONDS)
    line.sendall(data)
    return line


HALF = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"


def test_requests_that_cannot_be_read_are_counted_too(found: Served) -> None:
    before = {kind: counted(found, kind) for kind in ("malformed_json", "too_large", "disconnected")}
    found.client.score(b"{")
    found.client.score(b" " * 100_000)
    sent(found, HALF).close()
    until(lambda: counted(found, "disconnected") == before["disconnected"] + 1)
    assert counted(found, "malformed_json") == before["malformed_json"] + 1
    assert counted(found, "too_large") == before["too_large"] + 1
    assert not [one for one in found.sentences if "a request failed" in one]  # a client that leaves is no fault


def test_a_body_that_does_not_come_is_not_waited_for(found: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.predict.online.http.BODY_SECONDS", 0.05)
    with sent(found, HALF) as line:
        answer = b"".join(iter(lambda: line.recv(4096), b""))  # to the end of the connection
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"slow"' in answer


@pytest.mark.parametrize("requests", [0, 1])
def test_a_head_that_does_not_come_is_not_waited_for(
    requests: int, found: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thinwire.predict.online.http.HEAD_SECONDS", 0.05)
    with sent(found, b"") as line:
        for _ in range(requests):
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = line.recv(4096)
            while not answer.endswith(b"}"):  # its body may come behind its head
                answer += line.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
        line.sendall(b"POST /v1")
        assert line.recv(4096) == b""  # closed


def test_more_connections_than_there_can_be_are_refused(found: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server = found.server._server
    until(lambda: not server.server_state.connections)
    monkeypatch.setattr(server.config, "limit_concurrency", 2)
    with sent(found, b"") as first, sent(found, b""):
        until(lambda: len(server.server_state.connections) == 2)
        with sent(found, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as third:
            answer = b"".join(iter(lambda: third.recv(4096), b""))  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 503 ")
        with sent(found, b""):
            assert first.recv(4096) == b""  # what has been idle longest makes room
    until(lambda: not server.server_state.connections)
    assert found.client.score({"rows": [0]}).status == 200


def test_what_is_null_was_not_given(found: Served) -> None:
    body = {"rows": [0], "ids": None, "features": None, "deadline_ms": None, "model": None}
    assert found.client.score(body).status == 200


def test_scores_that_are_not_finite_are_no_answer(found: Served) -> None:
    """Last of all: the label party's own model is broken, then its features."""
    (model,) = found.server.party.models.values()
    bottom = model._data.bottom
    assert bottom is not None
    held = {key: value.clone() for key, value in bottom.state_dict().items()}
    with torch.no_grad():
        for parameter in bottom.parameters():
            parameter.fill_(1e30)
    reply = found.client.score({"rows": [3], "features": [[1e30] * 4]})
    assert (reply.status, reply.kind) == (400, "not_finite")
    assert "features[0] lead to a score that is not finite" in reply.body["error"]["message"]
    with torch.no_grad():
        for parameter in bottom.parameters():
            parameter.fill_(float("nan"))
    reply = found.client.score({"rows": [3]})
    assert (reply.status, reply.kind) == (500, "not_finite")
    assert "the score of row 3 is not finite" in reply.body["error"]["message"]
    bottom.load_state_dict(held)
    assert found.client.score({"rows": [3]}).status == 200


def test_a_bad_deadline_header_is_named(found: Served) -> None:
    assert found.client.score({"rows": [0]}, {"X-Deadline-Ms": "never"}).kind == "wrong_type"
    assert found.client.score({"rows": [0]}, {"X-Deadline-Ms": "5000"}).status == 200


def test_other_places_and_methods_say_where_to_look(found: Served) -> None:
    wrong = found.client.get("/v1/predict")
    assert (wrong.status, wrong.kind) == (405, "wrong_method")
    assert found.client.get("/v1/model/").status == 404
    lost = found.client.get("/nothing")
    assert (lost.status, lost.kind) == (404, "not_found")
    assert "/openapi.json" in lost.body["error"]["message"]


def test_the_openapi_document_names_every_error_there_is(found: Served) -> None:
    document = found.client.get("/openapi.json").body
    responses = document["paths"]["/v1/predict"]["post"]["responses"]
    for _, status, kind, _ in BAD.values():
        assert kind in responses[str(status)]["description"]
    assert document["components"]["schemas"]["Request"]["properties"]["rows"]["maxItems"] == 1000


def as_sent(h: torch.Tensor) -> bytes:
    return encode(Identity().compress(h, torch.Generator()))


def test_what_a_party_sends_is_looked_at(found: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything but finite embeddings of the right shape is that party's failure, said with its name."""
    party = found.features["bank"].server.party
    bodies = {
        "shape [1, 3], expected [1, 4]": as_sent(torch.zeros(1, 3)),
        "NaN or infinity": encode(Dense((1, 4), torch.float32, np.full(4, np.nan, np.float32))),
        "invalid message body": b"\xff",
        "an invalid answer": None,
    }
    for says, body in bodies.items():
        answer = b"\x07" if body is None else answer_body(body)
        monkeypatch.setattr(party, "_answer", lambda *_, answer=answer: answer)
        reply = found.client.score({"rows": [0]})
        assert (reply.status, reply.kind, reply.body["error"]["parties"]) == (502, "party_failed", ["bank"]), says
        assert says in reply.body["error"]["message"]
    monkeypatch.undo()
    assert found.client.score({"rows": [0]}).status == 200


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
