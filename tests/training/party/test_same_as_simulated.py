"""Over gRPC on loopback, every method trains the models that the simulator trains, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch

import thinwire as tw
from processes import until
from thinwire.base.errors import ThinwireError
from thinwire.engine.privacy import poisson_binomial_epsilon
from thinwire.job.job_loader import load_job
from thinwire.storage.private_state import PrivateState
from thinwire.training.party.feature_role import derive_run_secret
from thinwire.training.party.session import PartySession
from thinwire.training.result import Result
from thinwire.training.simulator import own_secret
from training.party.parties import (
    LABEL_PARTY,
    PartyProcesses,
    Place,
    Seen,
    Shape,
    left_events,
    left_ledger,
    left_models,
    made,
    ran,
    simulated,
    threads,
)

TOP_K = {"name": "TopK", "fraction": 0.25}
UNIFORM = {"name": "Uniform", "bits": 4}
QSGD = {"name": "QSGD", "bits": 4}
CELU: dict[str, Any] = {"method": "celu", "capacity": 3, "reuse": 3}
EFVFL: dict[str, Any] = {"method": "efvfl", "compressor": TOP_K}
LITERAL = {"order": "update_first", "warm_start": True}
CVFL: dict[str, Any] = {"method": "cvfl", "compressor": UNIFORM}
ONE_LOGIT = {"top": {"name": "linear_top", "classes": 1}, "loss": "binary_cross_entropy"}
REGRESSION = {"top": {"name": "linear_top", "classes": 1}, "loss": "squared_error"}

SECRET = bytes(range(32))
SECURE = {"aggregation": "secure_sum"}
LEVELS = {"name": "Uniform", "bits": 6, "dither": False, "bounds": [-8, 8]}
GRID = {"name": "StdGrid", "step": 0.5, "scale": 0.1, "limit": 100}
TANH = {"name": "mlp", "hidden": [6], "width": 4, "out_activation": "tanh"}

# Validation rows come from the training table, test rows from their own.
STEERED = {"epochs": 12, "patience": 3, "split": {"validation": 0.3, "test": 0}}

EVERY: dict[str, Shape] = {
    "cvfl, secure sum": Shape({**CVFL, **SECURE, "compressor": LEVELS, "local_steps": 2}, parties=3),
    "efvfl, secure sum": Shape({**EFVFL, **SECURE, "compressor": GRID}, parties=3, own_features=True),
    "efvfl, private, secure sum": Shape(
        {**EFVFL, **SECURE, "compressor": GRID, "labels": "private", "warm_start": True}, parties=3
    ),
    "svfl": Shape({"method": "svfl"}, parties=3),
    "svfl, own features": Shape({"method": "svfl"}, own_features=True, label_party={"fusion": "concat"}),
    "svfl, announced batches": Shape({"method": "svfl"}, job={"batches": "announced"}),
    "svfl, all rows at once": Shape({"method": "svfl"}, job={"batch_size": 48, "epochs": 4}),
    "svfl, no test rows": Shape({"method": "svfl"}, tests=False, own_features=True),
    "svfl, fast effort": Shape({"method": "svfl"}, job={"effort": "fast"}),
    "svfl, target": Shape({"method": "svfl"}, job={"epochs": 8, "target": {"metric": "accuracy", "value": 0.6}}),
    "svfl, target not met": Shape({"method": "svfl"}, job={"target": {"metric": "loss", "value": 1e-9}}),
    "svfl, byte budget": Shape({"method": "svfl"}, job={"epochs": 8, "byte_budget": 2500}),
    "svfl, auc": Shape({"method": "svfl"}, job={"metrics": ["auc", "log_loss"]}, label_party=ONE_LOGIT),
    "svfl, regression": Shape({"method": "svfl"}, job={"metrics": ["mse", "r2"]}, label_party=REGRESSION),
    "fedbcd": Shape({"method": "fedbcd", "local_steps": 3}),
    "cvfl": Shape(CVFL),
    "cvfl, three parties and own features": Shape(CVFL, parties=3, own_features=True),
    "cvfl, local steps": Shape({**CVFL, "local_steps": 3, "top_compressor": UNIFORM}),
    "cvfl, private": Shape({**CVFL, "compressor": TOP_K, "labels": "private"}),
    "cvfl, by derivative": Shape({**CVFL, "compressor": {**TOP_K, "select": "columns"}, "local_steps": 2}),
    "efvfl, private": Shape({**EFVFL, "compressor": QSGD, "labels": "private"}),
    "efvfl, private, table": Shape({**EFVFL, "labels": "private", "scope": "table"}),
    "efvfl": Shape(EFVFL),
    "efvfl, surrogates": Shape({**EFVFL, "broadcast": "surrogates", "local_steps": 2}, own_features=True),
    "efvfl, update first": Shape({**EFVFL, **LITERAL}, own_features=True),
    "efvfl, update first, surrogates": Shape(
        {**EFVFL, **LITERAL, "broadcast": "surrogates", "local_steps": 2}, job={"batches": "announced"}
    ),
    "efvfl, update first, private": Shape({**EFVFL, **LITERAL, "labels": "private", "scope": "table"}),
    "efvfl, table": Shape({**EFVFL, "scope": "table"}, own_features=True),
    "efvfl, announced batches": Shape(EFVFL, job={"batches": "announced"}),
    "efvfl, compressed top": Shape({**EFVFL, "top_compressor": TOP_K}),
    "celu": Shape(CELU),
    "celu, overlap": Shape({**CELU, "overlap": True}, parties=3, own_features=True),
    "celu, random": Shape({**CELU, "sampling": "random"}),
    "thin": Shape({"method": "thin"}, own_features=True),
    "thin, overlap": Shape({"method": "thin", "overlap": True}),
    "thin, ahead": Shape({"method": "thin", "overlap": "ahead"}, parties=3, own_features=True),
    "thin, announced batches": Shape({"method": "thin"}, job={"batches": "announced"}),
    "boosting": Shape(
        {"method": "boosting"},
        job={"epochs": 6, "batch_size": None},
        label_party={"top": {"name": "linear_top", "classes": 2}},
        model={"name": "boosted_trees", "width": 2, "leaves": 4, "min_rows": 4},
        own_features=True,
    ),
    "boosting, best model": Shape(
        {"method": "boosting"},
        job={**STEERED, "batch_size": None},
        model={"name": "boosted_trees", "width": 3, "leaves": 4, "min_rows": 4},
        ids=True,
        parties=3,
    ),
    "once": Shape(
        {"method": "once", "passes": 3},
        job={"epochs": 1, "batch_size": 20, "eval_every": 1},
        model={"name": "principal_directions", "width": 3, "bits_per_row": 6},
        label_party={"fusion": "concat", "model": {"name": "mlp", "hidden": [6], "width": 4}},
        own_features=True,
    ),
    "once, trees, best model": Shape(
        {"method": "once", "passes": 8, "patience": 2},
        job={**STEERED, "epochs": 1, "patience": 1, "batch_size": 12, "eval_every": 1},
        model={"name": "bins", "bins": 4},
        label_party={"fusion": "concat", "top": {"name": "boosted_trees", "width": 3, "leaves": 4, "min_rows": 2}},
        ids=True,
        parties=3,
    ),
    "svfl, best model": Shape({"method": "svfl"}, job=STEERED, ids=True, own_features=True),
    "svfl, averaged weights": Shape({"method": "svfl"}, optimizer={"averaging": True}, own_features=True),
    "thin, averaged weights, best model": Shape(
        {"method": "thin"}, job=STEERED, optimizer={"averaging": True}, ids=True
    ),
    "thin, best model": Shape({"method": "thin"}, job={**STEERED, "metrics": ["auc"]}, ids=True, parties=3),
    "efvfl, last model": Shape({**EFVFL, "labels": "private"}, job={**STEERED, "deliver": "last"}, ids=True),
}


def require_same(place: Place, there: Result) -> None:
    """Models, ledgers and scores of every party are the simulator's."""
    models = left_models(place)
    assert models.keys() == there.models.keys()
    for name, module in there.models.items():
        expected = module.state_dict()
        assert models[name].keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(models[name][key], tensor), f"{name}: {key}"
    # Signed keys are as long as the certificates that come with them.
    rows = [row for row in there.ledger.entries() if row["kind"] != "KEYS"]
    for name in place.names:
        mine = [row for row in left_ledger(place, name) if row["kind"] != "KEYS"]
        assert mine == [row for row in rows if name in (row["sender"], row["receiver"])], name
    secure = "aggregation" in place.document["recipe"] or place.document["recipe"]["method"] == "pbm"
    compared = (
        ("round", "epoch", "validation", "test") if secure else ("round", "epoch", "validation", "test", "bytes")
    )
    here = [{key: event.get(key) for key in compared} for event in left_events(place)]
    assert here == [{key: event.get(key) for key in compared} for event in there.history]


