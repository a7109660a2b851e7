"""A party with a good certificate that sends a few bytes which announce 4 GiB, in every kind of message.

Everybody ends with an error that names it, or refuses it, and takes no more memory than an undisturbed run.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from align.test_party import place as alignable
from processes import THINWIRE, Process, Processes, until
from thinwire.base.types import Kind
from training.party.parties import LABEL_PARTY, Place, Shape, made, ran

TOP_K = {"name": "TopK", "fraction": 0.25}
SVFL = Shape({"method": "svfl"})
STEERED = Shape({"method": "svfl"}, job={"split": {"validation": 0.3, "test": 0}}, ids=True)
MEASURED = Shape({"method": "svfl"}, job={"column_importance": True})
ANNOUNCED = Shape({"method": "svfl"}, job={"batches": "announced"})
SHARED = Shape({"method": "efvfl", "compressor": TOP_K, "order": "update_first", "warm_start": True})
FEEDBACK = Shape({"method": "efvfl", "compressor": TOP_K, "labels": "private"})
SUMMED = Shape(
    {"method": "pbm", "trials": 8, "beta": 0.2},
    job={"training": "frozen"},
    model={"name": "mlp", "hidden": [6], "width": 4, "out_activation": "tanh"},
    parties=3,
)
REGRESSION = Shape(
    {"method": "svfl"},
    job={"batch_size": None, "epochs": 20, "metrics": ["mse"]},
    model={"name": "linear", "inference": True},
    label_party={"top": {"name": "regression_top"}, "loss": "squared_error"},
)
ROOM = 2 << 30  # bytes beside what a party has taken when it starts


@dataclass(frozen=True)
class Bomb:
    """Of which kind, from whom, in which job, and what all others say.

    Where the label party passes bodies on, the party that made them is named: nobody can tell who changed them.
    """

    kind: Kind
    sender: str
    job: Callable[[Path], tuple[Place, str]]  # and the command of its parties
    says: str

    def __str__(self) -> str:
        return f"{self.kind.name} of {self.sender}"


def trains(shape: Shape) -> Callable[[Path], tuple[Place, str]]:
    return lambda folder: (made(folder, shape), "party")


def aligns(folder: Path) -> tuple[Place, str]:
    return alignable(folder), "align"


def predicts(folder: Path) -> tuple[Place, str]:
    found = made(folder, SVFL)
    ran(found)
    return found, "predict"


ANNOUNCES = "sent an invalid message body: 1073741824 values in shape (32768, 32768) are announced, the cap is"
FROM_BANK, FROM_LABEL_PARTY = f"'bank' {ANNOUNCES}", f"'{LABEL_PARTY}' {ANNOUNCES}"
BOMBS = [
    Bomb(Kind.EVALUATION, "bank", trains(SVFL), FROM_BANK),
    Bomb(Kind.EVALUATION, LABEL_PARTY, trains(SVFL), "'clinic' ended the evaluation with"),
    Bomb(Kind.EMBEDDING, "bank", trains(SVFL), FROM_BANK),
    Bomb(Kind.DERIVATIVE, LABEL_PARTY, trains(SVFL), FROM_LABEL_PARTY),
    Bomb(Kind.CONTROL, "bank", trains(SVFL), "'bank' sent CONTROL of round 0 where EMBEDDING of round 0 was next"),
    Bomb(Kind.ROWS, LABEL_PARTY, trains(ANNOUNCED), FROM_LABEL_PARTY),
    Bomb(Kind.WARM_START, "bank", trains(SHARED), FROM_BANK),
    Bomb(Kind.WARM_START, LABEL_PARTY, trains(SHARED), ANNOUNCES),
    Bomb(Kind.LABELS, LABEL_PARTY, trains(SHARED), FROM_LABEL_PARTY),
    Bomb(Kind.REPRESENTATIONS, LABEL_PARTY, trains(SHARED), ANNOUNCES),
    Bomb(Kind.TOP_MODEL, LABEL_PARTY, trains(SHARED), FROM_LABEL_PARTY),
    Bomb(Kind.SURROGATE_DIGEST, "bank", trains(FEEDBACK), "stream 'bank/uplink', round 2: our surrogate has digest"),
    Bomb(Kind.KEYS, "bank", trains(SUMMED), "a key of 'bank' in"),
    Bomb(Kind.KEYS, LABEL_PARTY, trains(SUMMED), "a key of "),
    Bomb(Kind.ALIGNMENT, "bank", aligns, "'bank' has 18446744073709551615 ids"),
    Bomb(Kind.BLINDED_IDS, "bank", aligns, "'bank' sent BLINDED_IDS 0 of"),
    Bomb(Kind.MATCH_TAGS, "bank", aligns, "'bank' sent MATCH_TAGS 0 of"),
    Bomb(Kind.COMMON_ROWS, LABEL_PARTY, aligns, "'clinic' sent COMMON_ROWS 0 of"),
    Bomb(Kind.TEST, "bank", trains(STEERED), FROM_BANK),
    Bomb(Kind.COLUMN, "bank", trains(MEASURED), FROM_BANK),
    Bomb(Kind.COLUMN, LABEL_PARTY, trains(MEASURED), "'clinic' scores columns by"),
    Bomb(Kind.WEIGHTS, LABEL_PARTY, trains(REGRESSION), "'clinic', WEIGHTS of round 0: "),
    Bomb(Kind.INFERENCE, "bank", trains(REGRESSION), "'bank', INFERENCE: "),
    Bomb(Kind.INFERENCE, LABEL_PARTY, trains(REGRESSION), "'clinic', INFERENCE: "),
    Bomb(Kind.PREDICTION, "bank", predicts, FROM_BANK),
    Bomb(Kind.PREDICTION, LABEL_PARTY, predicts, "Truncated; see its own log"),
]


def started(found: Place, command: str, processes: Processes, faults: Mapping[str, Any]) -> dict[str, Process]:
    """Every party's command; `faults` by party."""
    running = {}
    for name in found.names:
        words: list[str | Path] = [THINWIRE, command, found.job, "--name", name, "--yes"]
        if command == "party":
            words += ["--out", found.out(name)]
        if command == "predict":
            words += ["--run", found.out(name), *(["--out", "scores.csv"] if name == LABEL_PARTY else [])]
        running[name] = processes.command(words, found.folder, faults=faults.get(name, []))
        taken = memory(running[name], "VmData") << 10
        resource.prlimit(running[name].pid, resource.RLIMIT_DATA, (taken + ROOM, taken + ROOM))
    return running


