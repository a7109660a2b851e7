"""A place on the network: host and port, as a job file spells them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from socket import gethostname

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?")
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104  compared with, not listened at


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`host:port`; an IPv6 address stands in brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Raises ValueError with a message that goes on from the field's name."""
        wanted = f"must be host:port, such as fl.shop.example:7443 or [::1]:7443, got {text!r}"
        if "://" in text:
            raise ValueError(f"{wanted}; leave out {text.partition('://')[0]}://")
        host, colon, port = text.rpartition(":")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"{wanted}; an IPv6 address stands in brackets")
        if not colon or not host:
            raise ValueError(f"{wanted}; the {'port' if not colon else 'host'} is missing")
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
            raise ValueError(f"{wanted}; a port is a number up to 65535")
        if host.startswith("["):
            try:
                return cls(str(IPv6Address(host[1:-1])), int(port))
            except ValueError:
                raise ValueError(f"{wanted}; {host} is not an IPv6 address") from None
        if not _HOST.fullmatch(host):
            raise ValueError(f"{wanted}; {host!r} is not a host name")
        return cls(host, int(port))

    @property
    def is_callable(self) -> bool:
        """One may listen at all addresses of a machine, or at any free port, but nobody can call there."""
        return self.host not in _ANYWHERE and self.port != 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Only processes of this machine can call there. Names are not looked up: one may lead to a gateway."""
    host = host.rstrip(".").lower()
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Whether a Host header says an address, localhost, this machine's name or one of `names`.

    A page elsewhere can have a domain of its own lead here (DNS rebinding), but none of these.
    """
    try:
        host = Endpoint.parse(header if re.search(r":\d+$", header) else f"{header}:80").host.rstrip(".").lower()
    except ValueError:
        return False
    if host in {"localhost", gethostname().lower(), *map(str.lower, names)}:
        return True
    try:
        return bool(ip_address(host))
    except ValueError:
        return False
