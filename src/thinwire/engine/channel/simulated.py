"""All parties in one process: real programs, real bodies, no network; frames are counted as a link would carry them.

    simulation = Simulation(["bank", "shop"], run=1, label_party="bank", link=Link(bandwidth_mbit=10))
    simulation.run({"bank": bank_program, "shop": shop_program})

One program runs at a time and gives up the turn only where it must wait, so a run repeats bit for bit.
Nobody waits in vain: a message that can never come is a deadlock, and that is noticed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock, Thread
from time import perf_counter
from typing import TypeVar

from thinwire.base.errors import BadParameter
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Deadlock, Message, Stopped, Stopwatch, TransportError, Wait
from thinwire.engine.channel.ledger import EVALUATION, Ledger
from thinwire.engine.channel.link import Link, LinkClock
from thinwire.engine.wire.frame import Frame, frame_size

T = TypeVar("T")


# Blocking programs as threads that take turns: exactly one of them runs, in an order that repeats. Whoever has the
# turn alone touches what is here and what the programs share, so nothing else is locked. The one exception is
# `_halt`: the main thread sets it on Ctrl-C.


class _Seat:
    """One program's place in the circle."""

    __slots__ = ("circle", "ended", "name", "turn", "waits")

    def __init__(self, name: PartyName) -> None:
        self.name = name
        self.ended = True  # no program yet
        self.waits: Wait | None = None
        self.turn = Lock()  # free only for the moment in which this seat is given the turn
        self.turn.acquire()
        self.circle: tuple[_Seat, ...] = ()  # the seats after this one, and itself last


