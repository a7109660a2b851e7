"""Settings of a whole process, and what its figures were made with.

Importing thinwire changes no setting: the command line does, and programs like it. A program that opens links itself
calls `configure_grpc()` before it imports anything that loads gRPC; one that simulates large models gains speed by
`share_memory_pool()`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from contextlib import suppress
from importlib.metadata import version

from thinwire import __version__
from thinwire.base.errors import ThinwireError


def environment() -> dict[str, str]:
    """Versions and machine, as plain words; torch is not imported for it."""
    return {
        "thinwire": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


_CIPHERS = "GRPC_SSL_CIPHER_SUITES"
_GRPC_SETTINGS = {
    # No peer can negotiate this suite, which needs a shared key: TLS 1.2 is off.
    _CIPHERS: "ECDHE-PSK-CHACHA20-POLY1305",
    # Its older event loop wakes one thread less for every message: a third of a round trip on a fast link.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
    "GRPC_VERBOSITY": "NONE",
}
_M_ARENA_MAX = -8  # of glibc's mallopt


class GrpcNotConfigured(ThinwireError):
    """gRPC was loaded without our settings, so it would accept TLS 1.2."""

    def __init__(self) -> None:
        super().__init__(
            "gRPC was imported before thinwire configured it, so it would accept TLS 1.2; call "
            "thinwire.base.process.configure_grpc() before anything imports grpc"
        )


def configure_grpc() -> None:
    """Settings that gRPC reads when it loads; those that are set already stay."""
    if "grpc" in sys.modules and not is_grpc_configured():
        raise GrpcNotConfigured
    for name, value in _GRPC_SETTINGS.items():
        os.environ.setdefault(name, value)


def is_grpc_configured() -> bool:
    return _CIPHERS in os.environ


def allow_open_files() -> None:
    """As many as the system lets this process open: a low `ulimit -n` is meant for other programs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def share_memory_pool() -> None:
    """One pool of free memory for all threads, where glibc is used.

    A thread of its own pool gives back to the system what the next one then asks it for: with large models that
    took more time than everything else a simulation does.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
