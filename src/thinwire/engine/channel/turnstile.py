"""Blocking programs as threads that take turns: exactly one of them runs, in an order that repeats.

Whoever has the turn alone touches what is here and what the programs share, so nothing else is
locked. The one exception is `_halt`: the main thread sets it on Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock, Thread
from typing import TypeVar

from thinwire.base.types import PartyName
from thinwire.engine.channel.base import Deadlock, Stopped, TransportError, Wait

T = TypeVar("T")


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
            raise TransportError("this simulation was stopped or still runs; make a new one")
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