class Turnstile:
    """Gives the turn to the next program that can move, in the order of `names`."""

    def __init__(self, names: Sequence[PartyName]) -> None:
        seats = [_Seat(name) for name in names]
        for i, seat in enumerate(seats):
            seat.circle = (*seats[i + 1 :], *seats[: i + 1])
        self._seats = {seat.name: seat for seat in seats}
        self._last = seats[-1]
        self._playing = 0  # programs that have not ended
        self._running = False
        self._all_ended = Lock()  # held while programs run
        self._halt: Callable[[], TransportError] | None = None
        self._failure: BaseException | None = None

    def run(
        self, programs: Mapping[PartyName, Callable[[], T]], on_interrupt: Callable[[], None] | None
    ) -> dict[PartyName, T]:
        """Every program's result. Raises what the first program to fail raised, from where it raised it."""
        if self._halt is not None or self._running:
            raise TransportError("this simulation was stopped or is still running; create a new one")
        results: dict[PartyName, T] = {}
        self._running = True
        self._all_ended = Lock()
        self._all_ended.acquire()
        # Ctrl-C reaches only the main thread: it does nothing but wait, so no turn can get lost.
        conductor = Thread(target=self._begin, args=(programs, results), daemon=True)
        try:
            self._watch(conductor.start, on_interrupt)
        except BaseException:  # Ctrl-C once more, or on_interrupt failed
            self._halt = self._halt or (lambda: Stopped("the run was interrupted"))
            self._watch(None, None)
            raise
        if self._halt is None:
            return results
        failure, self._failure = self._failure or self._halt(), None
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame

    def check(self) -> None:
        """Raises if the programs are to stop."""
        if self._halt is not None:
            raise self._halt()

    def has_ended(self, name: PartyName) -> bool:
        return self._seats[name].ended

    def runnable(self) -> list[PartyName]:
        """Who could move now, the caller included."""
        return [seat.name for seat in self._last.circle if not seat.ended and seat.waits is None]

    def wait(self, wait: Wait) -> None:
        """The caller gives up the turn until `wake` names what it waits for."""
        seat = self._seats[wait.party]
        if seat.ended:
            raise TransportError(f"{wait.party!r} has no program that runs; use its channel inside run()")
        seat.waits = wait
        self._yield(seat)

    def wake(self, wait: Wait) -> None:
        """What `wait` asks for is there; the party runs when its turn comes."""
        seat = self._seats[wait.party]
        if seat.waits == wait:
            seat.waits = None

    def give_turns(self, name: PartyName) -> None:
        """The caller lets the turn go around once: each of the others that can move has its turn."""
        seat = self._seats[name]
        if not seat.ended:
            self._yield(seat)

    def _yield(self, seat: _Seat) -> None:
        heir = self._heir(seat)
        if heir is not seat:
            heir.turn.release()
            seat.turn.acquire()
        seat.waits = None
        self.check()

    def _heir(self, seat: _Seat) -> _Seat:
        """The next seat that can move; all can once they are to stop."""
        for other in seat.circle:
            if not other.ended and (other.waits is None or self._halt is not None):
                return other
        waits = [other.waits for other in self._last.circle if other.waits is not None]
        ended = [other.name for other in self._last.circle if other.ended]
        self._halt = lambda: Deadlock(waits, ended)
        return self._heir(seat)

    def _begin(self, programs: Mapping[PartyName, Callable[[], T]], results: dict[PartyName, T]) -> None:
        """Seats everybody, then gives the turn to the first party."""
        try:
            for seat in self._last.circle:
                arguments = (seat, programs[seat.name], results)
                Thread(target=self._play, args=arguments, name=f"party {seat.name}", daemon=True).start()
                seat.ended = False
                self._playing += 1
        except RuntimeError as error:  # the system has no more threads
            self._fail(error, "the simulation")
        self._pass_on(self._last)

    def _play(self, seat: _Seat, program: Callable[[], T], results: dict[PartyName, T]) -> None:
        seat.turn.acquire()
        try:
            self.check()
            results[seat.name] = program()
        except BaseException as error:  # noqa: BLE001  the thread's end: run() raises it again
            self._fail(error, repr(seat.name))
        seat.ended = True
        self._playing -= 1
        self._pass_on(seat)

    def _pass_on(self, seat: _Seat) -> None:
        if self._playing:
            self._heir(seat).turn.release()
        else:
            self._all_ended.release()
            self._running = False

    def _fail(self, error: BaseException, who: str) -> None:
        """Keeps the first failure and stops everybody."""
        if self._failure is None:
            error.add_note(f"in the program of {who}")
            self._failure = error
        if self._halt is None:
            cause = f"{who} failed with {type(error).__name__}: {error}"
            self._halt = lambda: Stopped(cause)

    def _watch(self, begin: Callable[[], None] | None, on_interrupt: Callable[[], None] | None) -> None:
        """Waits for the end of all programs. Not by join(): Python 3.11 marks an interrupted one as done."""
        while True:
            try:
                if begin is not None:
                    begin_now, begin = begin, None
                    begin_now()
                while self._running:
                    # A signal just before the wait does not end it; so it is looked for now and then.
                    self._all_ended.acquire(timeout=0.25)
                return
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                ask_to_end, on_interrupt = on_interrupt, None
                ask_to_end()


# The parties, their mail and their clock ---------------------------------------------------------------------------


