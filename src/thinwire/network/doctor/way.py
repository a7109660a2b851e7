"""The way to the label party's port, as gRPC goes it: straight, or through a proxy."""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from thinwire.transport.base import TransportError
from thinwire.transport.endpoint import Endpoint
from thinwire.transport.records import printable

__all__ = ["Trouble", "Way"]

_CONNECT_SECONDS = 4.0


class Trouble(TransportError):
    """The label party cannot be met; `way_out` says what to look at."""

    def __init__(self, cause: str, way_out: str) -> None:
        self.way_out = way_out
        super().__init__(cause)


@dataclass(frozen=True)
class Way:
    """How gRPC goes to an address: straight, or through an HTTP proxy."""

    address: Endpoint
    proxy: Endpoint | None = None
    variable: str = ""  # of the environment, where the proxy stands
    authorization: str = ""  # for the proxy; never shown

    @classmethod
    def to(cls, address: str, environment: Mapping[str, str]) -> Way:
        """By the rules of gRPC: the first of three variables that is set, unless the host is excepted."""
        place = Endpoint.parse(address)
        variable = next((name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environment.get(name)), "")
        excepted = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
        if not variable or any(_excepts(entry.strip(), place.host) for entry in excepted.split(",")):
            return cls(place)
        parts = urlsplit(environment[variable])
        if parts.scheme != "http" or not parts.hostname:
            return cls(place)  # gRPC takes no notice of it either
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return cls(place, Endpoint(parts.hostname, parts.port or 443), variable, user)

    @property
    def first(self) -> Endpoint:
        """Where the connection goes."""
        return self.proxy or self.address

    def resolve(self) -> list[str]:
        """The first host's addresses."""
        try:
            found = socket.getaddrinfo(self.first.host, self.first.port, type=socket.SOCK_STREAM)
        except OSError as error:
            field = self.variable or "network.address"
            raise Trouble(
                f"no host is called {self.first.host} ({error.strerror})",
                f"{field} names it: is it spelled right, and does this machine know its name server?",
            ) from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def connect(self) -> socket.socket:
        """A connection to the label party's port, as yet without TLS."""
        try:
            made = socket.create_connection((self.first.host, self.first.port), _CONNECT_SECONDS)
        except ConnectionRefusedError:
            raise Trouble(f"nobody listens at {self.first}", self._nobody()) from None
        except OSError as error:
            raise Trouble(
                f"{self.first} cannot be reached ({error.strerror or 'no answer within 4 s'})",
                "look at firewalls on the way, and at the address; only the label party needs an open port",
            ) from None
        if self.proxy is not None:
            self._through_proxy(made)
        return made

    def _nobody(self) -> str:
        if self.proxy is not None:
            return f"the proxy is named by {self.variable}; start it, or unset that variable"
        return (
            "start `thinwire doctor` with --wait, or `thinwire party`, at the label party; or network.address is "
            "another one. --wait SECONDS here keeps trying"
        )

    def _through_proxy(self, made: socket.socket) -> None:
        lines = [f"CONNECT {self.address} HTTP/1.1", f"Host: {self.address}"]
        if self.authorization:
            lines.append(f"Proxy-Authorization: Basic {b64encode(self.authorization.encode()).decode()}")
        try:
            made.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            while b"\r\n\r\n" not in answer and len(answer) < 1 << 14 and (more := made.recv(4096)):
                answer += more
        except OSError:
            answer = b""
        status = answer.partition(b"\r\n")[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            made.close()
            raise Trouble(
                f"the proxy {self.proxy} does not connect to {self.address} ({printable(status) or 'it hung up'})",
                f"ask for a CONNECT to this address there, or except it in no_proxy; {self.variable} names the proxy",
            )


def _excepts(entry: str, host: str) -> bool:
    if not entry:
        return False
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())
