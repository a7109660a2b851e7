"""A party that is missing, lost, stalled or changed: a typed error within the deadline, or a marked default."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import weakref
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from predict.halves import asked, predicting, simulated_outputs, trained
from predict.online.servers import Client, Feature, served
from processes import THINWIRE, until
from thinwire.engine.privacy import poisson_binomial_epsilon
from thinwire.job.schema import ServeTerms
from thinwire.net.grpc.service import Refused
from thinwire.predict.online.batching import ScoringBatch
from thinwire.predict.run import load_run, read_own_rows
from training.party.parties import LABEL_PARTY, PartyProcesses, Place, Shape, free_port, made, ran

SVFL = Shape({"method": "svfl"})
TANH = {"name": "mlp", "hidden": [6], "width": 4, "out_activation": "tanh"}


def table(scores: list[list[float]]) -> torch.Tensor:
    return torch.tensor(scores, dtype=torch.float32)


def with_terms(place: Place, party: int, **terms: Any) -> None:
    place.document["party"][party]["serve"] = terms
    place.write("job.toml")


def test_a_killed_party_is_named_and_comes_back_by_itself(tmp_path: Path) -> None:
    """Real processes: kill -9, and the same command again."""
    place = made(tmp_path, SVFL)
    folder = trained(place)
    run, outputs = simulated_outputs(folder)
    expected = run.outputs.format_scores(outputs)
    port = free_port()
    with PartyProcesses() as started:

        def serve(name: str, *more: str) -> Any:
            command: list[str | Path] = [THINWIRE, "serve", folder, "--name", name, "--yes", *more]
            return started.command(command, place.folder)

        parties = {name: serve(name) for name in place.feature_parties}
        parties[LABEL_PARTY] = serve(LABEL_PARTY, "--http", f"127.0.0.1:{port}")
        parties[LABEL_PARTY].says("scores at")
        client = Client(f"http://127.0.0.1:{port}")

        def is_whole() -> bool:
            try:
                return client.get("/healthz").status == 200
            except OSError:
                return False

        until(is_whole)
        assert torch.equal(table(client.score({"rows": [0, 5]}).body["scores"]), expected[[0, 5]])
        parties["bank"].kill()
        until(lambda: client.get("/healthz").status == 503)
        reply = client.score({"rows": [0], "deadline_ms": 600_000})  # not waited for: the client gives up far earlier
        assert (reply.status, reply.kind, reply.body["error"]["parties"]) == (503, "party_missing", ["bank"])
        assert client.get("/healthz").body["missing"] == ["bank"]
        parties["bank"] = serve("bank")
        until(is_whole)
        assert torch.equal(table(client.score({"rows": [0, 5]}).body["scores"]), expected[[0, 5]])
        # One that is stopped looks alive: only the deadline tells.
        stopped = parties["shop"]._process
        os.kill(stopped.pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        reply = client.score({"rows": [1], "deadline_ms": 400})
        assert (reply.status, reply.kind, reply.body["error"]["parties"]) == (504, "deadline", ["shop"])
        os.kill(stopped.pid, signal.SIGCONT)
        until(lambda: client.score({"rows": [1]}).status == 200)
        parties["shop"].interrupt()
        assert parties["shop"].code() == 0
        parties[LABEL_PARTY].interrupt()
        assert parties[LABEL_PARTY].code() == 0, parties[LABEL_PARTY].stderr
        assert "Traceback" not in parties[LABEL_PARTY].stderr


def test_requests_that_wait_hear_at_once_of_a_lost_party(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        hold(found.features["bank"])
        with ThreadPoolExecutor(4) as clients:
            coming = [clients.submit(found.client.score, {"rows": [row], "deadline_ms": 60_000}) for row in range(4)]
            until(lambda: found.features["bank"].server.party._queue.qsize() > 0)
            found.features["bank"].end()
            replies = [one.result(20) for one in coming]
        assert {reply.kind for reply in replies} == {"party_missing"}
        assert all("bank" in reply.body["error"]["message"] for reply in replies)
        found.features["bank"] = Feature(place, "bank", folder)
        found.is_whole()
        assert found.client.score({"rows": [0]}).status == 200


def test_what_was_asked_over_a_connection_that_is_replaced_is_lost_at_once(tmp_path: Path) -> None:
    """A party that calls again before the end of its old connection was noticed has forgotten what it was asked."""
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        hold(found.features["bank"])
        with ThreadPoolExecutor(1) as client:
            coming = client.submit(found.client.score, {"rows": [0], "deadline_ms": 60_000})
            until(lambda: found.features["bank"].server.party._queue.qsize() > 0)
            found.server.party.lines["bank"].attach(lambda: None, 0, 0)
            assert coming.result(20).kind == "party_missing"


def test_what_was_withdrawn_over_a_connection_ends_with_it(tmp_path: Path) -> None:
    """A label party that was started again counts its questions anew: the numbers are those of other questions."""
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        party = found.features["bank"].server.party
        party._withdrawn.update(range(100))  # as it is where each came behind its answer
        attached, before = found.server.party.lines["bank"]._attached, party._connection
        assert attached is not None
        attached.end("cut")
        until(lambda: party._connection > before)
        found.is_whole()
        assert party._withdrawn == set()


def hold(feature: Feature) -> None:
    """It takes questions and answers none."""
    party = feature.server.party
    party._queue.put(None)
    until(lambda: party._queue.qsize() == 0)


@pytest.mark.parametrize("default", ["mean", "zeros"])
def test_a_stated_default_stands_for_a_missing_party_and_is_marked(default: str, tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    with_terms(place, 0, when_missing=default)
    folder = trained(place)
    run = load_run(folder)
    held = read_own_rows(run, None)
    assert run.job is not None
    h = {name: run.models[name](held.tables[name]).detach() for name in ("bank", "shop")}
    mean = run.models["bank"](run.job.parties[0].features).detach().double().mean(dim=0).float()
    instead = mean if default == "mean" else torch.zeros(4)
    expected = torch.softmax(run.models["top"](instead + h["shop"]).detach(), dim=1)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        assert found.client.score({"rows": [0]}).body["missing"] == []
        found.features["bank"].end()
        until(lambda: found.client.get("/v1/model").body["parties"]["bank"] is False)
        assert found.client.get("/healthz").status == 200
        reply = found.client.score({"rows": list(range(held.count))})
        assert (reply.status, reply.body["missing"]) == (200, ["bank"])
        assert torch.allclose(table(reply.body["scores"]), expected, atol=1e-6)
        found.features["shop"].end()
        until(lambda: found.client.get("/healthz").status == 503)
        assert found.client.score({"rows": [0]}).body["error"]["parties"] == ["shop"]
    # The default is remembered: the party need not be there when the server starts again.
    with served(place, dict.fromkeys(place.names, folder), without=("bank",)) as found:
        found.is_whole()
        assert found.client.score({"rows": [0]}).body["missing"] == ["bank"]


def test_a_party_that_hangs_does_not_use_up_the_places_of_others(tmp_path: Path) -> None:
    """Far more requests than batches that may be under way: each is begun, and gets its default in time."""
    place = made(tmp_path, SVFL)
    with_terms(place, 0, when_missing="zeros")
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder), max_batch=1) as found:
        hold(found.features["bank"])
        with ThreadPoolExecutor(24) as clients:
            coming = [
                clients.submit(found.client.score, {"rows": [row % 16], "deadline_ms": 2000}) for row in range(24)
            ]
            replies = [one.result() for one in coming]
    assert {reply.status for reply in replies} == {200}, [reply.body for reply in replies]
    assert {tuple(reply.body["missing"]) for reply in replies} == {("bank",)}


def test_a_question_that_nobody_waits_for_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one whose deadline has passed, nor one of a connection that is gone: under a budget it would cost."""
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder), max_batch=1) as found:
        party, go_on = found.features["bank"].server.party, Event()
        answer = party._answer

        def held(number: int, body: Any) -> bytes:
            go_on.wait(300)
            return answer(number, body)

        monkeypatch.setattr(party, "_answer", held)

        def ask(deadline_ms: int) -> list[Any]:
            with ThreadPoolExecutor(4) as clients:
                return list(
                    clients.map(lambda row: found.client.score({"rows": [row], "deadline_ms": deadline_ms}), range(4))
                )

        assert {reply.kind for reply in ask(300)} == {"deadline"}
        until(lambda: len(party._withdrawn) == 4)
        go_on.set()
        until(lambda: party._queue.qsize() == 0)
        assert found.client.score({"rows": [0]}).status == 200
        assert party.questions == 2  # the one under way at the time, and the last

        go_on.clear()
        with ThreadPoolExecutor(1) as other:
            coming = other.submit(ask, 60_000)
            until(lambda: party._queue.qsize() == 3)
            attached, connection = found.server.party.lines["bank"]._attached, party._connection
            assert attached is not None
            attached.end("cut")
            assert {reply.kind for reply in coming.result()} == {"party_missing"}
        found.is_whole()
        until(lambda: party._connection > connection)
        go_on.set()
        assert found.client.score({"rows": [0]}).status == 200
        assert party.questions == 4


