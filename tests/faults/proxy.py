"""A TCP proxy between the feature parties and the label party, which can do to the bytes what networks do."""

from __future__ import annotations

import socket
import struct
from collections import deque
from contextlib import suppress
from threading import Condition, Lock, Thread
from time import monotonic, sleep

UP, DOWN = "up", "down"  # towards the label party, and back
_PIECE = 4096
_RESET = struct.pack("ii", 1, 0)  # closing sends a reset


class Proxy:
    """Listens at a port of its own; every setting may change at any time, also for connections that are there."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.held: set[str] = set()  # ways on which nothing gets through, as when packets are dropped
        self.refusing = False
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None
        self.reset_after: int | None = None  # bytes of the next connection, both ways together
        self.resets = 0
        self.connections = 0
        self._lock = Lock()
        self._pairs: list[_Pair] = []
        self._closed = False
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listening.getsockname()[1])
        Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def setting(self) -> str:
        return f'network.address="127.0.0.1:{self.port}"'

    def partition(self) -> None:
        self.held = {UP, DOWN}

    def heal(self) -> None:
        self.held = set()

    def reset(self, next_after: int | None = None) -> None:
        """Every connection that is there; and, where it is given, the next one after so many bytes."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            if next_after is not None:
                self.reset_after = next_after
        for pair in pairs:
            pair.reset()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.reset()

    def _accept(self) -> None:
        while not self._closed:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            if self.refusing:
                _reset(caller)
                continue
            try:
                callee = socket.create_connection(("127.0.0.1", self.target_port), timeout=5)
            except OSError:
                _reset(caller)
                continue
            callee.settimeout(None)
            self.connections += 1
            with self._lock:
                left, self.reset_after = self.reset_after, None
                pair = _Pair(self, caller, callee, left)
                self._pairs = [held for held in self._pairs if not held.over] + [pair]
            pair.start()


class _Pair:
    """A connection on both sides of the proxy."""

    def __init__(self, proxy: Proxy, caller: socket.socket, callee: socket.socket, left: int | None) -> None:
        self.over = False
        self._proxy = proxy
        self._reset_after = self._left = left  # bytes until the reset
        self._lock = Lock()
        self._ways = {UP: (caller, callee), DOWN: (callee, caller)}

    def start(self) -> None:
        for way, (source, sink) in self._ways.items():
            queue = _Queue()
            Thread(target=self._read, args=(source, queue), name=f"proxy {way}", daemon=True).start()
            Thread(target=self._write, args=(way, sink, queue), name=f"proxy {way}", daemon=True).start()

    def reset(self) -> None:
        self.over = True
        for one in self._ways[UP]:
            _reset(one)

    def _read(self, source: socket.socket, queue: _Queue) -> None:
        data = b"-"
        while data and not self.over:
            try:
                data = source.recv(_PIECE)
            except OSError:
                data = b""
            queue.put(monotonic() + self._proxy.delay_seconds, data)

    def _write(self, way: str, sink: socket.socket, queue: _Queue) -> None:
        while not self.over:
            due, data = queue.take()
            while (way in self._proxy.held or monotonic() < due) and not self.over:
                sleep(0.005)
            if not data:
                if self._reset_after is not None:  # it was given up before its reset: the next one has it
                    self._proxy.reset_after, self._reset_after = self._reset_after, None
                with suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
                return
            if self._is_cut(sink, data):
                return
            if self._proxy.bytes_per_second is not None:
                sleep(len(data) / self._proxy.bytes_per_second)

    def _is_cut(self, sink: socket.socket, data: bytes) -> bool:
        """Sends; up to the byte where this connection ends."""
        with self._lock:
            ends = self._left is not None and len(data) >= self._left
            part = data[: self._left] if ends else data
            if self._left is not None:
                self._left -= len(part)
        try:
            sink.sendall(part)
        except OSError:
            ends = True
        if ends:
            self._proxy.resets += 1
            self.reset()
        return ends


class _Queue:
    """Pieces and when they are due; a reader that is far ahead waits, as TCP's window makes it."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._changed = Condition()

    def put(self, due: float, data: bytes) -> None:
        with self._changed:
            while len(self._pieces) > 16:
                if not self._changed.wait(60):
                    return
            self._pieces.append((due, data))
            self._changed.notify_all()

    def take(self) -> tuple[float, bytes]:
        with self._changed:
            while not self._pieces:
                if not self._changed.wait(600):
                    return 0.0, b""
            found = self._pieces.popleft()
            self._changed.notify_all()
            return found


def _reset(one: socket.socket) -> None:
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with suppress(OSError):
        one.shutdown(socket.SHUT_RD)  # wakes up whoever reads
    with suppress(OSError):
        one.close()