# Other shapes above cover what is special about each of these.
SELDOM = ("efvfl, announced batches", "thin, announced batches", "thin, overlap", "thin, best model")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.long) if one in SELDOM else one for one in EVERY]
)
def test_the_network_trains_what_the_simulator_trains(name: str, tmp_path: Path) -> None:
    place = made(tmp_path, EVERY[name])
    summaries = ran(place)
    there = simulated(place.job)
    require_same(place, there)
    assert {party: summary["repeatable"] for party, summary in summaries.items()} == dict.fromkeys(place.names, True)
    assert {summary["rounds"] for summary in summaries.values()} == {there.history[-1]["round"]}
    assert {summary["retransmitted_bytes"] for summary in summaries.values()} == {0}
    assert summaries[LABEL_PARTY]["test"] == there.summary()["test"]
    if EVERY[name].tests:  # else the simulator alone scores training rows
        assert summaries[LABEL_PARTY]["delivered"] == there.summary()["delivered"]
    assert {summary["delivered_round"] for summary in summaries.values()} == {there.summary()["delivered"]["round"]}
    if "aggregation" not in EVERY[name].recipe:
        here, expected = summaries[LABEL_PARTY]["bytes"], there.summary()["bytes"]
        assert here["handshake"] > 1000
        assert here == {**expected, "handshake": here["handshake"], "all": expected["all"] + here["handshake"]}


