"""A place on the network: host and port, as a job file spells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address

from thinwire.base.errors import BadInput

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
                raise ValueError(f"{wanted}; {host} is no IPv6 address") from None
        if not _HOST.fullmatch(host):
            raise ValueError(f"{wanted}; {host!r} is no host name")
        return cls(host, int(port))

    @property
    def is_callable(self) -> bool:
        """One may listen at all addresses of a machine, or at any free port, but nobody can call there."""
        return self.host not in _ANYWHERE and self.port != 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def choose_listen_address(listen: str | None, address: str | None) -> str:
    """Where the label party listens: everywhere, at the address's port, unless given."""
    if listen is not None:
        return listen
    if address is not None:
        return str(Endpoint("0.0.0.0", Endpoint.parse(address).port))  # noqa: S104
    raise BadInput('network.listen is missing: where the label party listens, such as listen = "0.0.0.0:7443"')


def choose_dial_address(listen: str | None, address: str | None) -> str:
    """Where feature parties find the label party: where it listens, unless given."""
    if address is not None:
        return address
    if listen is not None and Endpoint.parse(listen).is_callable:
        return listen
    raise BadInput(
        "network.address is missing: where the feature parties find the label party, such as "
        'address = "fl.shop.example:7443"'
    )
