"""A party's folder is brought back from any step of a run: no charge is lost, and no mask serves twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.net.links.peer_link import PeerLink
from thinwire.storage.private_state import PrivateState
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

TANH = {"name": "mlp", "hidden": [6], "width": 4, "out_activation": "tanh"}
PRIVATE = {"training": {"name": "DPBottom", "clip": 1.0, "noise_multiplier": 3.0}}
PBM = Shape({"method": "pbm", "trials": 16, "beta": 0.2}, parties=3, model=TANH, job={"training": "frozen"})
STEPS = Shape({"method": "svfl"}, job=PRIVATE)
CHARGED = {"secure sum": PBM, "private steps": STEPS}
ROUNDS = 6


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint between any two rounds."""
    monkeypatch.setattr("thinwire.training.party.party_checkpoints.PartyCheckpoints.is_due", lambda _: True)


def copied(place: Place, name: str, round: int) -> Path:
    return place.folder / "copies" / f"{name} {round}"


def copying(place: Place, name: str, stop: Callable[[], None] | None = None) -> Seen:
    """Copies the party's folder before each of its rounds; before the last one it may be stopped."""

    def copy(round: int) -> None:
        if not copied(place, name, round).exists():
            shutil.copytree(place.out(name), copied(place, name, round))
        if stop is not None and round == ROUNDS - 1:
            stop()

    return Seen(at_round=copy)


def stopped_before_the_last_round(place: Place, name: str, parties: dict[str, PartyThread]) -> Seen:
    return copying(place, name, lambda: parties[name].run.session.stopping.ask())  # noqa: PLW0108  not there yet


def restore(place: Place, name: str, round: int) -> None:
    shutil.rmtree(place.out(name))
    shutil.copytree(copied(place, name, round), place.out(name))


def from_copy(place: Place, name: str, round: int) -> PartyThread:
    restore(place, name, round)
    party = PartyThread(place.job, name, place.out(name))
    party.start()
    return party


def refuses_every_older_copy(place: Place) -> dict[str, dict[str, Any]]:
    """The label party does, until the party comes back from the newest one; the summaries."""
    parties: dict[str, PartyThread] = {}
    with threads(place, {"bank": stopped_before_the_last_round(place, "bank", parties)}) as started:
        parties.update(started)
        parties["bank"].join()
        for round in range(ROUNDS - 1):
            older = from_copy(place, "bank", round)
            older.join()
            assert isinstance(older.error, BadInput)
            assert "'bank' was started from an outdated copy of its folder" in str(older.error)
            assert "charges are missing from its privacy ledger" in str(older.error)
        newest = from_copy(place, "bank", ROUNDS - 1)
        return finished({**started, "bank": newest})


@pytest.mark.parametrize("name", CHARGED)
def test_an_older_copy_that_lacks_charges_is_refused(name: str, tmp_path: Path) -> None:
    place = made(tmp_path, CHARGED[name])
    summaries = refuses_every_older_copy(place)
    assert [summaries["bank"]["privacy"]] == [simulated(place.job).summary()["privacy"][:1]]


@pytest.mark.faults
@pytest.mark.usefixtures("saving")
@pytest.mark.parametrize("name", CHARGED)
def test_an_older_copy_that_lacks_charges_is_refused_whatever_its_checkpoint(name: str, tmp_path: Path) -> None:
    test_an_older_copy_that_lacks_charges_is_refused(name, tmp_path)


# Nothing is charged twice, and nothing too little ----------------------------------------------------------------


def without_draws(place: Place) -> None:
    """As the version before wrote them, whose noise was another."""
    path = place.out("bank") / "charges.jsonl"
    held = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in one.items() if k != "draw"}) + "\n" for one in held))