def memory(process: Process, what: str = "VmHWM") -> int:
    """In KiB."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return int(next((line.split()[1] for line in lines if line.startswith(what)), 0))


def peaks(running: Mapping[str, Process]) -> dict[str, int]:
    """Of all, until each has ended."""
    highest = dict.fromkeys(running, 0)

    def look() -> bool:
        for name, process in running.items():
            highest[name] = max(highest[name], memory(process))
        return all(process.ended for process in running.values())

    until(look)
    return highest


@cache
def usual(job: Callable[[Path], tuple[Place, str]]) -> dict[str, int]:
    """Memory of an undisturbed run."""
    found, command = job(Path(mkdtemp(prefix="thinwire-bombs-")))
    with Processes() as processes:
        running = started(found, command, processes, {})
        highest = peaks(running)
        assert not any(process.code() for process in running.values()), [one.stderr for one in running.values()]
    return highest


def test_every_kind_has_a_bomb() -> None:
    assert {bomb.kind for bomb in BOMBS} == set(Kind)


@pytest.mark.faults
@pytest.mark.parametrize("bomb", BOMBS, ids=str)
def test_a_bomb_ends_in_an_error_that_names_its_sender(bomb: Bomb, tmp_path: Path) -> None:
    found, command = bomb.job(tmp_path)
    with Processes() as processes:
        running = started(found, command, processes, {bomb.sender: [{"explode": bomb.kind.name}]})
        highest = peaks(running)
        said = {name: process.stderr for name, process in running.items() if name != bomb.sender}
        assert all(running[name].code() in (1, 2) for name in said), said
    for words in said.values():
        assert bomb.says in words.rpartition("thinwire: ")[2], words
        assert "Traceback" not in words
    for name in said:
        assert highest[name] < 2 * usual(bomb.job)[name]