def test_nothing_is_held_once_it_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not until the deadline that a request might have waited for."""
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        scorer, begun = found.server.service.scorer, []
        begin = scorer.begin

        def noted(*what: Any) -> ScoringBatch:
            batch = begin(*what)
            begun.append(weakref.ref(batch))
            return batch

        monkeypatch.setattr(scorer, "begin", noted)
        for row in range(3):
            assert found.client.score({"rows": [row], "deadline_ms": 600_000}).status == 200
        assert len(begun) == 3

        def are_gone() -> bool:
            gc.collect()
            return all(one() is None for one in begun)

        until(are_gone)


def test_at_its_deadline_a_request_takes_the_default_of_whoever_is_slow(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    with_terms(place, 0, when_missing="zeros")
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        hold(found.features["bank"])
        reply = found.client.score({"rows": [0], "deadline_ms": 500})
        assert (reply.status, reply.body["missing"]) == (200, ["bank"])
        assert 'thinwire_defaults_total{party="bank"} 1' in found.client.get("/metrics").body["text"]


def test_embeddings_are_kept_where_a_party_allows_it(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    with_terms(place, 0, cache_rows=3, cache_seconds=600.0)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        bank, shop = (found.features[name].server.party for name in ("bank", "shop"))
        first = found.client.score({"rows": [0, 1]})
        again = found.client.score({"rows": [1, 0]})
        assert (bank.questions, shop.questions) == (1, 2)
        assert again.body["scores"] == first.body["scores"][::-1]
        mixed = found.client.score({"rows": [0, 9]})
        assert mixed.body["scores"][0] == first.body["scores"][0]
        assert found.client.score({"rows": [2, 3, 4, 5]}).status == 200
        assert found.server.service.scorer.cache.sizes() == {"bank": 3}
        assert 'thinwire_cache_lookups_total{found="yes"} 3' in found.client.get("/metrics").body["text"]


def test_another_model_than_the_runs_is_refused_by_its_hash(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    ran(place)
    folders = {name: place.out(name) for name in place.names}
    with served(place, folders) as found:
        assert found.client.score({"rows": [0]}).status == 200
        found.features["bank"].end()
        file = folders["bank"] / "models" / "bank.safetensors"
        save_file({key: value + 1 for key, value in load_file(file).items()}, file)
        found.features["bank"] = Feature(place, "bank", folders["bank"])
        until(lambda: found.features["bank"].error is not None)
        assert isinstance(found.features["bank"].error, Refused)
        assert "its file has changed" in str(found.features["bank"].error)
        reply = found.client.score({"rows": [0]})
        assert (reply.status, reply.kind, reply.body["error"]["parties"]) == (503, "model_mismatch", ["bank"])


def test_a_file_that_changes_under_a_running_server_changes_nothing(tmp_path: Path) -> None:
    """A run's models are what they were: the old ones in memory go on, and the party says why."""
    place = made(tmp_path, SVFL)
    ran(place)
    folders = {name: place.out(name) for name in place.names}
    with served(place, folders) as found:
        before = found.client.score({"rows": [0]}).body
        for name, model in (("bank", "bank"), (LABEL_PARTY, "top")):
            file = folders[name] / "models" / f"{model}.safetensors"
            save_file({key: value + 1 for key, value in load_file(file).items()}, file)
        said = [found.features["bank"].sentences, found.sentences]
        until(lambda: all(any("its file has changed" in one for one in sentences) for sentences in said))
        assert found.client.score({"rows": [0]}).body == before