@pytest.mark.parametrize("replay", ["the same", "otherwise", "of the version before"])
def test_a_replayed_step_is_charged_again_where_its_noise_is_another(
    replay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(tmp_path, STEPS)
    parties: dict[str, PartyThread] = {}
    with threads(place, {"bank": stopped_before_the_last_round(place, "bank", parties)}) as started:
        parties.update(started)
        parties["bank"].join()
        restore(place, "bank", ROUNDS - 1)  # as if it was killed there: its one checkpoint is of round 0
        if replay == "otherwise":  # on another machine, or with another version of torch
            monkeypatch.setattr("thinwire.engine.protocols.bottom.digest_tensors", lambda *_: "other bits")
        elif replay == "of the version before":
            without_draws(place)
        again = PartyThread(place.job, "bank", place.out("bank"))
        again.start()
        spent = finished({**started, "bank": again})["bank"]["privacy"][0]
    epochs = 2
    lines = [json.loads(line)["charge"] for line in (place.out("bank") / "charges.jsonl").read_text().splitlines()]
    assert len(set(lines)) == ROUNDS
    repeated = 0 if replay == "the same" else ROUNDS - 1
    assert len(lines) == ROUNDS + repeated
    assert spent["most_uses_of_a_row"]["steps"] == epochs * (2 if repeated else 1)


def frames_of(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str, int], list[bytes]]:
    """All that came in anywhere from now on, by sender, receiver and number."""
    found: dict[tuple[str, str, int], list[bytes]] = {}
    put = PeerLink._put

    def noted(link: PeerLink, sequence: int, header: bytes, body: bytes, attached: Any) -> None:
        found.setdefault((link.ends.peer, link.ends.me, sequence), []).append(bytes(header) + bytes(body))
        put(link, sequence, header, body, attached)

    monkeypatch.setattr(PeerLink, "_put", noted)
    return found


def test_where_everybody_is_restored_the_same_bytes_travel_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody remembers then, and masks are those of before: they must cover what they covered before."""
    place = made(tmp_path, PBM)
    frames = frames_of(monkeypatch)
    first = ran(place, seen={name: copying(place, name) for name in place.names})
    for name in place.names:
        restore(place, name, 2 if name == LABEL_PARTY else 3)
    again = ran(place)
    assert {name: one["digest"] for name, one in again.items()} == {
        name: one["digest"] for name, one in first.items()
    }
    assert [again[name]["privacy"] for name in place.feature_parties] == [
        first[name]["privacy"] for name in place.feature_parties
    ]
    masked = {key: bodies for key, bodies in frames.items() if key[1] == LABEL_PARTY}
    assert sum(len(bodies) > 1 for bodies in masked.values()) > len(place.feature_parties)
    assert max(len(set(bodies)) for bodies in frames.values()) == 1


# Every step --------------------------------------------------------------------------------------------------------


def known_secrets(place: Place) -> Place:
    """Two runs with noise are the same where every party has one secret in both, and both have one nonce."""
    for number, name in enumerate(place.names):
        private = PrivateState.open(place.out(name))
        private.set_noise_secret(bytes([number]) * 32)
        private.set_run_nonce("5" * 32)
    return place


def digests(summaries: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: summary["digest"] for name, summary in summaries.items()}


def go_on_from(place: Place, name: str, round: int) -> dict[str, dict[str, Any]] | None:
    """The party is stopped before its last round, and goes on from an older copy; None: it was refused."""
    parties: dict[str, PartyThread] = {}
    with threads(place, {name: stopped_before_the_last_round(place, name, parties)}) as started:
        parties.update(started)
        parties[name].join()
        everybody = {**started, name: from_copy(place, name, round)}
        try:
            return finished(everybody)
        except ThinwireError:
            assert any("Restore the newest folder" in str(party.error) for party in everybody.values())
            return None


@pytest.mark.faults
@pytest.mark.parametrize("often", [False, True], ids=["one checkpoint", "a checkpoint a round"])
@pytest.mark.parametrize(
    ("shape", "name"),
    [(Shape({"method": "svfl"}), "bank"), (Shape({"method": "svfl"}), LABEL_PARTY), (PBM, LABEL_PARTY)],
    ids=["bank", "the label party", "the label party of a secure sum"],
)
def test_without_charges_of_its_own_an_older_copy_ends_the_same_or_is_refused(
    shape: Shape, name: str, often: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    expected = digests(ran(known_secrets(made(tmp_path / "whole", shape))))
    if often:
        request.getfixturevalue("saving")
    for round in range(1, ROUNDS):
        found = go_on_from(known_secrets(made(tmp_path / str(round), shape)), name, round)
        if found is None:
            assert often
            assert round < ROUNDS - 1
        else:
            assert digests(found) == expected
