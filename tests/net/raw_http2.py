"""A caller that speaks HTTP/2 by hand: it leaves calls without a body, and windows shut."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from net.callers import SECONDS, Identity
from thinwire.net.grpc.service import Rpc

_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4


class RawCaller:
    """One TLS 1.3 connection; `window` bytes of every answer are let in, and nothing is ever read."""

    def __init__(self, port: int, name: str, shown: Identity, window: int = 65_535) -> None:
        self.socket = _secure(port, name, shown)
        self._stream = -1
        settings = _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)

    def call(self, rpc: Rpc, body: bytes | None = None) -> None:
        """Begins one call; without a body it stays open, and the other side waits."""
        self._stream += 2
        sent = _frame(_HEADERS, _END_HEADERS, self._stream, _headers(rpc.path))
        if body is not None:
            sent += _frame(_DATA, _END_STREAM, self._stream, struct.pack(">BI", 0, len(body)) + body)
        with suppress(OSError):  # hung up on
            self.socket.sendall(sent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def is_open(connection: socket.socket) -> bool:
    """Has the other side not hung up?"""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1 << 16))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _secure(port: int, name: str, shown: Identity) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=shown.authority_pem.decode())
    if shown.certificate_pem is not None:
        with TemporaryDirectory() as folder:
            both = Path(folder) / "both.pem"
            both.write_bytes(shown.certificate_pem + (shown.key_pem or b""))
            context.load_cert_chain(both)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), SECONDS), server_hostname=name)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(path: str) -> bytes:
    """HPACK: literals only, none of them remembered."""
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(b"\x00" + _literal(name) + _literal(value) for name, value in fields.items())


def _literal(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()
