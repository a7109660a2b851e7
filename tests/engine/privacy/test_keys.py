"""Keys: secret, different for every use, repeatable from an injected secret."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from thinwire.base.errors import BadParameter
from thinwire.engine.privacy import NoiseKey
from thinwire.engine.privacy.keys import derive_key

SECRET = bytes(range(32))


def test_derived_keys_are_hkdf_sha256() -> None:
    # RFC 5869, test case 3: no salt, no info; the first 32 bytes of its output.
    assert derive_key(b"\x0b" * 22, b"").hex() == ("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d")


def test_noise_never_repeats_over_runs_rounds_attempts_and_streams() -> None:
    uses = product(range(3), range(20), range(3), ("bank/uplink", "shop/uplink", ""))
    starts = {NoiseKey(SECRET).for_round(*use).words(4).tobytes() for use in uses}
    assert len(starts) == 3 * 20 * 3 * 3
    others = {NoiseKey(bytes([n]) * 32).for_round(0, 0, 0, "").words(4).tobytes() for n in range(50)}
    assert len(starts | others) == len(starts) + 50


def test_a_retry_draws_the_same_noise() -> None:
    one, again = (NoiseKey(SECRET).for_round(1, 2, 3, "bank/uplink").words(1000) for _ in range(2))
    assert np.array_equal(one, again)


def test_secrets_are_never_shown() -> None:
    assert repr(NoiseKey(SECRET)) == str(NoiseKey(SECRET)) == "NoiseKey()"


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "x" * 32, None])
def test_secrets_have_256_bits(secret: bytes) -> None:
    with pytest.raises(BadParameter, match="secret must be 32 secret bytes") as refusal:
        NoiseKey(secret)
    assert "xxxx" not in str(refusal.value)


def test_noise_needs_numbers_that_can_be() -> None:
    with pytest.raises(BadParameter, match="negative"):
        NoiseKey(SECRET).for_round(0, -1, 0, "")
