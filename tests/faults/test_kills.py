"""kill -9 of any process at any point, of all at once, and again during recovery: identical."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from time import sleep
from typing import Any

import pytest

from faults.conftest import Stage
from faults.running import EVERYBODY, FEATURES, LABEL, NOISY, RECIPE, ROLES, JobKind, Run
from thinwire.storage.encryption_key import new_key

PLAIN = JobKind(epochs=40)
SHARED = JobKind(
    recipe=RECIPE.replace("private", "shared"), epochs=40
)  # others' embeddings and the top model come back first
REUSING = JobKind(recipe='{ method = "celu", capacity = 3, reuse = 3, overlap = true }', epochs=40)
AHEAD = JobKind(recipe='{ method = "thin", reuse = 3, overlap = "ahead" }', epochs=40)
TREES = JobKind(recipe='{ method = "boosting" }', epochs=60, batches_an_epoch=1, model="SlowTrees, leaves = 4")
ONCE = JobKind(
    recipe='{ method = "once", passes = 3, batch_rows = 16 }',
    epochs=1,
    batches_an_epoch=40,
    model="SlowDirections, in_features = 6, bits_per_row = 10",
    eval_every=4,
)
NOISY_CODES = replace(
    ONCE,
    recipe='{ method = "once", passes = 3, noise = { name = "RandomizedResponse", epsilon = 12, bins = 4 } }',
    model="SlowBins, in_features = 6, bins = 4",
)
WARM = JobKind(
    recipe='{ method = "thin", reuse = 2, warm_passes = 3 }', epochs=20, sections="[pretrain]\nepochs = 2\n"
)
LONG_NOISY = replace(NOISY, epochs=100)  # its rounds are short, and there are many points to come to
START_SECONDS = 300  # until a first new round


def at(call: str, path: str = "", when: str = "before", number: int = 1, do: str = "kill") -> dict[str, Any]:
    return {"call": call, "path": path, "when": when, "number": number, "do": do}


IN_A_NEW_FOLDER = [
    at("replace", "data.json", "before"),
    at("replace", "data.json", "after"),
    at("replace", "job.toml", "before"),
]
AT_THE_START = [
    at("replace", "job.toml", "after"),
    at("replace", "private.json", "before"),
    at("replace", "private.json", "after"),
    at("open", "/incarnation-", "after"),
    at("open", "/sent/", "after"),
    at("replace", "peers.json", "before"),
    at("replace", "peers.json", "after"),
    at("replace", "private.json", "after", number=2),
]
AROUND_THE_LOG = [
    at("writev", "/sent/", "before", number=3),
    at("writev", "/sent/", number=2, do="half"),
    at("writev", "/sent/", "after", number=4),
    at("fsync", "/sent/", "before", number=3),
    at("fsync", "/sent/", "after", number=3),
    at("unlink", "/sent/", "before"),
    at("unlink", "/sent/", "after"),
]
AROUND_THE_CHARGES = [
    at("writev", "/charges.jsonl", "before", number=3),
    at("writev", "/charges.jsonl", number=2, do="half"),
    at("writev", "/charges.jsonl", "after", number=4),
    at("fsync", "/charges.jsonl", "before", number=3),
    at("fsync", "/charges.jsonl", "after", number=3),
]
MID_SEND = [
    at("send", when="before", number=3),
    at("send", when="middle", number=5),
    at("send", when="middle", number=2),
    at("send", when="after", number=4),
]
MID_CHECKPOINT = [
    at("mkdir", "/checkpoints/new-", "after"),
    at("writev", "/state.json", "before"),
    at("writev", "/state.json", do="half"),
    at("writev", ".safetensors", do="half"),
    at("fsync", ".safetensors", "before"),
    at("writev", "/manifest", do="half"),
    at("fsync", "/manifest", "before"),
    at("fsync", "/manifest", "after"),
    at("writev", ".private.json", number=4, do="half"),
    at("replace", "/private.json", "before", number=3),
    at("replace", "/private.json", "after", number=3),
    at("unlink", "manifest", "after"),
    at("rmdir", "/checkpoints/", "before"),
    at("rmdir", "/checkpoints/", "after"),
]
MID_RENAME = [
    at("rename", "/checkpoints/", "before"),
    at("rename", "/checkpoints/", "after"),
    at("rename", "/checkpoints/", "before", number=2),
    at("rename", "/checkpoints/", "after", number=2),
]


def last_round(kind: JobKind) -> list[dict[str, Any]]:
    return [
        at("round", number=kind.rounds - 1),
        at("replace", "/ledger.json", "before"),
        at("writev", "/models/", do="half"),
        at("replace", "/result.json", "before"),
        at("replace", "/result.json", "after"),
    ]


def killed_at(run: Run, name: str, points: list[dict[str, Any]]) -> None:
    """Starts the party once for every point, and sees it die there; the others stay."""
    for point in points:
        process = run.start(name, [{"chunk": 64}, point])
        code = run.ended(process, START_SECONDS)
        assert code == -9, f"{name} did not come to {point}: exit {code}\n{run.told()}"
        run.tally.inject("kills")


@pytest.mark.faults
@pytest.mark.parametrize("kind", [PLAIN, SHARED], ids=["plain", "shared"])
def test_several_kills_of_every_party_in_one_run(stage: Stage, kind: JobKind) -> None:
    expected = stage.reference(kind)
    with stage.run(kind, pause_ms=25) as run:
        run.note_sends()
        run.start_all()
        for name in (LABEL, *EVERYBODY, "bank", LABEL):
            run.await_round(LABEL, run.round(LABEL) + 3)
            run.kill(name)
            stage.tally.inject("kills")
            run.start(name)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("kind", [PLAIN, REUSING, AHEAD, LONG_NOISY], ids=["plain", "reusing", "ahead", "noisy"])
@pytest.mark.parametrize("name", ROLES)
def test_a_kill_at_every_point(stage: Stage, name: str, kind: JobKind) -> None:
    expected = stage.reference(kind)
    others = [other for other in EVERYBODY if other != name]
    with stage.run(kind, pause_ms=8) as run:
        run.note_sends()
        run.start_all(others)
        killed_at(run, name, [*AT_THE_START, *AROUND_THE_LOG, *MID_SEND, *MID_CHECKPOINT, *MID_RENAME])
        if kind is LONG_NOISY and name != LABEL:
            killed_at(run, name, AROUND_THE_CHARGES)
        killed_at(run, name, last_round(kind))
        run.start(name)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
def test_a_kill_before_the_folder_is_whole(stage: Stage, name: str) -> None:
    kind = JobKind()
    expected = stage.reference(kind)
    with stage.run(kind) as run:
        run.start_all([other for other in EVERYBODY if other != name])
        killed_at(run, name, IN_A_NEW_FOLDER)
        run.start(name)
        run.survives(expected)


BEFORE_THE_KEY_IS_KNOWN = [
    at("replace", "encryption.json", "before"),
    at("replace", "encryption.json", "after"),
    at("replace", "data.json", "before"),
]
IN_AN_ENCRYPTED_FOLDER = [
    at("replace", "private.json", "before"),
    at("writev", "/sent/", do="half"),  # of a file's first bytes
    at("writev", "/sent/", number=2, do="half"),  # of a record
    at("writev", "/answers/", do="half"),
    at("writev", "/state.json", number=2, do="half"),
    at("writev", ".safetensors", number=2, do="half"),
    at("writev", "/manifest", number=2, do="half"),
    at("writev", ".private.json", number=4, do="half"),
    at("rename", "/checkpoints/", "before"),
    at("rename", "/checkpoints/", "after", number=2),
    at("writev", "/models/", do="half"),
]


@pytest.mark.faults
def test_an_encrypted_run_survives_as_a_readable_one_does(stage: Stage) -> None:
    """The digests are those of a run without encryption."""
    survives_encrypted(stage, LABEL, [BEFORE_THE_KEY_IS_KNOWN[1], *IN_AN_ENCRYPTED_FOLDER[2:9:2]])


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
def test_an_encrypted_run_survives_a_kill_at_every_point(stage: Stage, name: str) -> None:
    survives_encrypted(stage, name, [*BEFORE_THE_KEY_IS_KNOWN, *IN_AN_ENCRYPTED_FOLDER])


def survives_encrypted(stage: Stage, name: str, points: list[dict[str, Any]]) -> None:
    kind = JobKind()
    expected = stage.reference(kind)
    with stage.run(kind) as run:
        new_key(run.site.folder / "run.key")
        run.settings = {other: ['encryption.key="run.key"'] for other in EVERYBODY}
        run.start_all([other for other in EVERYBODY if other != name])
        killed_at(run, name, points)
        run.start(name)
        run.survives(expected)
        for other in EVERYBODY:
            assert (run.site.out(other) / "private.json").read_bytes().startswith(b"TWREST1")


def charges(run: Run, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.site.out(name) / "charges.jsonl").read_text().splitlines()]


@pytest.mark.faults
def test_what_was_noised_is_charged_once_and_sent_as_it_was(stage: Stage) -> None:
    """Killed before, during and after a charge and its message: the same digests, and no charge twice."""
    expected = stage.reference(NOISY)
    with stage.run(NOISY, pause_ms=5) as run:
        run.note_sends()
        run.start_all([other for other in EVERYBODY if other != "shop"])
        killed_at(run, "shop", [*AROUND_THE_CHARGES[1:3], MID_SEND[1]])
        run.start("shop")
        run.survives(expected)
        for name in FEATURES:
            names = [line["charge"] for line in charges(run, name)]
            rests = NOISY.rounds // 6 + 1
            assert len(names) == len(set(names)) == NOISY.rounds + rests
            assert charges(run, name)[-1]["releases"] == rests


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(9))
def test_a_random_kill_every_half_second(stage: Stage, seed: int) -> None:
    choice = random.Random(seed)  # noqa: S311
    kind = (PLAIN, REUSING, AHEAD, REUSING, NOISY, TREES, ONCE, NOISY_CODES, WARM)[seed]
    expected = stage.reference(kind)
    with stage.run(kind, pause_ms=60 if kind in (TREES, ONCE, NOISY_CODES) else 20) as run:
        run.note_sends()
        run.start_all()
        run.await_round(LABEL, 2)
        for _ in range(25):
            sleep(choice.uniform(0.3, 0.7))
            name = choice.choice(EVERYBODY)
            if run.processes[name].poll() is None:
                run.kill(name)
                stage.tally.inject("kills")
            run.start(name)
        run.survives(expected)


@pytest.mark.faults
def test_all_at_once(stage: Stage) -> None:
    expected = stage.reference(PLAIN)
    with stage.run(PLAIN, pause_ms=10) as run:
        run.note_sends()
        run.start_all()
        for _ in range(6):
            run.await_round(LABEL, run.round(LABEL) + 12, START_SECONDS)
            for name in EVERYBODY:
                run.kill(name)
            stage.tally.inject("kills", 4)
            run.start_all()
        run.survives(expected)


@pytest.mark.faults
def test_again_during_recovery(stage: Stage) -> None:
    expected = stage.reference(PLAIN)
    choice = random.Random(9)  # noqa: S311
    with stage.run(PLAIN, pause_ms=10) as run:
        run.note_sends()
        run.start_all()
        for name in EVERYBODY:
            run.await_round(LABEL, run.round(LABEL) + 12, START_SECONDS)
            for _ in range(5):
                run.kill(name)
                stage.tally.inject("kills")
                run.start(name)
                sleep(choice.uniform(0.02, 0.4))
            run.kill(name)
            run.kill(choice.choice([other for other in EVERYBODY if other != name]))
            stage.tally.inject("kills", 2)
            for other in EVERYBODY:
                if run.processes[other].poll() is not None:
                    run.start(other)
        run.survives(expected)


@pytest.mark.faults
def test_a_second_process_is_turned_away_while_the_first_one_runs(stage: Stage) -> None:
    kind = JobKind()
    expected = stage.reference(kind)
    with stage.run(kind, pause_ms=15) as run:
        run.start_all()
        run.await_round(LABEL, 6)
        for name in ROLES:
            first = run.processes[name]
            second = run.start(name)
            stage.tally.inject("second processes")
            assert run.ended(second, 20) == 2
            assert "a run is under way here already" in second.stderr
            run.processes[name] = first
        run.survives(expected)
