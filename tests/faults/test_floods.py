"""A training whose label party may open 1,024 files, under floods of callers: it ends as if nobody had called.

`benchmarks/floods.py` has the floods, and measures how fast the training is under them.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from benchmarks.floods import FLOODS, count_rounds, flooded, peak_mib, training
from processes import Process, until
from training.party.parties import LABEL_PARTY, Place, simulated
from training.party.test_same_as_simulated import require_same

pytestmark = pytest.mark.faults
EPOCHS = 400  # of three rounds


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Process]]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with training(tmp_path_factory.mktemp("flooded"), 1_000_000) as (place, running):
        yield place, running[LABEL_PARTY]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


def has_gone_on(place: Place, label: Process, before: int) -> bool:
    return label.ended or count_rounds(place) > before + 50


@pytest.mark.parametrize("flood", FLOODS)
def test_a_training_goes_on_under_a_flood_and_takes_little_more_memory(
    endless: tuple[Place, Process], flood: str
) -> None:
    place, label = endless
    usual = peak_mib(label)
    with ExitStack() as held:
        FLOODS[flood](place, held)
        until(partial(has_gone_on, place, label, count_rounds(place)))
        assert not label.ended, label.stderr
        assert peak_mib(label) < 2 * usual


def test_models_are_those_of_a_training_that_nobody_has_flooded(tmp_path: Path) -> None:
    with training(tmp_path, EPOCHS) as (place, running), ExitStack() as floods:
        for flood in ("open calls", "idle connections", "long chains"):
            floods.enter_context(flooded(place, flood))
        for process in running.values():
            assert process.summary()["rounds"] == 3 * EPOCHS
    require_same(place, simulated(place.job))
