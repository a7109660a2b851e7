"""Programs on a link with a clock: what a run would have taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from thinwire.base.types import Kind
from thinwire.engine.channel.base import Message
from thinwire.engine.channel.link import Link, LinkClock
from thinwire.engine.channel.simulated import Simulation
from thinwire.engine.wire.frame import HEADER_SIZE

UP, DOWN = Kind.EMBEDDING, Kind.DERIVATIVE
MEGABYTE = bytes(1_000_000 - HEADER_SIZE)  # a second at 8 Mbit/s


def simulation_of(link: Link, parties: Sequence[str] = ("bank", "shop")) -> Simulation:
    return Simulation(parties, run=1, label_party="bank", link=link)


def clock_of(simulation: Simulation) -> LinkClock:
    assert simulation.clock is not None
    return simulation.clock


def exchange(simulation: Simulation, rounds: int, steps: int, kinds: tuple[Kind, Kind] = (UP, DOWN)) -> None:
    up, down = kinds

    def bank() -> None:
        channel = simulation.channel("bank")
        for t in range(rounds):
            channel.receive("shop", up, t)
            channel.send(Message("bank", "shop", down, t, MEGABYTE))
            channel.count_steps(steps)

    def shop() -> None:
        channel = simulation.channel("shop")
        for t in range(rounds):
            channel.send(Message("shop", "bank", up, t, MEGABYTE))
            channel.receive("bank", down, t)
            channel.count_steps(steps)

    simulation.run({"bank": bank, "shop": shop})


@pytest.mark.parametrize(("local_steps", "round_trip_ms"), [(1, 10), (10, 50), (25, 200)])
def test_time_as_a_step_count_and_round_trips(local_steps: int, round_trip_ms: float) -> None:
    simulation = simulation_of(Link(latency_ms=round_trip_ms / 2, compute_ms=10))
    exchange(simulation, rounds=7, steps=local_steps)
    assert clock_of(simulation).latest() == pytest.approx(7 * (10 * local_steps + round_trip_ms) / 1e3)


def test_bandwidth_counts_the_whole_frame_in_both_directions() -> None:
    simulation = simulation_of(Link(bandwidth_mbit=8, latency_ms=100, down_bandwidth_mbit=16, compute_ms=0))
    exchange(simulation, rounds=3, steps=1)
    assert clock_of(simulation).latest() == pytest.approx(3 * (1.0 + 0.1 + 0.5 + 0.1))


def test_evaluation_takes_no_time_and_is_counted() -> None:
    simulation = simulation_of(Link(bandwidth_mbit=8, latency_ms=100, compute_ms=10))
    exchange(simulation, rounds=3, steps=0, kinds=(Kind.EVALUATION, Kind.EVALUATION))
    assert clock_of(simulation).latest() == 0.0
    traffic = simulation.ledger.traffic("bank")
    assert (traffic.total, traffic.evaluation, traffic.messages) == (0, 6_000_000, 0)


def test_every_party_works_at_its_own_pace() -> None:
    simulation = simulation_of(Link(compute_ms=10, parties={"shop": Link(compute_ms=70)}), ("bank", "shop", "post"))

    def worker(name: str) -> Callable[[], None]:
        return lambda: simulation.channel(name).count_steps(3)

    simulation.run({name: worker(name) for name in ("bank", "shop", "post")})
    clock = clock_of(simulation)
    assert [clock.now(name) for name in ("bank", "shop", "post")] == pytest.approx([0.03, 0.21, 0.03])


def test_steps_in_an_untimed_block_cost_nothing() -> None:
    simulation = simulation_of(Link(compute_ms=10))

    def bank() -> None:
        channel = simulation.channel("bank")
        with channel.pause_clock(), channel.pause_clock():
            channel.count_steps(1000)
        channel.count_steps(1)

    simulation.run({"bank": bank, "shop": lambda: None})
    assert clock_of(simulation).latest() == 0.01


class Watch:
    """A perf_counter that moves only when a program says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr("thinwire.engine.channel.simulated.perf_counter", watch)
    return watch


def test_measured_time_is_the_partys_own_and_leaves_out_untimed_blocks(watch: Watch) -> None:
    simulation = simulation_of(Link())

    def bank() -> None:
        channel = simulation.channel("bank")
        watch.seconds += 1
        channel.receive("shop", UP, 0)  # what shop computes meanwhile is waiting here
        watch.seconds += 2
        with channel.pause_clock():
            watch.seconds += 1000
            channel.receive("shop", Kind.EVALUATION, 0)
            watch.seconds += 1000
        channel.count_steps(1000)  # nothing is charged by the step
        watch.seconds += 4

    def shop() -> None:
        channel = simulation.channel("shop")
        watch.seconds += 8
        channel.send(Message("shop", "bank", UP, 0, b""))
        assert not channel.ready("bank", DOWN, 0)
        watch.seconds += 16
        channel.send(Message("shop", "bank", Kind.EVALUATION, 0, b""))
        watch.seconds += 32

    simulation.run({"bank": bank, "shop": shop})
    clock = clock_of(simulation)
    assert clock.now("bank") == 8 + 2 + 4  # shop's message came at 8
    assert clock.now("shop") == 8 + 16 + 32


