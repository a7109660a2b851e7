"""Programs that take turns."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from thinwire.base.errors import BadParameter, ThinwireError
from thinwire.base.types import Kind
from thinwire.engine.channel.base import Channel, Deadlock, Message, Stopped, TransportError, Wait
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.channel.simulated import SimulatedChannel, Simulation
from thinwire.engine.wire.frame import HEADER_SIZE

UP, DOWN = Kind.EMBEDDING, Kind.DERIVATIVE


def simulation_of(*parties: str) -> Simulation:
    return Simulation(parties, run=7, label_party=parties[0])


def ping_pong(simulation: Simulation, parties: list[str], rounds: int, trace: list[Any]) -> dict[str, Any]:
    """The first party answers all others, round by round."""
    label, *features = parties

    def answer() -> int:
        channel = simulation.channel(label)
        for t in range(rounds):
            bodies = [channel.receive(name, UP, t).body for name in features]
            trace.append((label, t, bodies))
            for name in features:
                channel.send(Message(label, name, DOWN, t, b"".join(bodies)))
        return rounds

    def asker(name: str) -> Callable[[], int]:
        def ask() -> int:
            channel = simulation.channel(name)
            for t in range(rounds):
                channel.send(Message(name, label, UP, t, f"{name}{t}".encode()))
                trace.append((name, t))
                trace.append((name, t, channel.receive(label, DOWN, t).body))
            return -rounds

        return ask

    return simulation.run({label: answer} | {name: asker(name) for name in features})


def test_a_message_arrives_as_it_was_sent_and_its_frame_is_counted() -> None:
    ledger = Ledger()
    simulation = Simulation(["bank", "shop"], run=7, label_party="bank", ledger=ledger)
    sent = Message("shop", "bank", UP, 3, b"hello")
    got = simulation.run(
        {
            "bank": lambda: simulation.channel("bank").receive("shop", UP, 3),
            "shop": lambda: simulation.channel("shop").send(sent),
        }
    )
    assert got == {"bank": sent, "shop": None}
    assert simulation.ledger is ledger
    assert ledger.total().bytes == HEADER_SIZE + 5


def test_a_simulated_channel_is_a_channel() -> None:
    channel: Channel = simulation_of("a", "b").channel("a")
    assert isinstance(channel, SimulatedChannel)


@pytest.mark.parametrize("count", [2, 3, 33])
def test_every_run_takes_the_same_turns(count: int) -> None:
    parties = [f"p{i}" for i in range(count)]
    traces: list[list[Any]] = []
    for _ in range(5):
        trace: list[Any] = []
        results = ping_pong(simulation_of(*parties), parties, rounds=10, trace=trace)
        assert results == {"p0": 10} | dict.fromkeys(parties[1:], -10)
        traces.append(trace)
    assert all(trace == traces[0] for trace in traces)
    assert [event[0] for event in traces[0][: count - 1]] == parties[1:]


def test_turns_go_in_the_order_of_the_parties_until_a_program_must_wait() -> None:
    simulation = simulation_of("a", "b", "c")
    order: list[str] = []

    def first() -> None:
        channel = simulation.channel("a")
        order.append("a sends")
        channel.send(Message("a", "b", DOWN, 0, b""))  # keeps the turn
        order.append("a waits")
        channel.receive("c", UP, 0)
        order.append("a ends")

    def second() -> None:
        order.append("b receives")
        simulation.channel("b").receive("a", DOWN, 0)  # is there: keeps the turn
        order.append("b ends")

    def third() -> None:
        simulation.channel("c").send(Message("c", "a", UP, 0, b""))
        order.append("c ends")

    simulation.run({"c": third, "b": second, "a": first})
    assert order == ["a sends", "a waits", "b receives", "b ends", "c ends", "a ends"]


def test_only_one_program_runs_at_a_time() -> None:
    simulation = simulation_of("a", "b", "c")
    running = 0
    most = 0

    def program(name: str, after: str, before: str) -> Callable[[], None]:
        def run() -> None:
            nonlocal running, most
            channel = simulation.channel(name)
            for t in range(200):
                running += 1
                most = max(most, running)
                sum(range(500))
                running -= 1
                channel.send(Message(name, after, UP, t, b""))
                channel.receive(before, UP, t)

        return run

    simulation.run({"a": program("a", "b", "c"), "b": program("b", "c", "a"), "c": program("c", "a", "b")})
    assert most == 1


def test_messages_are_matched_exactly_and_may_be_read_in_any_order() -> None:
    simulation = simulation_of("a", "b")

    def reader() -> list[bytes]:
        channel = simulation.channel("a")
        wanted = [(UP, 2), (Kind.CONTROL, 1), (UP, 1)]
        return [bytes(channel.receive("b", kind, round).body) for kind, round in wanted]

    def writer() -> None:
        for kind, round in [(UP, 1), (Kind.CONTROL, 1), (UP, 2)]:
            simulation.channel("b").send(Message("b", "a", kind, round, f"{kind.name} {round}".encode()))

    got = simulation.run({"a": reader, "b": writer})
    assert got["a"] == [b"EMBEDDING 2", b"CONTROL 1", b"EMBEDDING 1"]


def test_a_deadlock_says_who_waits_for_what() -> None:
    simulation = simulation_of("a", "b", "c")
    seen: list[str] = []

    def waiter(name: str, sender: str, kind: Kind, round: int) -> Callable[[], None]:
        def run() -> None:
            try:
                simulation.channel(name).receive(sender, kind, round)
            except Deadlock:
                seen.append(name)
                raise

        return run

    with pytest.raises(Deadlock) as caught:
        simulation.run({"a": waiter("a", "b", UP, 4), "b": waiter("b", "c", DOWN, 3), "c": lambda: None})
    assert str(caught.value) == (
        "deadlock: 'a' waits for EMBEDDING of round 4 from 'b'; 'b' waits for DERIVATIVE of round 3 from 'c', "
        "which has ended"
    )
    assert caught.value.waits == (Wait("a", "b", UP, 4), Wait("b", "c", DOWN, 3))
    assert sorted(seen) == ["a", "b"]


def test_a_deadlock_is_raised_even_if_the_programs_swallow_it() -> None:
    simulation = simulation_of("a", "b")

    def run() -> None:
        with pytest.raises(Deadlock):
            simulation.channel("a").receive("b", UP, 0)

    with pytest.raises(Deadlock, match="'a' waits for EMBEDDING of round 0 from 'b'"):
        simulation.run({"a": run, "b": lambda: None})


def test_a_failure_stops_the_others_and_is_raised_from_where_it_happened() -> None:
    simulation = simulation_of("a", "b", "c")
    stopped: list[str] = []

    def waiter() -> None:
        channel = simulation.channel("a")
        with pytest.raises(Stopped, match="'b' failed with ZeroDivisionError: integer division"):
            channel.receive("b", UP, 0)
        stopped.append("a")
        with pytest.raises(Stopped):
            channel.send(Message("a", "c", UP, 0, b""))
        raise RuntimeError("raised while it was stopped")

    def a_faulty_step() -> None:
        _ = 1 // 0

    def never_begins() -> None:
        stopped.append("c")

    with pytest.raises(ZeroDivisionError) as caught:
        simulation.run({"a": waiter, "b": a_faulty_step, "c": never_begins})
    assert stopped == ["a"]
    assert "a_faulty_step" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert caught.value.__notes__ == ["in the program of 'b'"]
    with pytest.raises(TransportError, match="create a new one"):
        simulation.run(dict.fromkeys("abc", never_begins))


def test_even_an_exit_inside_a_program_reaches_the_caller() -> None:
    simulation = simulation_of("a", "b")
    with pytest.raises(SystemExit):
        simulation.run({"a": lambda: sys.exit(3), "b": lambda: None})


def test_a_system_without_threads_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class FewThreads(threading.Thread):
        def start(self) -> None:
            if self.name == "party c":
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr("thinwire.engine.channel.simulated.Thread", FewThreads)
    begun: list[None] = []
    with pytest.raises(RuntimeError, match="can't start new thread"):
        simulation_of("a", "b", "c", "d").run(dict.fromkeys("abcd", lambda: begun.append(None)))
    assert begun == []


def test_no_thread_outlives_a_run() -> None:
    before = threading.active_count()
    simulation = simulation_of("a", "b")
    with pytest.raises(Deadlock):
        simulation.run({"a": lambda: simulation.channel("a").receive("b", UP, 0), "b": lambda: None})
    for thread in threading.enumerate():
        if thread.name.startswith("party "):
            thread.join(timeout=300)
    assert threading.active_count() == before


def test_a_simulation_runs_again_after_a_clean_end() -> None:
    simulation = simulation_of("a", "b")
    for _ in range(2):
        assert ping_pong(simulation, ["a", "b"], 3, []) == {"a": 3, "b": -3}
    assert simulation.ledger.total().messages == 12


def test_ready_lets_the_others_send_first() -> None:
    simulation = simulation_of("a", "b")

    def asker() -> list[bool]:
        channel = simulation.channel("a")
        answers = [channel.ready("b", UP, t) for t in (0, 1)]
        channel.send(Message("a", "b", DOWN, 0, b""))
        answers += [channel.ready("b", UP, t) for t in (0, 1, 2)]
        assert channel.receive("b", UP, 0).round == 0
        return [*answers, channel.ready("b", UP, 0)]

    def sender() -> None:
        channel = simulation.channel("b")
        channel.send(Message("b", "a", UP, 0, b""))
        channel.receive("a", DOWN, 0)
        channel.send(Message("b", "a", UP, 1, b""))

    got = simulation.run({"a": asker, "b": sender})
    assert got["a"] == [True, False, True, True, False, False]


def test_two_parties_that_only_ask_take_turns() -> None:
    simulation = simulation_of("a", "b")
    trace: list[str] = []

    def asker(name: str, other: str) -> Callable[[], None]:
        def run() -> None:
            for _ in range(3):
                assert not simulation.channel(name).ready(other, UP, 0)
                trace.append(name)

        return run

    simulation.run({"a": asker("a", "b"), "b": asker("b", "a")})
    assert trace == ["a", "b"] * 3


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message("a", "nobody", UP, 0, b""), "no party is called 'nobody'; the parties are a, b"),
        (Message("b", "a", UP, 0, b""), "'a' cannot send as 'b'"),
        (Message("a", "a", UP, 0, b""), "to 'a', which is itself"),
    ],
)
def test_misdirected_messages_are_refused(message: Message, why: str) -> None:
    simulation = simulation_of("a", "b")
    with pytest.raises(TransportError, match=why):
        simulation.run({"a": lambda: simulation.channel("a").send(message), "b": lambda: None})
    assert simulation.ledger.entries() == []


def test_a_message_to_a_party_that_has_ended_is_refused() -> None:
    simulation = simulation_of("a", "b")

    def late() -> None:
        simulation.channel("b").send(Message("b", "a", UP, 5, b""))

    with pytest.raises(TransportError, match="'b' cannot send EMBEDDING of round 5 to 'a', whose program has ended"):
        simulation.run({"a": lambda: None, "b": late})


def test_the_same_message_twice_is_refused_until_the_first_is_read() -> None:
    simulation = simulation_of("a", "b")
    message = Message("a", "b", DOWN, 0, b"")

    def twice() -> None:
        channel = simulation.channel("a")
        channel.send(message)
        channel.receive("b", UP, 0)  # b has read the first one
        channel.send(message)
        channel.send(message)

    def reader() -> None:
        channel = simulation.channel("b")
        channel.receive("a", DOWN, 0)
        channel.send(Message("b", "a", UP, 0, b""))
        channel.receive("a", DOWN, 1)

    why = "'a' cannot send DERIVATIVE of round 0 to 'b', which has not read the first one yet"
    with pytest.raises(TransportError, match=why):
        simulation.run({"a": twice, "b": reader})
    assert simulation.ledger.total(senders={"a"}).messages == 2


def test_unknown_senders_are_refused() -> None:
    simulation = simulation_of("a", "b")
    for ask in (simulation.channel("a").receive, simulation.channel("a").ready):
        with pytest.raises(TransportError, match="no party is called 'nobody'"):
            ask("nobody", UP, 0)
    with pytest.raises(TransportError, match="no party is called 'nobody'"):
        simulation.channel("nobody")


def test_channels_work_only_inside_a_run() -> None:
    channel = simulation_of("a", "b").channel("a")
    with pytest.raises(TransportError, match="'a' has no program that runs"):
        channel.receive("b", UP, 0)
    with pytest.raises(TransportError, match="has ended or not begun"):
        channel.send(Message("a", "b", UP, 0, b""))
    assert not channel.ready("b", UP, 0)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(BadParameter, match="different names, got a, b, a"):
        Simulation(["a", "b", "a"], run=1, label_party="a")
    with pytest.raises(BadParameter, match="label_party 'c' is not in a, b"):
        Simulation(["a", "b"], run=1, label_party="c")
    with pytest.raises(BadParameter, match="programs must be given for a, b, got a"):
        simulation_of("a", "b").run({"a": lambda: None})
    with pytest.raises(BadParameter, match="steps must be at least 0, got -1"):
        simulation_of("a", "b").channel("a").count_steps(-1)


def test_every_error_is_ours() -> None:
    assert issubclass(TransportError, ThinwireError)
    assert all(issubclass(error, TransportError) for error in (Deadlock, Stopped))


def ctrl_c() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_the_first_ctrl_c_lets_the_programs_end_by_themselves() -> None:
    simulation = simulation_of("a", "b")
    asked = threading.Event()

    def stops_when_asked() -> str:
        ctrl_c()
        assert asked.wait(timeout=300)
        simulation.channel("a").send(Message("a", "b", Kind.CONTROL, 0, b"stop"))
        return "ended"

    got = simulation.run(
        {"a": stops_when_asked, "b": lambda: simulation.channel("b").receive("a", Kind.CONTROL, 0).body},
        on_interrupt=asked.set,
    )
    assert got == {"a": "ended", "b": b"stop"}


def runs_until_stopped(simulation: Simulation, seen: list[str]) -> Callable[[], None]:
    def run() -> None:
        try:
            while True:
                simulation.channel("a").ready("b", UP, 0)
        except Stopped as stopped:
            seen.append(str(stopped))
            raise

    return run


@pytest.mark.parametrize("patience", [0, 1])
def test_ctrl_c_stops_everybody_at_last(patience: int) -> None:
    simulation = simulation_of("a", "b")
    asked = threading.Event()
    seen: list[str] = []
    until_stopped = runs_until_stopped(simulation, seen)

    def interrupts() -> None:
        ctrl_c()
        if patience:
            assert asked.wait(timeout=300)
            ctrl_c()
        until_stopped()

    with pytest.raises(KeyboardInterrupt):
        simulation.run(
            {"a": interrupts, "b": lambda: simulation.channel("b").receive("a", UP, 0)},
            on_interrupt=asked.set if patience else None,
        )
    assert seen == ["the run was interrupted"]


def test_a_failing_on_interrupt_stops_everybody() -> None:
    simulation = simulation_of("a", "b")
    seen: list[str] = []
    until_stopped = runs_until_stopped(simulation, seen)

    def interrupts() -> None:
        ctrl_c()
        until_stopped()

    def fails() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        simulation.run({"a": interrupts, "b": lambda: None}, on_interrupt=fails)
    assert seen == ["the run was interrupted"]


def test_transport_never_imports_torch() -> None:
    code = "import thinwire.engine.channel.simulated, sys; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = shown.stdout.split()
    assert "thinwire.engine.channel.simulated" in modules
    assert not [name for name in modules if re.match(r"(torch|numpy)\b", name)]
