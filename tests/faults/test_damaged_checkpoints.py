"""Truncated, bit-flipped, swapped and rolled-back checkpoints: found, one generation back, identical."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.conftest import Stage
from faults.running import EVERYBODY, FEATURES, LABEL, NOISY, ROLES, JobKind, Run

KIND = JobKind(epochs=30)
Damage = Callable[[Run, str, random.Random], None]


def generations(run: Run, name: str) -> list[Path]:
    """The oldest first."""
    return sorted((run.site.out(name) / "checkpoints").glob("0*-*"))


def newest_files(run: Run, name: str) -> list[Path]:
    return sorted(path for path in generations(run, name)[-1].iterdir() if path.is_file())


def truncate(run: Run, name: str, choice: random.Random) -> None:
    path = choice.choice(newest_files(run, name))
    path.write_bytes(path.read_bytes()[: choice.randrange(path.stat().st_size)])


def flip_a_bit(run: Run, name: str, choice: random.Random) -> None:
    path = choice.choice(newest_files(run, name))
    content = bytearray(path.read_bytes())
    content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
    path.write_bytes(content)


def swap_with_another_party(run: Run, name: str, choice: random.Random) -> None:
    """Its newest generation, under our newest one's name."""
    other = choice.choice([party for party in EVERYBODY if party != name])
    mine, theirs = generations(run, name)[-1], generations(run, other)[-1]
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)


def swap_within(run: Run, name: str, choice: random.Random) -> None:
    """The generation before, under the newest one's name."""
    older, newest = generations(run, name)[-2:]
    shutil.rmtree(newest)
    shutil.copytree(older, newest)


def remove(run: Run, name: str, choice: random.Random) -> None:
    choice.choice(newest_files(run, name)).unlink()


def remove_all(run: Run, name: str, choice: random.Random) -> None:
    shutil.rmtree(generations(run, name)[-1])


DAMAGES: dict[str, Damage] = {
    "truncated": truncate,
    "bit flipped": flip_a_bit,
    "swapped with another party's": swap_with_another_party,
    "swapped with the one before": swap_within,
    "a file missing": remove,
    "missing": remove_all,
}


def falls_back(run: Run, name: str, damage: Damage, choice: random.Random) -> None:
    """Kills a party, damages its newest checkpoint, and sees it go on from the one before."""
    run.await_round(name, run.round(name) + 8)
    run.until(lambda: len(generations(run, name)) >= 2, 20, "there are no two generations")
    run.kill(name)
    run.until(lambda: run.processes[name].poll() is not None, 5, "still there")
    damage(run, name, choice)
    process = run.start(name)
    run.tally.inject("damaged checkpoints")
    run.until(lambda: "resuming from round" in process.stderr or process.poll() is not None, 30, "not back")
    assert "fell back to generation" in process.stderr, process.stderr


@pytest.mark.faults
def test_damaged_checkpoints_fall_back(stage: Stage) -> None:
    expected = stage.reference(KIND)
    choice = random.Random(1)  # noqa: S311
    with stage.run(KIND) as run:
        run.note_sends()
        run.start_all()
        falls_back(run, "shop", flip_a_bit, choice)
        falls_back(run, LABEL, truncate, choice)
        falls_back(run, "shop", swap_with_another_party, choice)
        falls_back(run, LABEL, swap_within, choice)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("what", DAMAGES)
def test_every_damage_falls_back(stage: Stage, what: str, name: str) -> None:
    every_damage_falls_back(stage, what, name, JobKind(epochs=60))


@pytest.mark.faults
@pytest.mark.parametrize("what", DAMAGES)
def test_every_damage_falls_back_and_nothing_is_charged_twice(stage: Stage, what: str) -> None:
    """Never behind the privacy ledger: what was released stays charged, whatever checkpoint is left."""
    every_damage_falls_back(stage, what, "shop", NOISY)


def every_damage_falls_back(stage: Stage, what: str, name: str, kind: JobKind) -> None:
    expected = stage.reference(kind)
    choice = random.Random(f"{what} {name}")  # noqa: S311
    with stage.run(kind) as run:
        run.note_sends()
        run.start_all()
        for _ in range(6):
            falls_back(run, name, DAMAGES[what], choice)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
def test_a_rolled_back_folder_is_found(stage: Stage, name: str) -> None:
    """Older checkpoints brought back from a copy: refused while the private state is newer, then identical."""
    expected = stage.reference(KIND)
    with stage.run(KIND) as run:
        run.start_all()
        run.await_round(name, 12)
        run.kill(name)
        folder = run.site.out(name)
        shutil.copytree(folder / "checkpoints", folder.with_suffix(".copy"))
        run.start(name)
        run.await_round(name, 50)
        run.until(
            lambda: generations(run, name)[0].name > max(p.name for p in folder.with_suffix(".copy").iterdir()),
            20,
            "?",
        )
        run.kill(name)
        shutil.move(folder / "checkpoints", folder.with_suffix(".newest"))
        shutil.copytree(folder.with_suffix(".copy"), folder / "checkpoints")
        refused = run.start(name)
        assert run.ended(refused, 20) in (1, 2)
        assert "rolled back" in refused.stderr
        stage.tally.inject("rolled-back checkpoints")
        shutil.rmtree(folder / "checkpoints")
        shutil.move(folder.with_suffix(".newest"), folder / "checkpoints")
        run.start(name)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("name", ROLES)
def test_a_whole_folder_rolled_back_is_refused_by_the_others(stage: Stage, name: str) -> None:
    """private.json included: the others know of a later process, and of more messages."""
    expected = stage.reference(KIND)
    with stage.run(KIND) as run:
        run.start_all()
        run.await_round(name, 12)
        run.kill(name)
        folder = run.site.out(name)
        shutil.copytree(folder, folder.with_suffix(".copy"))
        run.start(name)
        run.await_round(name, 60)
        run.kill(name)
        shutil.move(folder, folder.with_suffix(".newest"))
        shutil.copytree(folder.with_suffix(".copy"), folder)
        rolled = run.start(name)
        run.tally.inject("rolled-back checkpoints")
        if name in FEATURES:
            assert run.ended(rolled, 20) != 0
            assert "must end" in rolled.stderr or "older" in rolled.stderr or "already" in rolled.stderr, (
                rolled.stderr
            )
        else:
            for other in FEATURES:
                assert run.ended(other, 20) != 0
                assert "was started from an outdated copy of its folder" in run.said(other)
            run.kill(rolled)
        shutil.rmtree(folder)
        shutil.move(folder.with_suffix(".newest"), folder)
        run.start_all([name] if name in FEATURES else EVERYBODY)
        run.survives(expected)