def test_a_client_that_insists_on_a_model_never_gets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where models change between its request and the answer."""
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        service, party = found.server.service, found.server.party
        wanted = service.version()
        score = service._batcher.score

        async def after_a_change(request: Any) -> Any:
            ready = party.ready
            assert ready is not None
            other = copy(ready.model)
            other.hash = "0" * 64
            party.ready = replace(ready, model=other)
            return await score(request)

        monkeypatch.setattr(service._batcher, "score", after_a_change)
        reply = found.client.score({"rows": [0], "model": wanted})
        assert (reply.status, reply.kind) == (503, "model_mismatch")
        assert f"not {wanted}" in reply.body["error"]["message"]


def test_a_question_for_another_model_is_refused_every_time(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        ready = found.server.party.ready
        assert ready is not None
        assert isinstance(ready.hashes, dict)
        ready.hashes["shop"] = "0" * 64
        for _ in range(2):
            reply = found.client.score({"rows": [0]})
            assert (reply.status, reply.kind, reply.body["error"]["parties"]) == (503, "model_mismatch", ["shop"])


def test_after_the_budget_is_spent_a_request_is_refused_by_the_partys_name(tmp_path: Path) -> None:
    """The same budget holds for training, evaluation and predictions; a restart forgets nothing."""
    uses = 5
    budget = {"epsilon": poisson_binomial_epsilon(4, 0.05, 4, 3, uses, 1e-5) + 1e-9}
    settings = {"epochs": 2, "eval_every": 100, "training": "frozen", "budget": budget}
    shape = Shape({"method": "pbm", "trials": 4, "beta": 0.05}, parties=3, model=TANH, job=settings)
    place = made(tmp_path, shape)
    folder = trained(place)
    spent_in_evaluations = 2  # before the first round, and after the last
    for _ in range(2):
        with served(place, dict.fromkeys(place.names, folder)) as found:
            replies = [found.client.score({"rows": [3, 4]}) for _ in range(uses)]
            good = [reply for reply in replies if reply.status == 200]
            bad = [reply for reply in replies if reply.status != 200]
            assert len(good) == max(0, uses - spent_in_evaluations)
            for reply in bad:
                assert (reply.status, reply.kind) == (403, "budget_spent")
                (party,) = reply.body["error"]["parties"]
                assert party in place.feature_parties
                assert "the privacy budget is exhausted" in reply.body["error"]["message"]
            if good:
                assert found.client.score({"rows": [5]}).status == 200  # another row has its own
        uses = 2  # the second time round nothing is left
        charged = [json.loads(line) for line in (folder / "charges-bank.jsonl").read_text().splitlines()]
        assert [line["rows"] for line in charged].count("51-52") == 3


def test_a_sum_that_cannot_be_opened_costs_nobody_anything(tmp_path: Path) -> None:
    shape = Shape({"method": "pbm", "trials": 4, "beta": 0.05}, parties=3, model=TANH, job={"training": "frozen"})
    place = made(tmp_path, shape)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        assert found.client.score({"rows": [3]}).status == 200
        found.features["post"].end()
        until(lambda: found.client.get("/healthz").status == 503)
        reply = found.client.score({"rows": [3]})
        assert (reply.status, reply.kind, reply.body["error"]["parties"]) == (503, "party_missing", ["post"])
        found.features["post"] = Feature(place, "post", folder)
        found.is_whole()
        assert found.client.score({"rows": [4]}).status == 200
    for name in place.feature_parties:
        charged = [json.loads(line) for line in (folder / f"charges-{name}.jsonl").read_text().splitlines()]
        assert [line["rows"] for line in charged] == ["51", "52"]


def test_a_party_with_another_run_is_told_so_and_calls_again(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    first = trained(place, "first")
    place.document["job"]["seed"] = 4
    place.write("job.toml")
    second = trained(place, "second")
    current = tmp_path / "current"
    current.symlink_to(second)
    runs = {**dict.fromkeys(place.names, first), "bank": current}
    with served(place, runs, without=("shop",)) as found:
        found.features["shop"] = Feature(place, "shop", first)
        until(lambda: "bank" in found.server.party.refused)
        reply = found.client.score({"rows": [0]})
        assert (reply.status, reply.kind) == (503, "model_mismatch")
        assert "give every party the folder of the same run" in reply.body["error"]["message"]
        current.unlink()
        current.symlink_to(first)
        found.is_whole()
        assert found.client.score({"rows": [0]}).status == 200


def test_new_models_take_over_without_a_lost_request(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    first = trained(place, "first")
    place.document["job"]["seed"] = 4
    place.write("job.toml")
    second = trained(place, "second")
    expected = {}
    for folder in (first, second):
        run, outputs = simulated_outputs(folder)
        expected[folder] = run.outputs.format_scores(outputs)
    current = tmp_path / "current"
    current.symlink_to(first)
    with served(place, dict.fromkeys(place.names, current)) as found:
        old = found.client.get("/v1/model").body["model"]
        replies: list[Any] = []
        with ThreadPoolExecutor(8) as clients:
            over = [False]

            def ask(number: int) -> None:
                while not over[0]:
                    replies.append((number, found.client.score({"rows": [number]})))

            asking = [clients.submit(ask, number) for number in range(8)]
            until(lambda: len(replies) > 20)
            turned = tmp_path / "next"
            turned.symlink_to(second)
            os.replace(turned, current)
            until(lambda: found.client.get("/v1/model").body["model"] != old)
            count = len(replies)
            until(lambda: len(replies) > count + 20)
            over[0] = True
            for one in asking:
                one.result()
        new = found.client.get("/v1/model").body["model"]
        assert {reply.status for _, reply in replies} == {200}
        assert {reply.body["model"] for _, reply in replies} == {old, new}
        for number, reply in replies:
            folder = first if reply.body["model"] == old else second
            assert torch.equal(table(reply.body["scores"]), expected[folder][[number]])


@pytest.mark.parametrize("last", ["shop", LABEL_PARTY])
def test_a_new_model_that_one_party_lacks_is_not_used(last: str, tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    first = trained(place, "first")
    links = {name: tmp_path / f"current-{name}" for name in place.names}
    for link in links.values():
        link.symlink_to(first)
    place.document["job"]["seed"] = 4
    place.write("job.toml")
    second = trained(place, "second")
    with served(place, links) as found:
        before = found.client.get("/v1/model").body["model"]
        for name in ("bank", LABEL_PARTY) if last == "shop" else place.feature_parties:
            links[name].unlink()
            links[name].symlink_to(second)
        until(lambda: len(found.features["bank"].server.party._models) == 2)
        until(lambda: last == LABEL_PARTY or len(found.server.party.models) == 2)
        assert found.client.score({"rows": [0]}).body["model"] == before
        links[last].unlink()
        links[last].symlink_to(second)
        until(lambda: found.client.get("/v1/model").body["model"] != before)
        assert found.client.score({"rows": [0]}).status == 200
    # Whose models they are is remembered where the new run is: it is what a server that starts again looks at.
    (noted,) = json.loads((second / "serving.json").read_text()).values()
    assert set(noted) == set(place.feature_parties)


@pytest.mark.parametrize("when", ["too late", "in time, with a default"])
def test_a_model_that_a_party_has_dropped_is_not_used(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party holds two models. It may drop one in the moment that the last of the others gets it."""
    place = made(tmp_path, SVFL)
    if when != "too late":
        with_terms(place, 0, when_missing="zeros")
    runs = []
    for seed in (3, 4, 5):
        place.document["job"]["seed"] = seed
        place.write("job.toml")
        runs.append(trained(place, f"seed-{seed}"))
    links = {name: tmp_path / f"current-{name}" for name in place.names}

    def turn(name: str, number: int) -> None:
        links[name].unlink(missing_ok=True)
        links[name].symlink_to(runs[number])

    for name in place.names:
        turn(name, 0)
    with served(place, links) as found:
        asking, bank = found.server.party, found.features["bank"].server.party
        before = found.client.score({"rows": [0]}).body["model"]
        turn(LABEL_PARTY, 1)
        until(lambda: len(asking.models) == 2)
        second = list(asking.models)[1]
        turn("bank", 1)
        until(lambda: second in asking._offers["bank"])
        news: list[dict[str, Any]] = []
        if when == "too late":
            monkeypatch.setattr(bank.line, "tell", news.append)
        turn("bank", 2)
        until(lambda: second not in bank._models)
        until(lambda: bool(news) if when == "too late" else second not in asking._offers["bank"])
        turn("shop", 1)
        until(lambda: second in asking._offers["shop"])
        if when == "too late":
            until(lambda: asking.ready is not None and asking.ready.run == second)
            assert found.client.score({"rows": [0]}).kind == "model_mismatch"
            monkeypatch.undo()
            bank.line.tell(news[0])
            until(lambda: second not in asking._offers["bank"])
        asking._choose()  # once more, and behind the choice that is under way
        reply = found.client.score({"rows": [0], "model": before})
        assert (reply.status, reply.body.get("missing")) == (200, []), reply.body


