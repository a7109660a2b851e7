"""Partitions, one-way drops, flapping, resets at any byte, and slow links, through a proxy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

import pytest

from faults.conftest import Stage
from faults.proxy import DOWN, UP, Proxy
from faults.running import FEATURES, LABEL, NOISY, JobKind, Run

KIND = JobKind(epochs=30)
HEALED_SECONDS = 300.0
WIDE = JobKind(recipe='{ method = "svfl" }', epochs=0.5, width=4096)
MEGABIT = 1e6 / 8


@contextmanager
def behind_a_proxy(stage: Stage, kind: JobKind = KIND, pause_ms: float = 10) -> Iterator[tuple[Run, Proxy]]:
    with stage.run(kind, pause_ms=pause_ms) as run:
        run.note_sends()
        proxy = Proxy(run.site.port)
        for name in FEATURES:
            run.settings[name] = [proxy.setting]
        try:
            yield run, proxy
        finally:
            proxy.close()


def goes_on(run: Run, rounds: int = 5) -> None:
    """New rounds."""
    goal = run.round(LABEL) + rounds
    run.until(lambda: run.round(LABEL) >= goal, HEALED_SECONDS, "no new round since the link is whole again")


def await_reset(run: Run, proxy: Proxy, before: int) -> None:
    run.until(lambda: proxy.resets > before, 30, "the connection was not cut")


@pytest.mark.faults
def test_resets_and_a_partition(stage: Stage) -> None:
    kind = JobKind()
    expected = stage.reference(kind)
    with behind_a_proxy(stage, kind, pause_ms=30) as (run, proxy):
        run.start_label_party_first()
        run.await_round(LABEL, 10)
        for _ in range(3):
            proxy.reset()
            stage.tally.inject("resets")
            goes_on(run)
        proxy.partition()
        stage.tally.inject("partitions")
        sleep(3)
        proxy.heal()
        goes_on(run)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("ways", "seconds"),
    [
        pytest.param(ways, seconds, id=f"{name} for {seconds} s")
        for name, ways in {"partition": (UP, DOWN), "drop up": (UP,), "drop down": (DOWN,)}.items()
        for seconds in (4, 15)
    ]
    + [pytest.param((UP, DOWN), 40, id="partition for 40 s")],
)
def test_partition_and_one_way_drop(stage: Stage, ways: tuple[str, ...], seconds: float) -> None:
    expected = stage.reference(KIND)
    with behind_a_proxy(stage) as (run, proxy):
        run.start_label_party_first()
        run.await_round(LABEL, 10)
        proxy.held = set(ways)
        stage.tally.inject("partitions")
        sleep(seconds)
        if seconds > 10:
            assert any(f"{name!r} is gone" in run.said(LABEL) for name in FEATURES), run.told()
        proxy.heal()
        goes_on(run)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("kind", [JobKind(epochs=60), NOISY], ids=["plain", "noisy"])
def test_flapping(stage: Stage, kind: JobKind) -> None:
    expected = stage.reference(kind)
    choice = random.Random(4)  # noqa: S311
    with behind_a_proxy(stage, kind) as (run, proxy):
        run.start_label_party_first()
        run.await_round(LABEL, 10)
        for _ in range(20):
            proxy.held = set(choice.choice([(UP, DOWN), (UP,), (DOWN,)]))
            sleep(choice.uniform(0.05, 0.8))
            if choice.random() < 0.5:
                proxy.reset()
            proxy.heal()
            stage.tally.inject("flaps")
            sleep(choice.uniform(0.05, 0.8))
        goes_on(run)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("part", ["handshake", "first records", "later"])
def test_reset_at_any_byte(stage: Stage, part: str) -> None:
    """One connection after another is cut: at bytes of the handshake, of the first words, and far into the run."""
    first, step = {"handshake": (1, 173), "first records": (4000, 311), "later": (9000, 1733)}[part]
    kind = JobKind(epochs=60)
    expected = stage.reference(kind)
    with behind_a_proxy(stage, kind, pause_ms=3) as (run, proxy):
        run.start_label_party_first()
        run.await_round(LABEL, 6)
        for number in range(24):
            before = proxy.resets
            proxy.reset(next_after=first + number * step)
            await_reset(run, proxy, before)
            stage.tally.inject("resets")
        goes_on(run)
        run.survives(expected)


@pytest.mark.faults
@pytest.mark.parametrize("offset", [1, 60, 400, 1200, 2500])
def test_reset_in_the_first_handshake(stage: Stage, offset: int) -> None:
    """Nobody has been connected yet: a broken line is no reason to give up."""
    kind = JobKind(epochs=2)
    expected = stage.reference(kind)
    with behind_a_proxy(stage, kind, pause_ms=0) as (run, proxy):
        run.start(LABEL)
        run.until(lambda: run.count(LABEL, "listening"), 20, "clinic does not listen")
        for name in FEATURES:
            before = proxy.resets
            proxy.reset_after = offset
            run.start(name)
            await_reset(run, proxy, before)
            stage.tally.inject("resets")
        run.survives(expected)


@pytest.mark.faults
def test_slow_link(stage: Stage) -> None:
    """1 Mbit/s and 200 ms: messages of 655 kB take five seconds each."""
    expected = stage.reference(WIDE)
    with behind_a_proxy(stage, WIDE, pause_ms=0) as (run, proxy):
        proxy.bytes_per_second = MEGABIT
        proxy.delay_seconds = 0.2
        run.start_label_party_first()
        stage.tally.inject("slow links")
        run.survives(expected, 400)
        for name in FEATURES:
            assert run.count(name, "disconnected") <= 1, run.told()


@pytest.mark.faults
def test_slow_link_that_breaks(stage: Stage) -> None:
    """What has arrived is not sent once more."""
    kind = JobKind(epochs=5)
    expected = stage.reference(kind)
    with behind_a_proxy(stage, kind, pause_ms=0) as (run, proxy):
        proxy.bytes_per_second = MEGABIT
        proxy.delay_seconds = 0.1
        run.start_label_party_first()
        for _ in range(4):
            run.await_round(LABEL, run.round(LABEL) + 3)
            proxy.reset()
            stage.tally.inject("resets")
        run.survives(expected)