class Simulation:
    """The parties of a run, their mail, one ledger and, given a link, one clock."""

    def __init__(
        self,
        parties: Sequence[PartyName],
        run: int,
        *,
        label_party: PartyName,
        link: Link | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        if len(set(parties)) != len(parties):
            raise BadParameter(f"Simulation: parties must have different names, got {', '.join(parties)}")
        if label_party not in parties:
            raise BadParameter(f"Simulation: label_party {label_party!r} is not in {', '.join(parties)}")
        self.ledger = Ledger() if ledger is None else ledger
        self.clock = None if link is None else LinkClock(link, label_party, parties)
        self.on_message: Callable[[Message], None] = lambda _: None  # whoever looks at all that is sent
        self._run = run
        self._names = tuple(parties)
        self._indices = {name: i for i, name in enumerate(parties)}
        self._turnstile = Turnstile(parties)
        # Messages sent and not read yet, with their arrival, under what their receiver waits for.
        self._inbox: dict[Wait, tuple[Message, float]] = {}
        self._to_be_resumed = False  # a program that has ended reads its mail in the next process
        self._channels = {name: SimulatedChannel(self, name) for name in parties}

    def channel(self, name: PartyName) -> SimulatedChannel:
        """The one channel of this party; to be used by its own program."""
        self._known(name)
        return self._channels[name]

    def run(
        self, programs: Mapping[PartyName, Callable[[], T]], on_interrupt: Callable[[], None] | None = None
    ) -> dict[PartyName, T]:
        """Runs one program per party to its end and returns their results.

        When a program raises, the others are stopped and its exception is raised here. The first Ctrl-C
        calls `on_interrupt`, in the main thread while a program runs, which is to make the programs end by
        themselves; the second one (or the first, without `on_interrupt`) stops them and is raised here.
        """
        if programs.keys() != self._indices.keys():
            raise BadParameter(
                f"Simulation: programs must be given for {', '.join(self._names)}, got {', '.join(programs)}"
            )
        timed = {name: self._channels[name]._timed(program) for name, program in programs.items()}
        return self._turnstile.run(timed, None if on_interrupt is None else lambda: self._interrupted(on_interrupt))

    def _interrupted(self, on_interrupt: Callable[[], None]) -> None:
        self._to_be_resumed = True
        on_interrupt()

    def in_flight(self) -> list[tuple[Message, float]]:
        """What was sent and not read yet, and when it arrives; for a checkpoint while no program runs."""
        return list(self._inbox.values())

    def put_back(self, message: Message, arrival: float) -> None:
        """A message of an earlier process, counted there."""
        self._inbox[_slot(message)] = message, arrival

    def _known(self, name: PartyName) -> int:
        index = self._indices.get(name)
        if index is None:
            raise TransportError(f"no party is called {name!r}; the parties are {', '.join(self._names)}")
        return index

    def _post(self, message: Message) -> None:
        """Counts and delivers; memory does not damage what lies in it, so there is no checksum."""
        sender, receiver = self._known(message.sender), self._known(message.receiver)
        slot = _slot(message)
        if sender == receiver:
            raise _refused(slot, "which is itself")
        if self._turnstile.has_ended(message.receiver) and not self._to_be_resumed:
            raise _refused(slot, "whose program has ended or not begun")
        if slot in self._inbox:
            raise _refused(slot, "which has not read the first one yet")
        size = frame_size(Frame(self._run, sender, receiver, message.kind, message.round, 0, message.body))
        self.ledger.add(message.sender, message.receiver, message.kind, size)
        arrival = 0.0
        if self.clock is not None and message.kind not in EVALUATION:
            began = self.clock.pipe_free(message.sender)
            arrival = self.clock.send(message.sender, message.receiver, size)
            stopwatch = self._channels[message.sender].stopwatch
            stopwatch.add("send", began, self.clock.pipe_free(message.sender))
        self._inbox[slot] = message, arrival
        self.on_message(message)
        self._turnstile.wake(slot)

    def _open(self, slot: Wait) -> Message:
        message, arrival = self._inbox.pop(slot)
        if self.clock is not None:
            self._channels[slot.party].stopwatch.add("wait", self.clock.now(slot.party), arrival)
            self.clock.receive(slot.party, arrival)
        return message

    def _arrived(self, slot: Wait) -> bool:
        """Whether the message has arrived by the receiver's clock."""
        found = self._inbox.get(slot)
        return found is not None and (self.clock is None or found[1] <= self.clock.now(slot.party))

    def _someone_is_behind(self, name: PartyName) -> bool:
        """Whether a party that can move lives in this one's past, and so may still send into it."""
        clock = self.clock
        return clock is not None and any(clock.now(other) < clock.now(name) for other in self._turnstile.runnable())


class SimulatedChannel:
    """A party's end; a `Channel`."""

    def __init__(self, simulation: Simulation, name: PartyName) -> None:
        self.name = name
        self.stopwatch = Stopwatch(self._charge)  # by the link's clock; without a link, real seconds of computing
        self._simulation = simulation
        self._turnstile = simulation._turnstile
        self._inbox = simulation._inbox
        self._untimed = 0  # how many untimed() blocks we are in
        self._since = perf_counter()  # computing time up to here has been charged

    def send(self, message: Message) -> None:
        """Delivers at once; by the link's clock, it arrives later."""
        self._turnstile.check()
        self._charge()
        if message.sender != self.name:
            raise TransportError(f"{self.name!r} cannot send as {message.sender!r}")
        self._simulation._post(message)

    def receive(self, sender: PartyName, kind: Kind, round: Round) -> Message:
        """Waits for the message and moves this party's clock to its arrival."""
        self._turnstile.check()
        self._charge()
        slot = self._slot(sender, kind, round)
        if slot not in self._inbox:
            self._turnstile.wait(slot)
            self._since = perf_counter()
        return self._simulation._open(slot)

    def ready(self, sender: PartyName, kind: Kind, round: Round) -> bool:
        """Whether the message is there and, by the clock, has arrived.

        A message that was not sent yet may only lack the turn, so the others have a turn first. With a
        clock, they have turns until none of them is behind this party: then nothing that is still to be
        sent can arrive by now, and the answer does not depend on the order of turns. A party that asks
        again and again must charge work in between (`count_steps`), or its clock stands still.
        """
        self._turnstile.check()
        self._charge()
        slot = self._slot(sender, kind, round)
        if slot not in self._inbox:
            self._turnstile.give_turns(self.name)
            while slot not in self._inbox and self._simulation._someone_is_behind(self.name):
                self._turnstile.give_turns(self.name)
            self._since = perf_counter()
        return self._simulation._arrived(slot)

    def away(self, awaited: Sequence[tuple[PartyName, Kind, Round]]) -> bool:
        """Nobody is ever away in one process."""
        return False

    def count_steps(self, steps: int) -> None:
        """Charges the link's `compute_ms` for each step; without one, time is measured instead."""
        self._turnstile.check()
        if steps < 0:
            raise BadParameter(f"{self.name!r}: steps must be at least 0, got {steps}")
        clock = self._simulation.clock
        if clock is not None and not self._untimed:
            self._worked(clock, steps * (clock.step_seconds(self.name) or 0.0))

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Computation in this block, such as an evaluation, costs no time."""
        self._charge()
        self._untimed += 1
        try:
            yield
        finally:
            self._charge()
            self._untimed -= 1

    def _timed(self, program: Callable[[], T]) -> Callable[[], T]:
        """The program, charged from its first moment to its last."""

        def run() -> T:
            self._since = perf_counter()
            result = program()
            self._charge()
            return result

        return run

    def _slot(self, sender: PartyName, kind: Kind, round: Round) -> Wait:
        self._simulation._known(sender)
        return Wait(self.name, sender, kind, round)

    def _charge(self) -> None:
        """The time since we got the turn, or since the last charge, where nothing fixed is charged."""
        clock = self._simulation.clock
        if clock is not None and clock.step_seconds(self.name) is not None:
            return
        now = perf_counter()
        if not self._untimed:
            if clock is None:
                self.stopwatch.add(self.stopwatch.doing, self._since, now)
            else:
                self._worked(clock, now - self._since)
        self._since = now

    def _worked(self, clock: LinkClock, seconds: float) -> None:
        now = clock.now(self.name)
        self.stopwatch.add(self.stopwatch.doing, now, now + seconds)
        clock.compute(self.name, seconds)


def _slot(message: Message) -> Wait:
    return Wait(message.receiver, message.sender, message.kind, message.round)


def _refused(slot: Wait, why: str) -> TransportError:
    return TransportError(
        f"{slot.sender!r} cannot send {slot.kind.name} of round {slot.round} to {slot.party!r}, {why}"
    )
