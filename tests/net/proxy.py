"""A proxy that knows nothing but CONNECT."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Lock, Thread


class ConnectProxy:
    """Counts the connections that it made, by the address that was asked for."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.asked: list[str] = []
        self.refused = 0  # where nobody listened
        self.carried_bytes = 0
        self._sockets: list[socket.socket] = []
        self._lock = Lock()
        self._thread = Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(client,), name="proxied", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = client.recv(4096)
            if not piece:
                client.close()
                return
            head += piece
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        if method != "CONNECT":
            client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
            client.close()
            return
        host, _, port = target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)))
        except OSError:
            self.refused += 1
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            client.close()
            return
        with self._lock:
            self.asked.append(target)
            self._sockets += [client, server]
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        Thread(target=self._carry, args=(server, client), name="proxied", daemon=True).start()
        self._carry(client, server)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                with self._lock:
                    self.carried_bytes += len(piece)
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