PBM = {"method": "pbm", "trials": 16, "beta": 0.2}
WITH_NOISE = {
    "pbm, frozen": Shape(PBM, parties=3, model=TANH, job={"training": "frozen"}),
    "pbm, private steps": Shape(
        PBM, parties=3, model=TANH, job={"training": {"name": "DPBottom", "clip": 1.0, "noise_multiplier": 3.0}}
    ),
    "once, randomised response": Shape(
        {"method": "once", "passes": 2, "noise": {"name": "RandomizedResponse", "epsilon": 12, "bins": 4}},
        job={"epochs": 1, "batch_size": 20, "eval_every": 1},
        model={"name": "bins", "bins": 4},
        label_party={"fusion": "concat"},
    ),
}


@pytest.mark.parametrize("shape", WITH_NOISE)
def test_with_the_same_secrets_noise_is_the_simulators(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(tmp_path, WITH_NOISE[shape])
    for name in place.names:
        PrivateState.open(place.out(name)).set_noise_secret(own_secret(SECRET, name))
    summaries = ran(place)
    nonce = PrivateState.open(place.out("bank")).run_nonce or ""
    secrets = {name: derive_run_secret(own_secret(SECRET, name), nonce) for name in place.names}
    monkeypatch.setattr("thinwire.training.simulator.own_secret", lambda _, name: secrets[name])
    there = tw.train(load_job(place.job), callbacks=[])
    require_same(place, there)
    for number, party in enumerate(place.feature_parties):
        assert summaries[party]["privacy"] == [there.summary()["privacy"][number]]
        lines = (place.out(party) / "charges.jsonl").read_text().splitlines()
        spent = [json.loads(line) for line in lines]
        assert len({line["charge"] for line in spent}) == len(spent)
        told = {row["observer"]: row for row in summaries[party]["privacy"][0]["observers"]}
        assert spent[-1]["epsilons"] == {
            name: [row["releases_epsilon"], row["end_to_end_epsilon"]] for name, row in told.items()
        }


def test_a_privacy_budget_ends_the_run_at_the_same_round_everywhere(tmp_path: Path) -> None:
    budget = {"epsilon": poisson_binomial_epsilon(4, 0.05, 4, 3, 2, 1e-5) + 1e-9}
    settings = {"epochs": 5, "eval_every": 100, "training": "frozen", "budget": budget}
    place = made(
        tmp_path,
        Shape({"method": "pbm", "trials": 4, "beta": 0.05}, parties=3, model=TANH, job=settings, tests=False),
    )
    summaries = ran(place)
    assert {summary["rounds"] for summary in summaries.values()} == {6}  # two epochs of three rounds
    for party in place.feature_parties:
        assert summaries[party]["privacy"][0]["budget"]["spent"] <= budget["epsilon"]


def test_a_party_does_not_believe_other_widths_than_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A label party that tells of a narrower embedding would make the others count too little."""
    place = made(tmp_path, Shape({"method": "pbm", "trials": 4, "beta": 0.1}, parties=3, model=TANH))
    tell = PartySession.tell_all

    def lies(self: PartySession, news: dict[str, Any]) -> None:
        begin = news.get("begin")
        tell(self, news if begin is None else {"begin": {**begin, "bank": 1}})

    monkeypatch.setattr(PartySession, "tell_all", lies)
    with threads(place) as parties:
        for name in ("shop", "post"):
            parties[name].join()
            assert isinstance(parties[name].error, ThinwireError)
            assert "'clinic' reports different embedding widths" in str(parties[name].error)


def test_nobody_hears_what_is_wrong_with_anothers_rows(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}, parties=2, job={"epochs": 4}))
    place.document["optimizer"] = {"name": "sgd", "lr": 1e30}
    place.write("job.toml")
    with threads(place) as parties:
        for party in parties.values():
            party.join()
        said = {name: str(party.error) for name, party in parties.items()}
    stopped = [text for text in said.values() if "stopped: " in text and "see its own log" in text]
    assert stopped, said
    assert not any(word in text for text in stopped for word in ("nan", "inf", "row "))


def test_noise_differs_from_run_to_run(tmp_path: Path) -> None:
    recipe = {"method": "pbm", "trials": 16, "beta": 0.2}
    digests = []
    for number in range(2):
        place = made(tmp_path / str(number), Shape(recipe, parties=3, model=TANH))
        digests.append(ran(place)["bank"]["digest"])
    assert digests[0] != digests[1]


def test_a_target_ends_the_run_early_at_every_party(tmp_path: Path) -> None:
    place = made(tmp_path, EVERY["svfl, target"])
    summaries = ran(place)
    reached = summaries[LABEL_PARTY]["target"]["reached_round"]
    assert 0 < reached < 24
    assert {summary["rounds"] for summary in summaries.values()} == {reached}


@pytest.mark.parametrize("recipe", [CELU, {"method": "thin"}], ids=["celu", "thin"])
def test_filling_overlap_runs_to_its_end_and_says_that_it_does_not_repeat(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    place = made(tmp_path, Shape({**recipe, "overlap": "filling"}, own_features=True))
    summaries = ran(place)
    assert {party: summary["repeatable"] for party, summary in summaries.items()} == dict.fromkeys(place.names, False)
    assert {summary["rounds"] for summary in summaries.values()} == {6}
    assert [event["round"] for event in left_events(place)] == [0, 2, 4, 6]
    kept = left_ledger(place, LABEL_PARTY)
    for name in place.feature_parties:
        assert left_ledger(place, name) == [row for row in kept if name in (row["sender"], row["receiver"])]


def test_the_label_party_counts_what_the_others_count(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "thin"}, parties=3))
    summaries = ran(place)
    label = summaries[LABEL_PARTY]
    others = [summaries[name] for name in place.feature_parties]
    assert label["sent_bytes"] == sum(other["received_bytes"] for other in others) > 0
    assert label["received_bytes"] == sum(other["sent_bytes"] for other in others) > 0


def test_the_same_job_in_other_folders_ends_in_the_same_state(tmp_path: Path) -> None:
    """The digests cover models, optimisers, generators and ledgers."""
    digests = []
    for folder in ("first", "second"):
        place = made(tmp_path / folder, Shape({**CELU, "overlap": True}, parties=3))
        digests.append({name: summary["digest"] for name, summary in ran(place).items()})
    assert digests[0] == digests[1]


def test_another_seed_ends_in_another_state(tmp_path: Path) -> None:
    digests = []
    for seed in (3, 4):
        place = made(tmp_path / str(seed), Shape({"method": "svfl"}, job={"seed": seed}))
        digests.append({name: summary["digest"] for name, summary in ran(place).items()})
    assert all(digests[0][name] != digests[1][name] for name in digests[0])


@pytest.mark.faults
def test_restarted_parties_compute_with_as_many_threads_as_before(tmp_path: Path) -> None:
    """Sums of floats depend on it, and peers hold what follows from the first ones."""
    place = made(tmp_path, Shape({"method": "svfl"}, job={"epochs": 40}))
    given, label = torch.get_num_threads(), Seen()
    torch.set_num_threads(given + 1)
    try:
        with threads(place, seen={LABEL_PARTY: label}) as parties:
            while len(label.events) < 2 and parties[LABEL_PARTY].error is None:
                sleep(0.01)
            for party in parties.values():
                party.run.session.stopping.ask()
            for party in parties.values():
                party.join()
    finally:
        torch.set_num_threads(given)
    counts: list[int] = []
    ran(place, seen={name: Seen(lambda _: counts.append(torch.get_num_threads())) for name in place.names})
    assert set(counts) == {given + 1}
    assert torch.get_num_threads() == given
    require_same(place, simulated(place.job))


NOISY = """
from torch import nn


class Noisy(nn.Sequential):
    def __init__(self, in_features: int, width: int) -> None:
        super().__init__(nn.Linear(in_features, width), nn.Tanh(), nn.Dropout(0.4))
"""


def test_with_dropout_processes_train_what_the_simulator_trains(tmp_path: Path) -> None:
    """A process has a generator of its own, as a party does."""
    shape = Shape({"method": "svfl"}, model={"module": "noisy:Noisy", "width": 4}, own_features=True)
    place = made(tmp_path, shape)
    (tmp_path / "noisy.py").write_text(NOISY)
    with PartyProcesses() as started:
        parties = {name: started.party(place, name) for name in place.names}
        for name, party in parties.items():
            assert party.summary()["party"] == name
    there = simulated(place.job)
    require_same(place, there)


SLOW = """
from time import sleep

from torch import nn


class Slow(nn.Linear):
    def forward(self, x):
        sleep(0.004)
        return super().forward(x)
"""


@pytest.mark.faults
def test_killed_parties_return_to_the_same_best_model(tmp_path: Path) -> None:
    """kill -9 at two parties, anywhere between evaluations: the weights that all deliver are the simulator's."""
    shape = Shape(
        {"method": "svfl"},
        job={**STEERED, "epochs": 30, "patience": 40, "eval_every": 1},
        model={"module": "slow:Slow", "out_features": 4},
        ids=True,
    )
    place = made(tmp_path, shape)
    (tmp_path / "slow.py").write_text(SLOW)
    events = place.out(LABEL_PARTY) / "events.jsonl"
    with PartyProcesses() as started:
        parties = {name: started.party(place, name) for name in place.names}
        for lines, name in ((12, "bank"), (30, LABEL_PARTY)):
            until(lambda lines=lines: events.exists() and events.read_bytes().count(b"\n") >= lines)  # type: ignore[misc]
            parties[name].kill()
            parties[name] = started.party(place, name)
        summaries = {name: party.summary() for name, party in parties.items()}
    there = simulated(place.job)
    require_same(place, there)
    assert 0 < there.summary()["delivered"]["round"] < there.summary()["rounds"]  # or this job shows nothing
    assert {one["delivered_round"] for one in summaries.values()} == {there.summary()["delivered"]["round"]}
