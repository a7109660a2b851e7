"""The same service over gRPC and mutual TLS, and the pieces that have rules of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from predict.halves import simulated_outputs, trained
from predict.online.servers import served
from thinwire.base.errors import BadInput
from thinwire.job.party_view import read_party_view
from thinwire.net.grpc.client import DialTarget, ask
from thinwire.net.grpc.service import RPCS, Denied
from thinwire.net.handshake import CacheTerms
from thinwire.net.pki.authority import issue
from thinwire.predict.online.batching import EmbeddingCache
from thinwire.predict.online.server import LabelServer, read_serving_terms
from thinwire.predict.party_models import RunSource
from training.party.parties import LABEL_PARTY, Shape, made

SVFL = Shape({"method": "svfl"})


def test_a_client_with_a_certificate_asks_over_grpc(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    issue(place.certs, ("app", "stranger"))
    place.document["serve"] = {"clients": ["app"]}
    place.write("job.toml")
    folder = trained(place)
    run, outputs = simulated_outputs(folder)
    with served(place, dict.fromkeys(place.names, folder), clients=["app"]) as found:

        def score(name: str, request: dict[str, object]) -> dict[str, object]:
            target = DialTarget(place.address, LABEL_PARTY, name, lambda: place.credentials(name))
            return ask(target, RPCS["Score"], request)

        answer = score("app", {"rows": [2, 3]})
        assert torch.equal(torch.tensor(answer["scores"]), run.outputs.format_scores(outputs)[[2, 3]])
        wrong = score("app", {"rows": []})["error"]
        assert isinstance(wrong, dict)
        assert wrong["type"] == "empty"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("thinwire.predict.online.service.MAX_JSON", 90)
            large = score("app", {"rows": [1, 2, 3]})["error"]
            patch.setattr(found.server.service, "schema", None)
            broken = score("app", {"rows": [1]})["error"]
        assert isinstance(large, dict)
        assert large["type"] == "too_large"
        assert isinstance(broken, dict)
        assert broken["type"] == "internal"
        assert any("a request over gRPC failed" in one for one in found.sentences)
        for name in ("stranger", "bank"):
            with pytest.raises(Denied):
                score(name, {"rows": [2]})
        target = DialTarget(place.address, LABEL_PARTY, "app", lambda: place.credentials("app"))
        with pytest.raises(Denied):
            ask(target, RPCS["Abort"], {})


def test_the_cache_keeps_so_many_for_so_long() -> None:
    now = [0.0]
    cache = EmbeddingCache(lambda: now[0])
    terms = CacheTerms(rows=3, seconds=10.0)
    h = torch.arange(8.0).reshape(4, 2)
    cache.keep("bank", "m", np.arange(4), h, terms)
    assert set(cache.find("bank", "m", np.arange(4), terms)) == {1, 2, 3}
    assert torch.equal(cache.find("bank", "m", np.array([2]), terms)[2], h[2])
    assert cache.find("bank", "other", np.arange(4), terms) == {}
    assert cache.find("shop", "m", np.arange(4), terms) == {}
    now[0] = 10.0
    cache.drop_stale()
    assert cache.sizes()["bank"] == 0  # not only not shown: not kept
    assert cache.find("bank", "m", np.arange(4), terms) == {}
    now[0] = 0.0
    assert cache.find("bank", "m", np.arange(4), None) == {}  # no longer allowed: forgotten
    assert cache.find("bank", "m", np.arange(4), terms) == {}


@pytest.mark.parametrize("terms", [{"when_missing": "mean"}, {"cache_rows": 5}])
def test_under_a_secure_sum_nothing_is_kept_or_replaced(terms: dict[str, object], tmp_path: Path) -> None:
    tanh = {"name": "mlp", "hidden": [6], "width": 4, "out_activation": "tanh"}
    place = made(tmp_path, Shape({"method": "pbm", "trials": 4, "beta": 0.1}, parties=3, model=tanh))
    place.document["party"][0]["serve"] = terms
    place.write("job.toml")
    with pytest.raises(BadInput, match=r"party.bank.serve.\w+: under a secure sum"):
        read_serving_terms(read_party_view(place.job, "bank"))


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    folder = trained(place)
    with served(place, dict.fromkeys(place.names, folder)) as found:
        address = found.server.address.removeprefix("http://")
        own = read_party_view(place.job, LABEL_PARTY)
        settings = own.serve.model_copy(update={"http": address})
        with pytest.raises(BadInput, match=f"cannot listen on {address}"):
            LabelServer(RunSource(own, folder), lambda _: None, settings)