def test_a_default_does_not_stand_for_a_party_of_a_secure_sum(tmp_path: Path) -> None:
    """Its key is not there: the others, which cannot mask without it, would be sent none and stop."""
    shape = Shape({"method": "pbm", "trials": 4, "beta": 0.05}, parties=3, model=TANH, job={"training": "frozen"})
    place = made(tmp_path, shape)
    folder = trained(place)
    runs = dict.fromkeys(place.names, folder)
    with predicting(place, runs, terms={"bank": ServeTerms(when_missing="zeros")}) as (asking, _):
        asked(asking, torch.arange(2))  # its default is noted from here on
    with served(place, runs, without=("bank",)) as found:
        others = found.features.values()
        until(lambda: found.server.party.list_absent() == ["bank"] or any(one.error for one in others))
        found.server.party._choose()  # once more, and behind the choice that is under way
        assert (found.server.party.ready, [one.error for one in others]) == (None, [None] * 2)
        assert found.client.score({"rows": [0]}).kind == "party_missing"
        found.features["bank"] = Feature(place, "bank", folder)
        found.is_whole()
        assert found.client.score({"rows": [0]}).status == 200
        assert [one.error for one in others] == [None] * 3
        (offered,) = found.features["bank"].server.party._offers()
        with pytest.raises(Refused, match="'bank' brings no key"):
            found.server.party._require_models("bank", [offered.model_copy(update={"key": None})])


def test_models_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    folder = trained(place)
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    weights = load_file(broken / "models" / "top.safetensors")
    save_file(
        {key: torch.full_like(value, np.nan) for key, value in weights.items()}, broken / "models/top.safetensors"
    )
    current = tmp_path / "current"
    current.symlink_to(folder)
    with served(place, {**dict.fromkeys(place.names, folder), LABEL_PARTY: current}) as found:
        before = found.client.get("/v1/model").body["model"]
        current.unlink()
        current.symlink_to(broken)
        until(lambda: any("loading its models" in one for one in found.sentences))
        assert found.client.score({"rows": [0]}).body["model"] == before


def test_nothing_is_answered_before_all_parties_were_there(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder), without=("shop",)) as found:
        reply = found.client.score({"rows": [0]})
        assert (reply.status, reply.kind) == (503, "party_missing")
        assert reply.body["error"]["parties"] in (["shop"], ["bank"])
        found.features["shop"] = Feature(place, "shop", folder)
        found.is_whole()
        assert found.client.score({"rows": [0]}).status == 200