def test_ready_looks_at_the_clock() -> None:
    simulation = simulation_of(Link(bandwidth_mbit=8, compute_ms=400))

    def bank() -> list[bool]:
        channel = simulation.channel("bank")
        answers = []
        for _ in range(4):
            answers.append(channel.ready("shop", UP, 0))
            channel.count_steps(1)
        assert channel.receive("shop", UP, 0).round == 0
        return answers

    def shop() -> list[bool]:
        simulation.channel("shop").send(Message("shop", "bank", UP, 0, MEGABYTE))
        return []

    # Sent at 0, there at 1.0; asked at 0, 0.4, 0.8 and 1.2.
    assert simulation.run({"bank": bank, "shop": shop})["bank"] == [False, False, False, True]
    assert clock_of(simulation).now("bank") == pytest.approx(1.6)


def test_ready_is_true_at_once_for_an_evaluation() -> None:
    simulation = simulation_of(Link(bandwidth_mbit=8, latency_ms=1000, compute_ms=1))
    evaluation = Message("shop", "bank", Kind.EVALUATION, 0, MEGABYTE)
    got = simulation.run(
        {
            "bank": lambda: simulation.channel("bank").ready("shop", Kind.EVALUATION, 0),
            "shop": lambda: simulation.channel("shop").send(evaluation),
        }
    )
    assert got["bank"] is True


@pytest.mark.parametrize("parties", [("bank", "shop", "post"), ("post", "shop", "bank"), ("shop", "bank", "post")])
@pytest.mark.parametrize("polls", [1, 5])
def test_ready_does_not_depend_on_the_order_of_turns(parties: tuple[str, ...], polls: int) -> None:
    # shop sends after eight short steps with many waits for the turn; bank takes long steps.
    simulation = simulation_of(
        Link(latency_ms=5, compute_ms=100, parties={"shop": Link(latency_ms=5, compute_ms=20)}), parties
    )

    def bank() -> list[float]:
        channel = simulation.channel("bank")
        while not channel.ready("shop", UP, 0):
            channel.count_steps(1)
        channel.receive("shop", UP, 0)
        channel.send(Message("bank", "post", DOWN, 0, b""))
        return [clock_of(simulation).now("bank")]

    def shop() -> list[float]:
        channel = simulation.channel("shop")
        for _ in range(8):
            for t in range(polls):
                assert not channel.ready("bank", DOWN, t)
            channel.count_steps(1)
        channel.send(Message("shop", "bank", UP, 0, b""))
        return []

    def post() -> list[float]:
        simulation.channel("post").receive("bank", DOWN, 0)
        return [clock_of(simulation).now("post")]

    # Arrives at 8 * 20 + 5 = 165 ms: bank sees it when it looks at 200 ms, in every order.
    got = simulation.run({"bank": bank, "shop": shop, "post": post})
    assert got["bank"] == pytest.approx([0.2])
    assert got["post"] == pytest.approx([0.205])


def test_thirty_two_feature_parties_queue_in_the_label_partys_pipe() -> None:
    features = [f"f{i}" for i in range(32)]
    simulation = simulation_of(Link(bandwidth_mbit=8, compute_ms=0), ("bank", *features))

    def bank() -> None:
        channel = simulation.channel("bank")
        for name in features:
            channel.receive(name, UP, 0)
        for name in features:
            channel.send(Message("bank", name, DOWN, 0, MEGABYTE))

    def feature(name: str) -> Callable[[], None]:
        def run() -> None:
            channel = simulation.channel(name)
            channel.send(Message(name, "bank", UP, 0, MEGABYTE))
            channel.receive("bank", DOWN, 0)

        return run

    simulation.run({"bank": bank} | {name: feature(name) for name in features})
    clock = clock_of(simulation)
    assert [clock.now(name) for name in features] == pytest.approx([2.0 + i for i in range(32)])
    assert clock.now("bank") == 1.0
    assert simulation.ledger.traffic("bank").up == simulation.ledger.traffic("bank").down == 32_000_000


def test_a_run_in_two_halves_takes_as_long_as_one() -> None:
    link = Link(bandwidth_mbit=3, latency_ms=7, compute_ms=11)
    whole, first, second = (simulation_of(link) for _ in range(3))
    exchange(whole, rounds=6, steps=2)
    exchange(first, rounds=3, steps=2)
    clock_of(second).load(clock_of(first).state())
    second.ledger.load(first.ledger.state())
    exchange(second, rounds=3, steps=2)
    assert clock_of(second).state() == clock_of(whole).state()
    assert second.ledger.state() == whole.ledger.state()
