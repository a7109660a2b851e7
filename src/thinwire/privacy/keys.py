"""Secret keys of 256 bits, and what is derived from them by HKDF-SHA256."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from thinwire.compress.randomness import Keystream
from thinwire.errors import BadParameter
from thinwire.privacy.context import framed

__all__ = ["KEY_SIZE", "NoiseKey", "derived_key", "require_key"]

KEY_SIZE = 32  # bytes


def require_key(key: bytes, name: str) -> None:
    if not isinstance(key, bytes) or len(key) != KEY_SIZE:
        got = f"{len(key)}" if isinstance(key, bytes) else type(key).__name__
        raise BadParameter(f"{name} must be {KEY_SIZE} secret bytes, got {got}")


def derived_key(key: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 without salt: as secret as `key`, and independent of that of any other `info`."""
    return HKDF(SHA256(), KEY_SIZE, salt=None, info=info).derive(key)


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """A party's own secret behind its privacy noise. Whoever knows it can take the noise away again.

    The training seed never feeds it. It belongs in the party's private state, not in a run's events.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        require_key(self.secret, "NoiseKey: secret")

    @classmethod
    def fresh(cls) -> NoiseKey:
        """A new secret from the operating system."""
        return cls(secrets.token_bytes(KEY_SIZE))

    def for_round(self, run: int, round: int, attempt: int, stream: str) -> Keystream:
        """The bits to draw one message's noise from; the same arguments give the same bits, for a retry."""
        return Keystream(derived_key(self.secret, framed("thinwire noise 1", run, round, attempt, stream)))
